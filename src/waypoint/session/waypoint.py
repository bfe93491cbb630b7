"""Open a state directory; create and find sessions.

Each method imports what it needs when it is called, as in :mod:`waypoint.session.branch_verbs`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.config import config_files, find_state_dir
from waypoint.errors import Busy
from waypoint.names import parse_name
from waypoint.session.background.start import start_background
from waypoint.session.context import Context
from waypoint.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from waypoint.model import Limits, Network, Secret, Volume, Walls
    from waypoint.session.bases.stored_bases import Bases
    from waypoint.session.status import SessionStatus
    from waypoint.shell.terminal import WindowSize

__all__ = ["Waypoint", "open"]


def open(state_dir: str | Path | None = None) -> Waypoint:
    """Open the state directory: the one given, or the one that the environment or a configuration file names."""
    flag = None if state_dir is None else os.fspath(state_dir)
    return Waypoint(Path(find_state_dir(flag, environ=os.environ, files=config_files(os.environ))))


class Waypoint:
    """An open state directory; a context manager. Closing it ends nothing: sessions keep running.

    Opening it settles the operations whose process has died.
    """

    def __init__(self, state_dir: str | Path, files: Sequence[str] | None = None) -> None:
        """``files`` are the paths where a configuration file is looked for; by default the usual ones."""
        self.context = Context(Path(state_dir))
        self._files = config_files(os.environ) if files is None else files
        try:
            if self.context.catalogue.has_unfinished():
                from waypoint.session.lifecycle.recovery import recover_abandoned  # seldom needed

                recover_abandoned(self.context)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Waypoint:
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
        user: str | None = None,
        network: Network | None = None,
        limits: Limits | None = None,
        walls: Walls | None = None,
        volumes: Sequence[Volume] = (),
        secrets: Sequence[Secret] = (),
        hide: Sequence[str] = (),
        show: Sequence[str] = (),
        work_dir: bool | str | Path = False,
    ) -> Session:
        """Create a session with a live branch ``main``.

        ``workspace`` is the directory the shell starts in, copy-on-write: the real one is never changed. If
        it is itself a root file system, it becomes the base. ``base`` is ``"host"`` (the default), a
        directory, or the name or id of a base in the pool (:meth:`bases`); the ENV, WORKDIR, USER and SHELL of its
        image then apply where the caller gives nothing else. ``shell`` is ``"bash"``, ``"zsh"``, ``"dash"``, ``"ash"``,
        ``"sh"`` or a path in the base; by default the first of these that the base has. With ``allow_self``
        programs inside may save their own branch (``waypoint-here snapshot NAME``). ``attended`` makes its terminals
        for people: with a prompt, and without the variables that tell programs that nobody is there.

        ``user`` is who the shells run as. ``network`` is by default ``nat`` where this host can do that, else
        ``isolated``. ``limits`` hold for each branch, ``walls`` for all. ``volumes`` and ``secrets`` of the host are
        shared by all branches and are in no checkpoint. ``hide`` and ``show`` change which paths
        of the host's root are hidden. With ``work_dir`` the workspace of ``main`` is mounted on the host, live: at that
        path, an empty directory, or, if it is just True, in the state directory (:attr:`Session.work_directory`).
        """
        from waypoint.session.new_session import NewSession

        wanted = NewSession(
            workspace=workspace,
            base=base,
            name=name,
            size=size,
            env=env,
            shell=shell,
            allow_self=allow_self,
            attended=attended,
            user=user,
            network=network,
            limits=limits,
            walls=walls,
            volumes=volumes,
            secrets=secrets,
            hide=hide,
            show=show,
            work_dir=work_dir,
        )
        record = wanted.create(self.context, self._files)
        start_background(self.context, record)
        return Session(self.context, record)

    def bases(self, env: Mapping[str, str] | None = None) -> Bases:
        """The bases in the pool. ``env`` are variables for programs that fetch something: proxies, logins."""
        from waypoint.session.bases.stored_bases import Bases

        return Bases(self.context, dict(env or {}))

    def session(self, reference: str) -> Session:
        """A session by id, name, or a prefix of its id. Raises NotFound."""
        parse_name("session", reference)
        return Session(self.context, self.context.catalogue.session(reference))

    def sessions(self) -> list[Session]:
        return [Session(self.context, record) for record in self.context.catalogue.sessions()]

    def statuses(self) -> list[SessionStatus]:
        """The status of all sessions, read at one moment."""
        from waypoint.session.status import read_statuses

        return read_statuses(self.context)

    def unmount_pool(self) -> None:
        """Unmount the pool; whatever needs it next mounts it again. Raises Busy while a branch runs."""
        for session in self.sessions():
            for branch in session.branches():
                if branch.is_running():
                    raise Busy(
                        f"the pool is in use by {session.id}:{branch.name}",
                        hint=f"suspend it (waypoint suspend {session.id}) or remove it (waypoint cleanup {session.id})",
                    )
        self.context.unmount_pool()
