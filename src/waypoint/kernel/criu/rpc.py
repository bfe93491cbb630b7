"""CRIU over its RPC: a worker serves one request, to save a process tree or to restore one.

The worker (``criu swrk``) answers on a socket pair and notifies us on the way. Three of its notifications matter. At
``query-ext-files`` every task is stopped and nothing is saved yet. At ``post-dump`` they are still stopped and all that
CRIU adds to the files (links to deleted files) is there: the moment to save the files, so that files and memory are one
point. At ``post-restore`` all is restored and nothing runs yet.

Read next: :mod:`waypoint.kernel.criu.branch`.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from waypoint.errors import EngineError
from waypoint.kernel.criu.images import DumpStatistics, read_dump_statistics
from waypoint.kernel.criu.log import CriuFailed, digest_log
from waypoint.kernel.criu.program import Criu
from waypoint.kernel.criu.protobuf import Field, decode, encode
from waypoint.kernel.processes.programs import Popen, TimeoutExpired, await_end

__all__ = ["Notified", "Opt", "Worker"]

ANSWER_TIMEOUT_S = 600.0  # writing tens of gigabytes of memory takes minutes; silence beyond this is a hang
EXIT_TIMEOUT_S = 30.0
GHOST_LIMIT_BYTES = 512 << 20  # deleted but open files up to this size are saved with the processes
MESSAGE_BYTES_MAX = 1 << 16

Notified = Mapping[str, Callable[[int], None]]
"""What to do at a notification, by its name; called with the pid of the tree's root."""

# Field numbers of CRIU's rpc.proto.
_REQ_TYPE, _REQ_OPTS, _REQ_NOTIFY_SUCCESS = 1, 2, 3
_RESP_TYPE, _RESP_SUCCESS, _RESP_RESTORE, _RESP_NOTIFY = 1, 2, 4, 5
_NOTIFY_SCRIPT, _NOTIFY_PID = 1, 2
_TYPE_DUMP, _TYPE_RESTORE, _TYPE_NOTIFY = 1, 2, 6
_CGROUPS_IGNORE, _NETWORK_LOCK_SKIP = 0, 3
_LOG_ERRORS_AND_WARNINGS = 2


class Opt:
    """Field numbers of a request's options."""

    IMAGES_FD, PID, LEAVE_RUNNING, EXT_UNIX_SK, TCP_ESTABLISHED = 1, 2, 3, 4, 5
    SHELL_JOB, FILE_LOCKS, LOG_LEVEL, LOG_FILE, NOTIFY_SCRIPTS, ROOT = 7, 8, 9, 10, 12, 13
    WORK_FD, LINK_REMAP, INHERIT, CGROUPS_MODE, GHOST_LIMIT, EXTERNAL = 17, 18, 27, 34, 35, 37
    SKIP_IN_FLIGHT, TCP_CLOSE, NETWORK_LOCK = 46, 52, 64


class Worker:
    """A context manager: one process of CRIU, with the directories that it works in. It serves one request.

    ``enter`` are words for our launcher, ``env`` variables for native/preload. With a ``root`` the tree has a root of
    its own. The descriptors in ``hold`` stay open until CRIU has ended, even if we die.
    """

    def __init__(
        self,
        criu: Criu,
        *,
        images: Path,
        work: Path,
        root: Path | None = None,
        enter: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        hold: Sequence[int] = (),
    ) -> None:
        self._criu = criu
        self._images = images
        self._work = work
        self._root = root
        self._enter = enter
        self._env = env or {}
        self._hold = hold
        self._log_file = work / "criu.log"
        self._out_file = work / "criu.out"

    def __enter__(self) -> "Worker":
        with ExitStack() as stack:
            self._images_fd = _open_directory(self._images, stack)
            self._work_fd = _open_directory(self._work, stack)
            self._peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(self._peer.close)
            with theirs, open(self._out_file, "wb") as out:
                self._process = self._criu.start_worker(
                    theirs.fileno(),
                    enter=self._enter,
                    in_own_mounts=self._root is not None,
                    env=self._env,
                    hold=self._hold,
                    out=out,
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def dump(self, options: Sequence[Field], on_notify: Notified) -> DumpStatistics:
        """Save a tree. However this ends, its tasks run again, unless the options say otherwise."""
        self._request(_TYPE_DUMP, options, on_notify)
        return read_dump_statistics(self._work / "stats-dump")

    def restore(self, options: Sequence[Field], on_notify: Notified) -> int:
        """Restore a tree; return the pid of its root."""
        restored = self._request(_TYPE_RESTORE, options, on_notify).get(_RESP_RESTORE, b"")
        return int(decode(restored).get(1, 0)) if isinstance(restored, bytes) else 0

    def _request(self, kind: int, options: Sequence[Field], on_notify: Notified) -> dict[int, int | bytes]:
        request = encode([(_REQ_TYPE, kind), (_REQ_OPTS, encode([*self._options(), *options]))])
        self._peer.settimeout(ANSWER_TIMEOUT_S)
        try:
            answer = self._converse(request, on_notify)
        except (ConnectionError, EOFError, TimeoutError) as error:
            raise self._failure(str(error)) from error
        finally:
            # A worker that loses its peer undoes what it began and lets the tasks run.
            self._peer.close()
            _await_end(self._process, may_be_killed=kind == _TYPE_RESTORE)
        if not answer.get(_RESP_SUCCESS):
            raise self._failure("no reason given")
        return answer

    def _options(self) -> list[Field]:
        """The options of every request."""
        return [
            *((Opt.IMAGES_FD, self._images_fd), (Opt.WORK_FD, self._work_fd)),
            *(() if self._root is None else ((Opt.ROOT, os.fspath(self._root)),)),
            *((Opt.LOG_LEVEL, _LOG_ERRORS_AND_WARNINGS), (Opt.LOG_FILE, self._log_file.name)),
            *((Opt.EXT_UNIX_SK, True), (Opt.TCP_ESTABLISHED, True), (Opt.FILE_LOCKS, True)),
            *((Opt.LINK_REMAP, True), (Opt.GHOST_LIMIT, GHOST_LIMIT_BYTES)),
            *((Opt.CGROUPS_MODE, _CGROUPS_IGNORE), (Opt.NETWORK_LOCK, _NETWORK_LOCK_SKIP)),
            (Opt.NOTIFY_SCRIPTS, True),
        ]

    def _converse(self, request: bytes, on_notify: Notified) -> dict[int, int | bytes]:
        """Send ``request``, answer notifications, return the final answer.

        An error in ``on_notify`` makes CRIU abort (the tasks run on) and is raised once CRIU has answered.
        """
        self._peer.sendall(request)
        failure: Exception | None = None
        while True:
            raw = self._peer.recv(MESSAGE_BYTES_MAX)
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
            self._peer.sendall(encode([(_REQ_TYPE, _TYPE_NOTIFY), (_REQ_NOTIFY_SUCCESS, failure is None)]))
        if failure is not None:
            raise failure
        return answer

    def _failure(self, fallback: str) -> CriuFailed:
        return CriuFailed(digest_log(self._log_file, self._out_file) or fallback, self._log_file)


def _open_directory(path: Path, stack: ExitStack) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _await_end(worker: "Popen[bytes]", *, may_be_killed: bool) -> None:
    """CRIU ends by itself once it has answered or lost us. One that does not is stuck in the kernel."""
    try:
        await_end(worker, EXIT_TIMEOUT_S)
    except TimeoutExpired as error:
        if may_be_killed:
            worker.kill()
            worker.wait()
            return
        # Killing it could leave its code in the processes it has stopped.
        raise EngineError(
            f"CRIU (process {worker.pid}) does not end; the branch may still be stopped",
            hint=f"look at it: cat /proc/{worker.pid}/stack; kill it only if nothing else helps",
        ) from error
