"""Plain CRIU: processes with their memory, shell and terminal are saved; files are not.

``criu_build`` starts a tree in namespaces of its own, so that any number of branches live side by side with the same
pids and ports. They all see the host's own files, as they are now and not as they were at a snapshot.

``criu_attach`` (:mod:`statefork.backends.criu_attach`) saves a tree that someone else has started.
"""

import os
import secrets
import shlex
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from statefork.agent import Agent
from statefork.backend import EVERYTHING, Availability, Backend, Command, CommandResult, Image, Instance
from statefork.backends.processes.criu_host import explained, host_criu, probe_criu
from statefork.backends.processes.host_tree import CONTROL, HostTree, start_init
from statefork.backends.processes.private_directory import make_private_directory
from statefork.errors import BackendFailed
from waypoint.engine.obstacles import find_obstacles
from waypoint.kernel.cgroup.group import Cgroup, find_cgroup2
from waypoint.kernel.copy.confined import Root, host_root, process_root
from waypoint.kernel.copy.file_tree import CopyJob
from waypoint.kernel.criu.branch import dump_tree, restore_tree
from waypoint.kernel.criu.log import CriuFailed
from waypoint.kernel.criu.refusal import CannotBeSaved
from waypoint.kernel.criu.terminals import empty_terminals, refill_terminals
from waypoint.kernel.criu.watches import WatchRecorder
from waypoint.kernel.processes.programs import run_tool
from waypoint.kernel.undo import UndoStack
from waypoint.session.branch_files import copy_between
from waypoint.session.context import launcher_path
from waypoint.shell.client import ShellClient
from waypoint.shell.selection import find_profile

__all__ = ["CriuBackend"]

DEFAULT_WORK_DIR = "/tmp/statefork_criu"
COPY_TIMEOUT_S = 60.0


class CriuBackend(Backend):
    """``work_dir`` holds the images; ``command`` is started in the background of the environment's shell."""

    name = "criu"
    path_options = ("work_dir",)
    capabilities = replace(EVERYTHING, files=False)

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        work_dir: str | Path = DEFAULT_WORK_DIR,
        command: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(home, tag)
        self._work_dir = Path(work_dir).absolute()
        self._command = command if command is None or isinstance(command, str) else shlex.join(command)

    @classmethod
    def probe(cls) -> Availability:
        return probe_criu()

    # -- life

    def start(self, branch_id: str) -> Instance:
        with explained("start"):
            make_private_directory(self._work_dir, self.tag, option="work_dir")
            start = Path.cwd()
            tree = HostTree.make(self._own_directory / "root", start)
            name = self._new_name()
            with UndoStack(f"start {name}") as undo:
                undo.on_failure("remove", lambda: self._remove(name))
                directory = self._make_directory(name)
                (directory / CONTROL).mkdir()
                shutil.copy2(launcher_path(), directory / CONTROL / "init")
                pid = start_init(tree, directory, self._create_cgroup(name))
                agent = self._agent(name)
                agent.open_shell(find_profile(Path("/"), None), cwd=os.fspath(start))
                if self._command:
                    agent.run(f"{{ {self._command}\n}} >{shlex.quote(os.fspath(self._log))} 2>&1 &", None)
            return Instance(id=name, handle={"pid": pid})

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        path = self._own_directory / "images" / snapshot_id
        with explained("snapshot"), UndoStack(f"snapshot {snapshot_id}") as undo:
            undo.on_failure("remove image", lambda: shutil.rmtree(path, ignore_errors=True))
            self._require_alive(instance, "snapshot")
            (path / "criu").mkdir(parents=True)
            with ShellClient(self._directory(instance.id)) as client:
                client.quiesce()
            self._dump(instance, path)
        size = sum(entry.stat().st_size for entry in os.scandir(path / "criu"))
        return Image(id=snapshot_id, handle={"path": os.fspath(path)}, sizes={"memory": size})

    def _dump(self, instance: Instance, path: Path) -> None:
        pid = int(instance.handle["pid"])

        def keep_control_files() -> None:
            _copy_all(self._directory(instance.id) / CONTROL, path / CONTROL)
            refill_terminals(pid)

        work = self._make_work_directory()
        try:
            with WatchRecorder(pid, self._cgroup(instance.id).members()) as watches:
                dump_tree(
                    host_criu(),
                    pid,
                    images=path / "criu",
                    work=work,
                    root=self._tree.root,
                    external=self._tree.names(),
                    watches=watches,
                    on_stopped=lambda: empty_terminals(pid),
                    on_saved=keep_control_files,
                )
                watches.keep(path / "criu", lambda lost: [None] * len(lost))
        except BaseException as error:
            with suppress(ProcessLookupError):  # nobody is left to read it
                refill_terminals(pid)
            if isinstance(error, CannotBeSaved):
                shutil.rmtree(work)
            if isinstance(error, CriuFailed):
                obstacles = find_obstacles(self._cgroup(instance.id))
                reason = f"{'; '.join(obstacles)} [{error.reason}]" if obstacles else error.reason
                raise CriuFailed(reason, error.log_file) from error
            raise
        shutil.rmtree(work)

    def spawn(self, image: Image, branch_id: str) -> Instance:
        name = self._new_name()
        saved = Path(str(image.handle["path"]))
        tree = self._tree
        with explained("restore"), UndoStack(f"restore {image.id}") as undo:
            undo.on_failure("remove", lambda: self._remove(name))
            directory = self._make_directory(name)
            _copy_all(saved / CONTROL, directory / CONTROL)
            work = self._make_work_directory()
            pid = restore_tree(
                host_criu(),
                images=saved / "criu",
                work=work,
                root=directory / "root",
                cgroups=[self._create_cgroup(name).path],
                external=tree.restored_names(directory),
                binds=tree.binds(directory, with_shares=False),
                on_restored=refill_terminals,
            )
            shutil.rmtree(work)
            with ShellClient(directory) as client:
                client.ping()
        return Instance(id=name, handle={"pid": pid})

    def discard(self, instance: Instance) -> None:
        with explained("discard"):
            self._remove(instance.id)

    def delete(self, image: Image) -> None:
        shutil.rmtree(str(image.handle["path"]), ignore_errors=True)

    def close(self) -> None:
        with explained("cleanup"):
            for path in find_cgroup2().glob(f"{self.tag}.*"):
                Cgroup(path).remove()
            shutil.rmtree(self._own_directory, ignore_errors=True)

    def is_alive(self, instance: Instance) -> bool:
        return self._cgroup(instance.id).is_populated()

    def process_id(self, instance: Instance) -> int | None:
        return int(instance.handle["pid"]) if self.is_alive(instance) else None

    # -- work

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        self._require_alive(instance, "exec")
        return self._agent(instance.id).run(command, timeout_s)

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        with explained("copy_in"), host_root() as host, self._files(instance) as root:
            copy_between(host, os.fspath(source), root, path, CopyJob(keeps_links=True), follow=True)

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        with explained("copy_out"), host_root() as host, self._files(instance) as root:
            copy_between(root, path, host, os.fspath(target), CopyJob(keeps_links=True), follow=True)

    # -- internal

    @property
    def _own_directory(self) -> Path:
        return self._work_dir / self.tag

    @property
    def _log(self) -> Path:
        return self._own_directory / "command.log"

    @property
    def _tree(self) -> HostTree:
        return HostTree.load(self._own_directory / "root")

    def _new_name(self) -> str:
        return secrets.token_hex(4)

    def _make_work_directory(self) -> Path:
        """Make a directory for CRIU's log; it is kept if CRIU fails."""
        work = self._own_directory / "work" / secrets.token_hex(4)
        work.mkdir(parents=True)
        return work

    def _directory(self, name: str) -> Path:
        return self._own_directory / "instances" / name

    def _make_directory(self, name: str) -> Path:
        directory = self._directory(name)
        (directory / "root").mkdir(parents=True)
        return directory

    def _cgroup(self, name: str) -> Cgroup:
        return Cgroup(find_cgroup2() / f"{self.tag}.{name}")

    def _create_cgroup(self, name: str) -> Cgroup:
        cgroup = self._cgroup(name)
        cgroup.create()
        return cgroup

    def _agent(self, name: str) -> Agent:
        return Agent(self.name, name, lambda: ShellClient(self._directory(name)))

    def _remove(self, name: str) -> None:
        self._cgroup(name).remove()
        shutil.rmtree(self._directory(name), ignore_errors=True)

    def _require_alive(self, instance: Instance, operation: str) -> None:
        if not self.is_alive(instance):
            raise BackendFailed(
                self.name, operation, f"the processes of {instance.id} have ended", hint="restore a snapshot"
            )

    def _files(self, instance: Instance) -> AbstractContextManager[Root]:
        self._require_alive(instance, "copy")
        return process_root(int(instance.handle["pid"]), self._cgroup(instance.id), "")


def _copy_all(source: Path, target: Path) -> None:
    """A directory with all it holds; there are FIFOs and a socket in it, which only cp knows how to copy."""
    run_tool(("cp", "-a", "--", os.fspath(source), os.fspath(target)), timeout_s=COPY_TIMEOUT_S)
