"""Every path on disk, as properties of one class. ``docs/on-disk-format.md`` describes them."""

import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.store.live import catalogue_path, facts_path, lock_path, root_path

__all__ = ["Layout", "new_id"]


def new_id(nbytes: int = 6) -> str:
    """A fresh random id, as hexadecimal digits."""
    return os.urandom(nbytes).hex()


@dataclass(frozen=True, slots=True)
class Layout:
    """The state directory."""

    state_dir: Path

    @property
    def catalogue(self) -> Path:
        return Path(catalogue_path(str(self.state_dir)))

    @property
    def pool(self) -> Path:
        return self.state_dir / "pool"

    @property
    def criu_prefix(self) -> Path:
        return self.state_dir / "criu"

    @property
    def host_facts(self) -> Path:
        """What set-up found out about this host: CRIU's command and version."""
        return Path(facts_path(str(self.state_dir)))

    def kdat(self, criu_version: str) -> Path:
        """What this CRIU knows of the kernel that is running now; another of either must ask again."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return self.state_dir / f"criu-{criu_version}-{boot}.kdat"

    def lock(self, name: str) -> Path:
        return Path(lock_path(str(self.state_dir), name))

    def work(self, session_id: str) -> Path:
        """Logs of the runs of CRIU that failed."""
        return self.state_dir / "work" / session_id

    def session(self, session_id: str) -> Path:
        return self.state_dir / "sessions" / session_id

    def live(self, session_id: str, branch: str) -> Path:
        """The link that people follow to the live files of a branch; stable across restores."""
        return self.session(session_id) / branch

    def mount(self, incarnation: str) -> Path:
        return Path(root_path(str(self.state_dir), incarnation))

    def layer(self, incarnation: str) -> Path:
        """The branch's own changes: ``upper`` and ``work`` of its overlay."""
        return self.pool / "branches" / incarnation

    def checkpoint(self, checkpoint_id: str) -> Path:
        return self.pool / "checkpoints" / checkpoint_id

    def checkpoint_layer(self, checkpoint_id: str) -> Path:
        return self.checkpoint(checkpoint_id) / "files"

    def images(self, checkpoint_id: str) -> Path:
        return self.checkpoint(checkpoint_id) / "images"

    def init_copy(self, digest: str) -> Path:
        """Our init as it is put into branches; on the pool so that each copy is only a reference."""
        return self.pool / "init" / digest

    def base(self, name: str) -> Path:
        return self.pool / "bases" / name
