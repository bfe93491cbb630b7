"""Make a host ready: find or fetch a CRIU that works, create the pool, let CRIU learn what the kernel can do."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import AbilityMissing, NotPermitted
from waypoint.kernel.criu.provision import CriuBuild, find_host_criu, find_prefix_criu, provision_criu
from waypoint.session.context import criu_tool, launcher_path
from waypoint.store.layout import Layout
from waypoint.store.pool import Pool, create_pool

__all__ = ["Prepared", "find_criu", "prepare_host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What set-up found or made."""

    criu: CriuBuild
    pool: Pool


def find_criu(state_dir: Path) -> CriuBuild | None:
    """The CRIU that set-up chose, or would choose without installing anything."""
    return find_prefix_criu(Layout(state_dir).criu_prefix) or find_host_criu()


def prepare_host(
    state_dir: Path,
    *,
    pool_size_bytes: int | None,
    proxies: Mapping[str, str],
    progress: Callable[[str], None],
    criu_of: Path | None = None,
) -> Prepared:
    """Do what is not done yet; a second call finds nothing left to do.

    ``criu_of`` is another state directory: if it has a CRIU, that is used and none is fetched.
    """
    if os.geteuid() != 0:
        raise NotPermitted("setup needs root", hint="run it with sudo")
    if not launcher_path().exists():
        raise AbilityMissing(f"our init was not built: {launcher_path()}", hint="make install")
    layout = Layout(state_dir)
    state_dir.mkdir(parents=True, exist_ok=True)
    state_dir.chmod(0o700)  # checkpoints hold the memory of processes
    for directory in (layout.lock, layout.work, layout.mount, layout.session, layout.shared):
        directory("").mkdir(exist_ok=True)
    criu = find_criu(state_dir) or (find_criu(criu_of) if criu_of is not None else None)
    if criu is None:
        progress("no usable CRIU on this host: fetching one into a private directory")
        criu = provision_criu(layout.criu_prefix, progress, proxies=proxies)
    pool = create_pool(state_dir, size_bytes=pool_size_bytes, progress=progress)
    for part in ("branches", "checkpoints", "init", "bases"):
        (layout.pool / part).mkdir(exist_ok=True)
    tool = criu_tool(layout, criu.command, criu.version)
    if not tool.is_warm():
        progress("asking the kernel what CRIU can use")
        tool.warm()
    _write_facts(layout, criu)
    return Prepared(criu=criu, pool=pool)


def _write_facts(layout: Layout, criu: CriuBuild) -> None:
    facts = json.dumps(
        {"criu_command": criu.command, "criu_version": criu.version, "criu_origin": criu.origin}
    )
    if layout.host_facts.exists() and layout.host_facts.read_text() == facts:
        return
    draft = layout.host_facts.with_suffix(".new")
    with open(draft, "w") as out:
        out.write(facts)
        out.flush()
        os.fsync(out.fileno())
    os.rename(draft, layout.host_facts)
