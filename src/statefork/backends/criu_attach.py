"""CRIU on a process tree that someone else has started, in the namespaces it was started in.

A snapshot leaves it running. A restore ends the tree and restores the saved one with the same pids, so there is never
more than one. Files are not part of it, nor is a shell: each command is a new process outside the tree.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from statefork.arguments import as_number
from statefork.backend import Availability, Backend, Capabilities, Command, CommandResult, Image, Instance
from statefork.backends.processes.criu_host import explained, host_criu, probe_criu
from statefork.backends.processes.private_directory import make_private_directory
from statefork.errors import BackendFailed, CommandTimedOut, Unsupported
from waypoint.kernel.cgroup.group import find_cgroup2
from waypoint.kernel.copy.confined import Root, host_root
from waypoint.kernel.copy.file_tree import CopyJob
from waypoint.kernel.criu.foreign import dump_foreign_tree, restore_foreign_tree
from waypoint.kernel.criu.images import read_pids
from waypoint.kernel.criu.log import CriuFailed
from waypoint.kernel.processes.process_tree import (
    Process,
    end_tree,
    read_process,
    shared_terminal,
    tree_of,
    wait_until_free,
)
from waypoint.kernel.processes.programs import TimeoutExpired, spawn
from waypoint.kernel.syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS
from waypoint.kernel.undo import UndoStack
from waypoint.session.branch_files import copy_between

__all__ = ["CriuAttachBackend"]


class CriuAttachBackend(Backend):
    """``target_pid`` is the root of the tree; images are kept in ``work_dir``, or in the environment's own directory."""

    name = "criu"
    path_options = ("work_dir",)
    capabilities = Capabilities(memory=True, processes=True, sockets=True)

    def __init__(self, home: Path, tag: str, *, target_pid: int, work_dir: str | Path | None = None) -> None:
        super().__init__(home, tag)
        self._pid = as_number("target_pid", target_pid)
        self._work_dir = None if work_dir is None else Path(work_dir).absolute()
        self._own_directory = home if self._work_dir is None else self._work_dir / tag

    @classmethod
    def probe(cls) -> Availability:
        return probe_criu()

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> str | None:
        return str(options["target_pid"])

    def is_still(self, instance: Instance) -> bool:
        """Another process may have the pid by now."""
        process = read_process(int(instance.id))
        return process is not None and _is_of(process, instance)

    # -- life

    def start(self, branch_id: str) -> Instance:
        raise Unsupported(self.name, "attach to a process by starting one", hint="use criu_build")

    def attach(self) -> Instance:
        with explained("attach"):
            self._make_own_directory()
            return self._instance(self._living("attach"))

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        path = self._own_directory / "images" / snapshot_id
        with explained("snapshot"), UndoStack(f"snapshot {snapshot_id}") as undo:
            undo.on_failure("remove image", lambda: shutil.rmtree(path, ignore_errors=True))
            self._require(instance, "snapshot")
            self._make_own_directory()
            tree = tree_of(self._pid)
            shared = shared_terminal(tree)
            if shared is not None:
                raise BackendFailed(
                    self.name,
                    "snapshot",
                    f"process {shared.pid} ({shared.name}) uses a terminal that does not belong to the tree",
                    hint="start it without a terminal: setsid COMMAND </dev/null >LOG 2>&1",
                )
            images, work = path / "criu", path / "work"
            images.mkdir(parents=True, mode=0o700)
            work.mkdir()
            dump_foreign_tree(host_criu(), self._pid, images=images, work=work, leave_running=True)
        size = sum(entry.stat().st_size for entry in os.scandir(images))
        handle = {"path": os.fspath(path), "cgroup": _cgroup_of(self._pid)}
        return Image(id=snapshot_id, handle=handle, sizes={"memory": size})

    def spawn(self, image: Image, branch_id: str) -> Instance:
        """There is one tree only: its pids must be free."""
        with explained("restore"):
            return self._restore_tree(Path(str(image.handle["path"])), str(image.handle["cgroup"]))

    def replace(self, instance: Instance, image: Image, branch_id: str) -> Instance:
        """End what runs first; restore that if the image cannot be. Another process with the pid is left alone."""
        fallback = self._own_directory / "fallback"
        with explained("restore"), UndoStack(f"restore {image.id}") as undo:
            undo.always("remove fallback", lambda: shutil.rmtree(fallback, ignore_errors=True))
            shutil.rmtree(fallback, ignore_errors=True)  # of a call that was killed
            if self.is_alive(instance):
                if self._save_fallback(fallback):
                    undo.on_failure("restore what ran", lambda: self._restore_tree(fallback, None))
                if self.is_alive(instance):  # it could not be saved, or is about to die
                    end_tree(self._pid)
            return self.spawn(image, branch_id)

    def discard(self, instance: Instance) -> None:
        """The tree is not ours."""

    def delete(self, image: Image) -> None:
        shutil.rmtree(str(image.handle["path"]), ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self._own_directory / "images", ignore_errors=True)
        self._note.unlink(missing_ok=True)
        with suppress(
            OSError
        ):  # it is the environment's own directory, which is removed later, or it is not empty
            self._own_directory.rmdir()

    def is_alive(self, instance: Instance) -> bool:
        process = read_process(self._pid)
        return process is not None and process.is_alive and _is_of(process, instance)

    def process_id(self, instance: Instance) -> int | None:
        return self._pid if self.is_alive(instance) else None

    # -- work

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        """Run a new process with the namespaces, root and directory of the tree's first one."""
        self._require(instance, "exec")
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        enter = ("nsenter", "--target", str(self._pid), "--all", "--root", "--wd", "--")
        with explained("exec"), tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = spawn((*enter, *argv), stdout=out, stderr=err)
            try:
                status = process.wait(timeout_s)
            except BaseException as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, TimeoutExpired):
                    raise CommandTimedOut(timeout_s or 0.0, _text(out)) from error
                raise
            return CommandResult(
                exit_code=status if status >= 0 else 128 - status, output=_text(out), errors=_text(err)
            )

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        with explained("copy_in"), host_root() as host, self._files(instance) as root:
            copy_between(host, os.fspath(source), root, path, CopyJob(keeps_links=True), follow=True)

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        with explained("copy_out"), host_root() as host, self._files(instance) as root:
            copy_between(root, path, host, os.fspath(target), CopyJob(keeps_links=True), follow=True)

    # -- internal

    def _make_own_directory(self) -> None:
        if self._work_dir is not None:
            make_private_directory(self._work_dir, self.tag, option="work_dir")

    def _living(self, operation: str) -> Process:
        process = read_process(self._pid)
        if process is None or not process.is_alive:
            raise BackendFailed(self.name, operation, f"there is no process {self._pid}")
        return process

    def _require(self, instance: Instance, operation: str) -> None:
        if not self.is_alive(instance):
            raise BackendFailed(
                self.name, operation, f"process {self._pid} has ended", hint="restore a snapshot"
            )

    def _save_fallback(self, path: Path) -> bool:
        """Save what runs and end it, so that it can be restored if the image cannot.

        What cannot be saved keeps running: the caller ends it, and nothing can restore it.
        """
        for part in ("criu", "work"):
            (path / part).mkdir(parents=True, mode=0o700)
        try:
            dump_foreign_tree(
                host_criu(), self._pid, images=path / "criu", work=path / "work", leave_running=False
            )
        except CriuFailed:
            return False
        return True

    def _require_free(self, pids: list[int]) -> None:
        left = wait_until_free(pids)
        if left is None:
            return
        if left.is_alive:
            reason, hint = f"pid {left.pid} is in use ({left.name})", "end it, or restore another snapshot"
        else:
            parent = read_process(left.parent)
            name = parent.name if parent else "ended"
            reason = f"process {left.pid} is dead, but its parent, process {left.parent} ({name}), does not reap it"
            hint = "let the parent wait for it, or end the parent"
        raise BackendFailed(self.name, "restore", reason, hint=hint)

    def _restore_tree(self, path: Path, cgroup: str | None) -> Instance:
        self._require_free(read_pids(path / "criu"))
        group = None if cgroup is None else Path(cgroup)
        with UndoStack("restore of a tree") as undo:
            # The pid was free: the process that has it now is the restored one.
            undo.on_failure("end the restored tree", lambda: end_tree(self._pid))
            pid = restore_foreign_tree(
                host_criu(),
                images=path / "criu",
                work=path / "work",
                cgroup=group if group is not None and group.is_dir() else None,
            )
            if pid != self._pid:
                raise BackendFailed(
                    self.name, "restore", f"it was restored as process {pid}, not {self._pid}"
                )
            process = self._living("restore")
            self._note.write_text(str(process.started))
        return self._instance(process)

    @property
    def _note(self) -> Path:
        """Holds when the tree that was restored last began, also one restored because a restore had failed."""
        return self._own_directory / "came-back"

    def _instance(self, process: Process) -> Instance:
        return Instance(
            id=str(process.pid), handle={"started": process.started, "note": os.fspath(self._note)}
        )

    @contextmanager
    def _files(self, instance: Instance) -> Iterator[Root]:
        self._require(instance, "copy")
        fd = os.open(f"/proc/{self._pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield Root(fd, "", RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
        finally:
            os.close(fd)


def _is_of(process: Process, instance: Instance) -> bool:
    """Whether the process is the instance's own: the one it began with, or the one that was restored in its place."""
    known = {str(instance.handle["started"])}
    with suppress(KeyError, FileNotFoundError):  # nothing was restored yet
        known.add(Path(str(instance.handle["note"])).read_text())
    return str(process.started) in known


def _cgroup_of(pid: int) -> str:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return os.fspath(find_cgroup2() / line[3:].lstrip("/"))
    return ""


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")
