"""How clients reach a branch: by name, whatever happens to it meanwhile.

A checkpoint makes init drop every connection; its clients wait at the gate, connect again and continue where they
were. When the branch was *replaced* meanwhile (restored), what they followed was lost with the old state.
"""

from __future__ import annotations

from os.path import exists

from waypoint.errors import BranchReplaced, Broken, NotFound
from waypoint.names import parse_name
from waypoint.shell.client import ShellClient
from waypoint.store.live import LiveCatalogue, limits_path, lock_path, root_path
from waypoint.store.lock import gate_lock, locked, terminal_lock

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["BranchAddress"]


class BranchAddress:
    def __init__(self, state_dir: str, catalogue: LiveCatalogue, session_id: str, branch: str) -> None:
        self.state_dir = state_dir
        self.catalogue = catalogue
        self.session_id = session_id
        self.branch = branch
        self.where = f"branch {branch!r} of session {session_id}"

    def incarnation(self) -> str:
        return self.catalogue.incarnation(self.session_id, self.branch)

    def terminal_lock(
        self, terminal: str, *, wait: bool, timeout_s: float | None
    ) -> AbstractContextManager[object]:
        """To be held while a command runs in the terminal's shell."""
        parse_name("terminal", terminal)
        self.incarnation()  # a lock file is made only for what exists
        path = lock_path(self.state_dir, terminal_lock(self.session_id, self.branch, terminal))
        hint = "leave out --no-wait to wait for it" if timeout_s is None else "another command runs in it"
        return locked(path, what=self.where, wait=wait, timeout_s=timeout_s, hint=hint)

    def gate(self) -> AbstractContextManager[object]:
        """To be held while connecting, so that no checkpoint starts meanwhile."""
        self.incarnation()  # as above
        name = gate_lock(self.session_id, self.branch)
        return locked(lock_path(self.state_dir, name), what=self.where, shared=True)

    def connect(self, incarnation: str) -> ShellClient:
        """Connect to init; the gate is held."""
        try:
            return ShellClient(root_path(self.state_dir, incarnation))
        except Broken as error:
            raise Broken(f"{self.where}: {error}", hint=error.hint) from error

    def reconnect(self, incarnation: str, first: bytes = b"") -> ShellClient:
        """Connect to the same incarnation again and send the request ``first``.

        While the gate is held no checkpoint can cut the connection before init has it. Raises BranchReplaced
        if the incarnation is no longer the branch's.
        """
        try:
            with self.gate():
                if self.incarnation() == incarnation:
                    client = self.connect(incarnation)
                    if first:
                        client.send(first)
                    return client
        except NotFound as error:
            raise self._replaced("removed") from error
        raise self._replaced("restored")

    def has_limits(self, incarnation: str) -> bool:
        """Whether the branch has limits that a command can reach."""
        return exists(limits_path(self.state_dir, incarnation))

    def record(self, kind: str, total_ms: float, phases_ms: Mapping[str, float]) -> None:
        """Keep in the catalogue how long something took."""
        self.catalogue.record(kind, self.session_id, self.branch, total_ms, phases_ms)

    def ask(self, question: Callable[[ShellClient], T]) -> T:
        """Connect, ask init something that it answers at once, and disconnect."""
        with self.gate(), self.connect(self.incarnation()) as client:
            return question(client)

    def _replaced(self, how: str) -> BranchReplaced:
        what = f"{self.where} was {how} while the command ran"
        return BranchReplaced(what, hint="run it again if it is still wanted")
