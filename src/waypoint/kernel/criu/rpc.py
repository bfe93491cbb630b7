"""CRIU over its RPC: save a process tree, bring one back.

One worker (``criu swrk``) serves one request on a socket pair and notifies us on the way. Three of its
notifications matter. At ``query-ext-files`` every task is stopped and nothing is saved yet. At ``post-dump`` they
are still stopped and all that CRIU adds to the files (links to deleted files) is there: the moment to save
the files, so that files and memory are one point. At ``post-restore`` all is back and nothing runs yet.
At a restore CRIU itself runs in the branch's cgroup, so all it makes is born there: whatever happens to
us, killing that cgroup removes a half-restored tree.

The worker runs inside the branch's network namespace. CRIU then leaves the network alone; letting it
dump or restore the namespace costs tens of milliseconds more.

Read next: :mod:`waypoint.engine.checkpoint` and :mod:`waypoint.engine.restore`.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import EngineError
from waypoint.kernel.criu.images import (
    DumpStatistics,
    mend_controlling_terminals,
    mend_foreground_groups,
    mend_foreign_terminals,
    read_dump_statistics,
    terminals_of_init,
)
from waypoint.kernel.criu.protobuf import Field, decode, encode
from waypoint.kernel.processes.programs import CLEAN_ENV, Popen, TimeoutExpired, run_tool, spawn

__all__ = ["Criu", "CriuFailed", "bind_options", "digest_log"]

ANSWER_TIMEOUT_S = 600.0  # writing tens of gigabytes of memory takes minutes; silence beyond this is a hang
EXIT_TIMEOUT_S = 30.0
CHECK_TIMEOUT_S = 60.0
GHOST_LIMIT_BYTES = 512 << 20  # deleted but open files up to this size are saved with the processes
MESSAGE_BYTES_MAX = 1 << 16
ERRORS_QUOTED = 2  # the first is the cause, later ones are its consequences

# Field numbers of CRIU's rpc.proto.
_REQ_TYPE, _REQ_OPTS, _REQ_NOTIFY_SUCCESS = 1, 2, 3
_RESP_TYPE, _RESP_SUCCESS, _RESP_RESTORE, _RESP_NOTIFY = 1, 2, 4, 5
_NOTIFY_SCRIPT, _NOTIFY_PID = 1, 2
_TYPE_DUMP, _TYPE_RESTORE, _TYPE_NOTIFY = 1, 2, 6
_OPT_IMAGES_FD, _OPT_PID, _OPT_LEAVE_RUNNING, _OPT_EXT_UNIX_SK, _OPT_TCP_ESTABLISHED = 1, 2, 3, 4, 5
_OPT_SHELL_JOB, _OPT_FILE_LOCKS, _OPT_LOG_LEVEL, _OPT_LOG_FILE, _OPT_NOTIFY_SCRIPTS, _OPT_ROOT = (
    7,
    8,
    9,
    10,
    12,
    13,
)
_OPT_INHERIT = 27
_OPT_WORK_FD, _OPT_LINK_REMAP, _OPT_CGROUPS_MODE, _OPT_GHOST_LIMIT, _OPT_EXTERNAL = 17, 18, 34, 35, 37
_OPT_SKIP_IN_FLIGHT, _OPT_TCP_CLOSE, _OPT_NETWORK_LOCK = 46, 52, 64
_CGROUPS_IGNORE, _NETWORK_LOCK_SKIP = 0, 3
_LOG_ERRORS_AND_WARNINGS = 2

_PRIVATE_RUN = "WAYPOINT_PRIVATE_RUN"  # native/preload/roots.c
_TERMINALS = "WAYPOINT_TERMINALS"  # native/preload/terminals.c

_LOG_ERROR = re.compile(r"^(?:\([\d.]+\))?\s*(?:\d+:\s*)?Error \([^)]*\): (.*)$")
# Said at every start where root lacks CAP_SYS_RESOURCE; CRIU goes on.
_HARMLESS = "RLIMIT_NOFILE"


class CriuFailed(Exception):
    """CRIU refused or failed; ``reason`` is the digest of its log."""

    def __init__(self, reason: str, log_file: Path) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log_file = log_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Criu:
    """How to start CRIU on this host.

    ``launcher`` is our static helper, which enters namespaces for it; ``preload`` is loaded into it
    (native/preload); ``kdat`` holds what CRIU found out about this kernel, so that it does not probe it at
    every start.
    """

    command: tuple[str, ...]
    launcher: Path
    preload: Path
    kdat: Path

    def is_warm(self) -> bool:
        """Whether what CRIU found out about this kernel is kept; a reboot makes it worthless."""
        return self.kdat.exists()

    def warm(self) -> None:
        """Let CRIU probe the kernel once and keep the result; without it every start costs ~65 ms more."""
        for stale in self.kdat.parent.glob(f"*{self.kdat.suffix}"):
            stale.unlink(missing_ok=True)
        run_tool(
            (
                *(
                    os.fspath(self.launcher),
                    "enter",
                    "--net",
                    "new",
                    "--save-kdat",
                    os.fspath(self.kdat),
                    "--",
                ),
                *(*self.command, "check"),
            ),
            timeout_s=CHECK_TIMEOUT_S,
        )

    def dump(
        self,
        pid: int,
        *,
        images: Path,
        work: Path,
        root: Path,
        external: Sequence[str] = (),
        hold: Sequence[int] = (),
        on_stopped: Callable[[], None],
        on_saved: Callable[[], None],
    ) -> DumpStatistics:
        """Save the tree of ``pid`` into ``images`` and let it run on.

        ``on_stopped`` is called when every task is stopped, ``on_saved`` when the processes are saved and before
        any runs again. The descriptors in ``hold`` stay open until CRIU has ended, even if we die. However this
        ends, the tree runs again.
        """
        # A connection that its server has not accepted yet cannot be saved: it is in no checkpoint.
        fields: list[Field] = [(_OPT_PID, pid), (_OPT_LEAVE_RUNNING, True), (_OPT_SKIP_IN_FLIGHT, True)]
        _, statistics = self._call(
            _TYPE_DUMP,
            fields,
            images=images,
            work=work,
            root=root,
            external=external,
            enter_options=("--net", f"/proc/{pid}/ns/net"),
            hold=hold,
            on_notify={"query-ext-files": lambda _pid: on_stopped(), "post-dump": lambda _pid: on_saved()},
        )
        mend_foreground_groups(images)
        mend_controlling_terminals(images)
        return statistics

    def restore(
        self,
        *,
        images: Path,
        work: Path,
        root: Path,
        cgroups: Sequence[Path],
        network: int | None = None,
        close_connections: bool = False,
        external: Sequence[str] = (),
        binds: Sequence[tuple[Path, Path]] = (),
        on_begin: Callable[[], None] | None = None,
        on_restored: Callable[[int], None],
    ) -> int:
        """Bring the tree in ``images`` back to life on ``root``, in that network namespace and in the ``cgroups``,
        in which CRIU itself works meanwhile; return its pid.

        ``root`` must be a mount; ``binds``, each a directory and where it is to be seen, are made for CRIU alone.
        Without a network namespace it gets a new one. With ``close_connections``, no TCP connection comes back: its
        descriptor is there, and closed. ``on_begin`` is called before anything is made, ``on_restored`` with the pid
        before any task runs.
        """
        pid, _ = self._call(
            _TYPE_RESTORE,
            [(_OPT_TCP_CLOSE, True)] if close_connections else [],
            images=images,
            work=work,
            root=root,
            external=external,
            enter_options=(
                *("--net", "new" if network is None else f"/proc/self/fd/{network}"),
                *(f"--cgroup={group}" for group in cgroups),
                *bind_options(binds),
            ),
            hold=() if network is None else (network,),
            env={_TERMINALS: terminals_of_init(images)},
            on_notify={
                "pre-restore": lambda _pid: None if on_begin is None else on_begin(),
                "post-restore": on_restored,
            },
        )
        return pid

    def dump_foreign(
        self,
        pid: int,
        *,
        images: Path,
        work: Path,
        leave_running: bool,
        external: Sequence[str] = (),
        hold: Sequence[int] = (),
        on_saved: Callable[[], None] | None = None,
    ) -> DumpStatistics:
        """Save a tree that lives in our own namespaces; it runs on, or it is killed once it is saved.

        ``external`` names what restore_foreign() is given in its place; ``hold`` and ``on_saved`` are as for dump().
        """
        _, statistics = self._call(
            _TYPE_DUMP,
            [(_OPT_PID, pid), (_OPT_LEAVE_RUNNING, leave_running), (_OPT_SHELL_JOB, True)],
            images=images,
            work=work,
            root=None,
            external=external,
            enter_options=("--net", f"/proc/{pid}/ns/net"),
            hold=hold,
            on_notify={} if on_saved is None else {"post-dump": lambda _pid: on_saved()},
        )
        mend_foreign_terminals(images)
        return statistics

    def restore_foreign(
        self,
        *,
        images: Path,
        work: Path,
        cgroup: Path | None,
        inherited: Mapping[str, int] | None = None,
    ) -> int:
        """Bring such a tree back, with the same pids, which must be free; return that of its root.

        ``inherited`` are descriptors for what was external when it was saved.
        """
        given = dict(inherited or {})
        pid, _ = self._call(
            _TYPE_RESTORE,
            [
                (_OPT_SHELL_JOB, True),
                *((_OPT_INHERIT, encode([(1, key), (2, fd)])) for key, fd in given.items()),
            ],
            images=images,
            work=work,
            root=None,
            external=(),
            enter_options=() if cgroup is None else ("--cgroup", os.fspath(cgroup)),
            hold=tuple(given.values()),
            on_notify={},
        )
        return pid

    def _call(
        self,
        kind: int,
        fields: Sequence[Field],
        *,
        images: Path,
        work: Path,
        root: Path | None,
        external: Sequence[str],
        enter_options: Sequence[str],
        hold: Sequence[int],
        env: Mapping[str, str] | None = None,
        on_notify: Mapping[str, Callable[[int], None]],
    ) -> tuple[int, DumpStatistics]:
        log_file = work / "criu.log"
        images_fd = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            work_fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            os.close(images_fd)
            raise
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # The place for what CRIU knows of the kernel takes a mount namespace, and without a root CRIU has to
            # be in that of the tree.
            kdat = () if root is None else ("--kdat", os.fspath(self.kdat))
            command = (
                os.fspath(self.launcher),
                *("enter", *enter_options, *kdat, "--"),
                *(*self.command, "swrk", str(theirs.fileno())),
            )
            with open(work / "criu.out", "wb") as out:
                environment = {**CLEAN_ENV, "LD_PRELOAD": os.fspath(self.preload), **(env or {})}
                if kdat:
                    environment[_PRIVATE_RUN] = "1"
                fds = (theirs.fileno(), *hold)
                worker = spawn(command, stdout=out, stderr=out, env=environment, pass_fds=fds)
            theirs.close()
            options = encode(
                [
                    *((_OPT_IMAGES_FD, images_fd), (_OPT_WORK_FD, work_fd)),
                    *(() if root is None else ((_OPT_ROOT, os.fspath(root)),)),
                    *((_OPT_LOG_LEVEL, _LOG_ERRORS_AND_WARNINGS), (_OPT_LOG_FILE, log_file.name)),
                    *((_OPT_EXT_UNIX_SK, True), (_OPT_TCP_ESTABLISHED, True), (_OPT_FILE_LOCKS, True)),
                    *((_OPT_LINK_REMAP, True), (_OPT_GHOST_LIMIT, GHOST_LIMIT_BYTES)),
                    *((_OPT_CGROUPS_MODE, _CGROUPS_IGNORE), (_OPT_NETWORK_LOCK, _NETWORK_LOCK_SKIP)),
                    *((_OPT_EXTERNAL, mount) for mount in external),
                    (_OPT_NOTIFY_SCRIPTS, True),
                    *fields,
                ]
            )
            ours.settimeout(ANSWER_TIMEOUT_S)
            try:
                answer = _converse(ours, encode([(_REQ_TYPE, kind), (_REQ_OPTS, options)]), on_notify)
            except (ConnectionError, EOFError, TimeoutError) as error:
                raise CriuFailed(digest_log(log_file, work / "criu.out") or str(error), log_file) from error
            finally:
                # A worker that loses its peer undoes what it began and lets the tasks run.
                ours.close()
                _await_end(worker, kind)
        finally:
            ours.close()
            theirs.close()
            os.close(images_fd)
            os.close(work_fd)
        if not answer.get(_RESP_SUCCESS):
            raise CriuFailed(digest_log(log_file, work / "criu.out") or "no reason given", log_file)
        restored = answer.get(_RESP_RESTORE, b"")
        pid = decode(restored).get(1, 0) if isinstance(restored, bytes) else 0
        return int(pid), read_dump_statistics(work / "stats-dump") if kind == _TYPE_DUMP else _NO_STATISTICS


def bind_options(binds: Sequence[tuple[Path, Path]]) -> list[str]:
    """How our launcher is told to make mounts that only the program sees that it starts."""
    words: list[str] = []
    for source, target in binds:
        words += ["--bind", os.fspath(source), "--to", os.fspath(target)]
    return words


_NO_STATISTICS = DumpStatistics(pause_ms=0.0)


def _await_end(worker: "Popen[bytes]", kind: int) -> None:
    """CRIU ends by itself once it has answered or lost us. One that does not is stuck in the kernel."""
    try:
        worker.wait(EXIT_TIMEOUT_S)
    except TimeoutExpired as error:
        if kind == _TYPE_RESTORE:
            worker.kill()
            worker.wait()
            return
        # Killing it could leave its code in the processes it has stopped.
        raise EngineError(
            f"CRIU (process {worker.pid}) does not end; the branch may still be stopped",
            hint=f"look at it: cat /proc/{worker.pid}/stack; kill it only if nothing else helps",
        ) from error


def _converse(
    peer: socket.socket, request: bytes, on_notify: Mapping[str, Callable[[int], None]]
) -> dict[int, int | bytes]:
    """Send ``request``, answer notifications, return the final answer.

    An error in ``on_notify`` makes CRIU abort (the tasks run on) and is raised once CRIU has said so.
    """
    peer.sendall(request)
    failure: Exception | None = None
    while True:
        raw = peer.recv(MESSAGE_BYTES_MAX)
        if not raw:
            raise EOFError("CRIU ended without an answer")
        answer = decode(raw)
        if answer.get(_RESP_TYPE) != _TYPE_NOTIFY:
            break
        notify = answer.get(_RESP_NOTIFY, b"")
        fields = decode(notify) if isinstance(notify, bytes) else {}
        script = fields.get(_NOTIFY_SCRIPT, b"")
        try:
            action = on_notify.get(script.decode() if isinstance(script, bytes) else "")
            if action is not None:
                action(int(fields.get(_NOTIFY_PID, 0)))
        except Exception as error:  # noqa: BLE001 - raised below, after CRIU let the tasks go
            failure = error
        peer.sendall(encode([(_REQ_TYPE, _TYPE_NOTIFY), (_REQ_NOTIFY_SUCCESS, failure is None)]))
    if failure is not None:
        raise failure
    return answer


def digest_log(log_file: Path, out_file: Path) -> str:
    """The reason of a failure in one line, from the errors in CRIU's log."""
    errors = []
    if log_file.exists():
        for line in log_file.read_text(errors="replace").splitlines():
            match = _LOG_ERROR.match(line)
            if match and _HARMLESS not in match[1]:
                errors.append(match[1])
    distinct = list(dict.fromkeys(errors))
    return "; ".join(distinct[:ERRORS_QUOTED]) or out_file.read_text(errors="replace").strip()
