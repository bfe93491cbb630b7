"""Podman with CRIU: a container is saved whole, files and processes, as one export that can be restored many times.

Podman can leave a container running while it exports it, but then copies its files *after* the container runs again,
and some exports cannot be restored. So it is stopped, exported and resumed; if it cannot be resumed, it is restored
from the export.
"""

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from statefork.backend import Availability, Image, Instance
from statefork.backends.containers.connections import has_outside_connections
from statefork.backends.containers.container import container_of
from statefork.backends.containers.host_ports import published, takes_host_ports
from statefork.backends.containers.live_container import LiveContainerBackend
from statefork.backends.containers.podman_engine import PodmanEngine
from statefork.backends.processes.criu_program import CriuPrograms, find_usable_criu, reason_in_log
from statefork.branches import MAIN
from statefork.errors import BackendFailed, BackendUnavailable
from waypoint.errors import WaypointError

__all__ = ["HybridBackend"]

STEM = "podman-build"
ADDED_TO = "added-to"
ADDING_TIMEOUT_S = 60.0
_ADD_INIT = "/.waypoint/init init </dev/null >/dev/null 2>&1 &"
_REMOVE_INIT = """\
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/exe")" = /.waypoint/init ] && kill -9 "${process#/proc/}"
done
rm -rf /.waypoint"""


class HybridBackend(LiveContainerBackend):
    """``export_dir`` is where snapshots are kept; ``container_name`` is the prefix of containers' names, or the name of
    the one to attach to."""

    name = "hybrid"
    path_options = ("storage", "export_dir")
    engine: PodmanEngine

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        container_name: str = STEM,
        dockerfile_dir: str = ".",
        export_dir: str | None = None,
        extra_args: str | Sequence[str] | None = None,
        command: str | Sequence[str] | None = None,
        storage: str | None = None,
    ) -> None:
        super().__init__(
            home,
            tag,
            PodmanEngine.of(self.name, storage),
            dockerfile_dir=dockerfile_dir,
            extra_args=extra_args,
            command=command,
        )
        self._container_name = container_name
        self._name_prefix = f"{container_name}-{tag}"
        self._programs: CriuPrograms | None = None
        self._making_programs = threading.Lock()
        self._exports = home / "exports" if export_dir is None else Path(export_dir).absolute()

    @classmethod
    def probe(cls) -> Availability:
        if os.geteuid() != 0:
            return Availability(
                is_available=False, reason="checkpoints of containers need root", remedy="sudo"
            )
        podman = PodmanEngine.probe()
        if not podman.is_available:
            return podman
        if shutil.which("runc") is None:
            return Availability(is_available=False, reason="no program 'runc'", remedy="apt-get install runc")
        criu = find_usable_criu()
        if criu is None:
            return Availability(is_available=False, reason="no CRIU that works", remedy="waypoint setup")
        return Availability(is_available=True, detail=f"{podman.detail}, CRIU {criu.version}")

    # -- a container that someone else made

    def attach(self) -> Instance:
        instance = super().attach()
        container = container_of(instance)
        try:
            self._connect(container).close()
        except (WaypointError, OSError):  # our init is not in it yet
            self._require_never_restored(container)
            (self.home / ADDED_TO).write_text(container)
            self._put_init_into(container)
            self.engine.execute(container, _ADD_INIT, ADDING_TIMEOUT_S)
            self._open_shell(container, self.engine.settings_of(container))
        return instance

    def _require_never_restored(self, container: str) -> None:
        """CRIU gives each tree that it restores a time namespace of its own, which ``podman exec`` does not enter; and a
        tree with processes in two of them can be saved, but not restored."""
        try:
            is_shared = os.path.samefile(f"/proc/{self._pid(container)}/ns/time", "/proc/self/ns/time")
        except FileNotFoundError:  # a kernel without them
            return
        if not is_shared:
            raise BackendFailed(
                self.name,
                "attach",
                f"container {container} was restored from a checkpoint: what is added to it now could not be restored with it",
                hint=f"podman restart {container}; an environment that is left with core.leave() stays attached",
            )

    def close(self) -> None:
        super().close()
        mark = self.home / ADDED_TO
        if mark.exists():
            self._take_init_out_of(mark.read_text())
        for export in self._exports.glob(f"{self.tag}-*.tar"):
            export.unlink(missing_ok=True)

    def _take_init_out_of(self, container: str) -> None:
        found = self.engine.find(container)
        if found is not None and found.is_running:
            self.engine.execute(container, _REMOVE_INIT, ADDING_TIMEOUT_S)

    # -- saving and going back

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        container = container_of(instance)
        export = self._exports / f"{self.tag}-{snapshot_id}.tar"
        export.parent.mkdir(parents=True, exist_ok=True)
        is_outside = has_outside_connections(self._pid(container))
        ports = self.engine.published_ports(container)
        try:
            self._criu("checkpoint", "--compress", "none", "--export", str(export), container)
        except BaseException:
            self._resume_if_stopped(container)
            export.unlink(missing_ok=True)
            raise
        saved = Image(
            id=snapshot_id,
            handle={"export": str(export), "outside": int(is_outside), "ports": " ".join(ports)},
            sizes={"export": export.stat().st_size},
        )
        try:
            self._resume(container)
        except BackendFailed:
            self._replace_by_saved(saved, container)
            if container == self._container_name:  # it has another id now
                self._remember(self.engine.find(container))
        return saved

    def _restore_stand_in(self, image: Image, container: str, stand_in: str) -> None:
        self._restore_into(image, stand_in, None)

    def _resume_if_stopped(self, container: str) -> None:
        """After a failure. A dump that fails leaves the container running; an export that fails has stopped it."""
        found = self.engine.find(container)
        if found is not None and not found.is_running:
            self._resume(container)

    def _is_stopped_by_snapshot(self, container: str) -> bool:
        return bool((self.engine.describe(container) or {}).get("State", {}).get("Checkpointed"))

    def _resume(self, container: str) -> None:
        self._criu("restore", container)

    def spawn(self, image: Image, branch_id: str) -> Instance:
        name = self._new_name(branch_id)
        takes_them = branch_id == MAIN and takes_host_ports(self._extra_args)
        ports = published(self._extra_args) if takes_them else str(image.handle["ports"]).split()
        self._restore_into(image, name, ports)
        return Instance(id=name, handle={"container": name})

    def _restore_into(self, image: Image, container: str, ports: Sequence[str] | None) -> None:
        """``ports`` are published instead of those that the saved container had; None lets it have the same."""
        try:
            self._criu(
                *("restore", *(word for port in ports or () for word in ("--publish", port))),
                *("--import", str(image.handle["export"]), "--name", container),
                closes_connections=bool(image.handle["outside"]),
            )
            self._wait_for_init(container)
        except BaseException:
            self.engine.remove_container(container)
            raise

    def delete(self, image: Image) -> None:
        Path(str(image.handle["export"])).unlink(missing_ok=True)

    def _set_aside(self, instance: Instance) -> None:
        self._criu("checkpoint", container_of(instance))

    def _bring_back(self, instance: Instance) -> None:
        self._resume(container_of(instance))

    def _criu(self, verb: str, *words: str, closes_connections: bool = False) -> None:
        programs = self._criu_programs()
        chosen = programs.closing if closes_connections else programs.keeping
        path = f"{chosen}:{os.environ.get('PATH', os.defpath)}"
        try:
            self.engine.ask(verb, "container", verb, *words, env={"PATH": path})
        except BackendFailed as error:
            raise BackendFailed(self.name, verb, reason_in_log(error.reason)) from error

    def _criu_programs(self) -> CriuPrograms:
        with self._making_programs:
            if self._programs is None:
                criu = find_usable_criu()
                if criu is None:
                    raise BackendUnavailable(self.name, "no CRIU that works", remedy="waypoint setup")
                self._programs = CriuPrograms.make(self.home, criu)
            return self._programs
