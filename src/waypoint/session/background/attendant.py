"""Answers what programs inside a session ask of the host: ``waypoint-here snapshot NAME``.

Waypoint has no daemon, but somebody must listen: a session that allows this has one background process, which ends
when the session is removed or suspended. It keeps no state of its own. If it is killed, the next operation starts it
again, and init sends it once more the asks that are pending in a branch.

Like fork(2), a snapshot from the inside returns twice: in the branch that was saved, and in every branch
restored or forked from the checkpoint. There the ask is still pending, and the checkpoint knows its number.
"""

import os
import select
import sys
from contextlib import suppress
from pathlib import Path

from waypoint.errors import Busy, NotFound, WaypointError
from waypoint.kernel.processes.programs import detach
from waypoint.model import BranchRecord, SessionRecord
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.context import Context
from waypoint.session.lifecycle.snapshot import snapshot_branch
from waypoint.shell.client import ShellClient
from waypoint.shell.protocol import Ask, Reply, Request, encode_answer, encode_frame, parse_ask
from waypoint.store.lock import attendant_lock, locked

__all__ = ["await_attendant_end", "ensure_attendant"]

LOOK_AGAIN_MS = 500  # to find branches that were made or replaced
END_TIMEOUT_S = 10.0


def ensure_attendant(context: Context, session: SessionRecord) -> None:
    """Start the session's background process if it is wanted and does not run."""
    branches = context.catalogue.branches(session.id)
    if not session.settings.allow_self or all(branch.is_suspended for branch in branches):
        return
    with suppress(Busy):  # it runs already
        with locked(context.layout.lock(attendant_lock(session.id)), what="attendant", wait=False):
            pass
        detach((sys.executable, "-m", __name__, os.fspath(context.layout.state_dir), session.id))


def await_attendant_end(context: Context, session: SessionRecord) -> None:
    """After the session was removed or suspended: wait until its background process has ended."""
    if not session.settings.allow_self:
        return
    path = context.layout.lock(attendant_lock(session.id))
    with locked(path, what=f"the attendant of session {session.id}", timeout_s=END_TIMEOUT_S):
        path.unlink(missing_ok=True)


class _Attendant:
    def __init__(self, context: Context, session: SessionRecord) -> None:
        self._context = context
        self._session = session
        self._clients: dict[str, ShellClient] = {}  # by incarnation
        self._answers: dict[tuple[str, int], tuple[int, str]] = {}  # by incarnation and ask

    def attend(self) -> None:
        """Answer asks until the session is removed or suspended."""
        while self._is_wanted():
            branches = {record.incarnation: record for record in self._branches()}
            for incarnation in set(self._clients) - set(branches):
                self._clients.pop(incarnation).close()
            self._answers = {key: value for key, value in self._answers.items() if key[0] in branches}
            for record in branches.values():
                if record.incarnation not in self._clients:
                    self._connect(record)
            poll = select.poll()
            for client in self._clients.values():
                poll.register(client.fileno(), select.POLLIN)
            poll.poll(LOOK_AGAIN_MS)
            for incarnation, client in list(self._clients.items()):
                self._serve(branches[incarnation], client)

    def _is_wanted(self) -> bool:
        try:
            return self._context.catalogue.session(self._session.id).is_open and bool(self._branches())
        except NotFound:
            return False

    def _branches(self) -> list[BranchRecord]:
        branches = self._context.catalogue.branches(self._session.id)
        return [branch for branch in branches if not branch.is_suspended]

    def _connect(self, branch: BranchRecord) -> None:
        address = BranchAddress(
            str(self._context.layout.state_dir), self._context.catalogue, self._session.id, branch.name
        )
        try:
            with address.gate():
                if address.incarnation() != branch.incarnation:
                    return
                client = address.connect(branch.incarnation)
            client.ask(encode_frame(Request.ATTEND))
        except (WaypointError, OSError):  # the branch is just ending, or dead: look again later
            return
        self._clients[branch.incarnation] = client

    def _serve(self, branch: BranchRecord, client: ShellClient) -> None:
        try:
            while client.has_frame():
                kind, payload = client.next_frame(None)
                if kind == Reply.ASK:  # the other frames answer our requests
                    self._answer(branch, client, parse_ask(payload))
        except (WaypointError, OSError):  # cut by a checkpoint, or the branch has ended: connect again
            self._clients.pop(branch.incarnation).close()

    def _answer(self, branch: BranchRecord, client: ShellClient, ask: Ask) -> None:
        known = self._answers.get((branch.incarnation, ask.number)) or self._continued(branch, ask)
        if known is None:
            known = self._answers[branch.incarnation, ask.number] = self._obey(branch, ask)
        # A snapshot has cut this connection; the ask comes again on the next one and is answered then.
        client.send(encode_answer(ask.number, *known))

    def _continued(self, branch: BranchRecord, ask: Ask) -> tuple[int, str] | None:
        """The answer in a branch that came from the very checkpoint that this ask has made; None in others."""
        head = self._context.catalogue.branch(self._session.id, branch.name).head
        if head is None or not _is_made_by(self._ask_file(head), ask):
            return None
        name = next(c.name for c in self._context.catalogue.checkpoints(self._session.id) if c.id == head)
        return 0, f"continued from checkpoint '{name}' in branch '{branch.name}'\n"

    def _obey(self, branch: BranchRecord, ask: Ask) -> tuple[int, str]:
        if ask.verb != "snapshot":
            return 2, f"waypoint-here: unknown verb '{ask.verb}'\n"
        try:
            checkpoint = snapshot_branch(self._context, self._session, branch.name, ask.argument or None)
        except WaypointError as error:
            return error.exit_code, f"waypoint-here: {error}\n"
        self._ask_file(checkpoint.id).write_text(str(ask.number))
        return 0, f"saved as checkpoint '{checkpoint.name}'\n"

    def _ask_file(self, checkpoint_id: str) -> Path:
        """The file that says which ask has made a checkpoint."""
        return self._context.layout.checkpoint(checkpoint_id) / "ask"


def _is_made_by(ask_file: Path, ask: Ask) -> bool:
    try:
        return ask_file.read_text() == str(ask.number)
    except FileNotFoundError:
        return False


def main(state_dir: str, session_id: str) -> None:
    context = Context(Path(state_dir))
    try:
        path = context.layout.lock(attendant_lock(session_id))
        context.catalogue.session(session_id)  # a lock file is made only for what exists
        with locked(path, what="attendant", wait=False):
            try:
                session = context.catalogue.session(session_id)
            except NotFound:
                # The session was removed meanwhile, with its locks; ours re-created the file, so delete it.
                path.unlink(missing_ok=True)
                raise
            _Attendant(context, session).attend()
            context.catalogue.close()
            os._exit(0)  # still holding the lock: whoever waits for it finds that we have ended
    except (Busy, NotFound):  # another one attends, or there is nothing left to attend to
        return
    finally:
        context.catalogue.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
