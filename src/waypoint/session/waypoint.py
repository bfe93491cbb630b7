"""The way in: open a state directory, create and find sessions."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from waypoint.config import config_files, find_state_dir
from waypoint.errors import Busy
from waypoint.model import SessionSettings
from waypoint.names import parse_name
from waypoint.session.attendant import ensure_attendant
from waypoint.session.context import Context
from waypoint.session.operations import create_session
from waypoint.session.recovery import recover_abandoned
from waypoint.session.session import Session
from waypoint.shell.terminal import WindowSize
from waypoint.store.bases import resolve_base

__all__ = ["Waypoint", "open"]


def open(state_dir: str | Path | None = None) -> "Waypoint":
    """Open the state directory: the one given, or the one the environment and configuration file name."""
    flag = None if state_dir is None else os.fspath(state_dir)
    return Waypoint(Path(find_state_dir(flag, environ=os.environ, files=config_files(os.environ))))


class Waypoint:
    """An open state directory; a context manager. Closing it ends nothing: sessions live on.

    Opening settles whatever a process that died left undone.
    """

    def __init__(self, state_dir: Path) -> None:
        self.context = Context(state_dir)
        try:
            recover_abandoned(self.context)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Waypoint":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.context.catalogue.close()

    def create(
        self,
        workspace: str | Path | None = None,
        *,
        base: str | Path | None = None,
        name: str | None = None,
        size: WindowSize | None = None,
        env: Mapping[str, str] | None = None,
        shell: str | None = None,
        allow_self: bool = False,
        attended: bool = False,
    ) -> Session:
        """Create a session with a live branch ``main``.

        ``workspace`` is the directory the shell starts in, copy-on-write: the real one is never changed. If
        it is itself a root file system, it becomes the base. ``base`` is ``"host"`` (the default), a
        directory, or the name of a base in the pool. ``shell`` is ``"bash"``, ``"zsh"``, ``"dash"``, ``"ash"``,
        ``"sh"`` or a path in the base; by default the first of these that the base has. With ``allow_self``
        programs inside may save their own branch (``waypoint-here snapshot NAME``). ``attended`` makes its terminals
        for people: with a prompt, and without the variables that tell programs that nobody is there.
        """
        _ = self.context.platform  # mounts the pool if need be, which choosing a base looks at
        chosen, cwd = resolve_base(self.context.layout, workspace, base)
        record = create_session(
            self.context,
            chosen,
            workspace=cwd,
            name=name,
            settings=SessionSettings(
                shell=shell, env=dict(env or {}), size=size, allow_self=allow_self, attended=attended
            ),
        )
        ensure_attendant(self.context, record)
        return Session(self.context, record)

    def session(self, reference: str) -> Session:
        """A session by id, name, or a prefix of its id. Raises NotFound."""
        parse_name("session", reference)
        return Session(self.context, self.context.catalogue.session(reference))

    def sessions(self) -> list[Session]:
        return [Session(self.context, record) for record in self.context.catalogue.sessions()]

    def unmount_pool(self) -> None:
        """Unmount the pool; whatever needs it next mounts it again. Raises Busy while a branch runs."""
        for session in self.sessions():
            for branch in session.branches():
                if branch.is_running():
                    raise Busy(
                        f"the pool is in use by {session.id}:{branch.name}",
                        hint=f"end the session first: waypoint cleanup {session.id}",
                    )
        self.context.unmount_pool()
