"""The way in: open a state directory, create and find sessions."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from waypoint.config import config_files, find_state_dir
from waypoint.engine.limits import check_limits
from waypoint.errors import Busy, UsageError
from waypoint.model import Limits, Network, Secret, SessionSettings, Volume, Walls
from waypoint.names import parse_name
from waypoint.session.background.attendant import ensure_attendant
from waypoint.session.bases.draft import using_base
from waypoint.session.bases.stored_bases import Bases
from waypoint.session.context import Context
from waypoint.session.creation.hidden_paths import choose_hidden, without_hidden_mounts
from waypoint.session.creation.image_settings import with_image
from waypoint.session.creation.network_choice import choose_network
from waypoint.session.creation.share_choice import check_secrets, check_volumes
from waypoint.session.lifecycle.create import create_session
from waypoint.session.session import Session
from waypoint.session.status import SessionStatus, read_statuses
from waypoint.shell.terminal import WindowSize
from waypoint.store.base_choice import find_stored, resolve_base

__all__ = ["Waypoint", "open"]


def open(state_dir: str | Path | None = None) -> "Waypoint":
    """Open the state directory: the one given, or the one the environment and configuration file name."""
    flag = None if state_dir is None else os.fspath(state_dir)
    return Waypoint(Path(find_state_dir(flag, environ=os.environ, files=config_files(os.environ))))


class Waypoint:
    """An open state directory; a context manager. Closing it ends nothing: sessions live on.

    Opening settles whatever a process that died left undone.
    """

    def __init__(self, state_dir: str | Path, files: Sequence[str] | None = None) -> None:
        """``files`` are where a configuration file is looked for; by default, where waypoint does."""
        self.context = Context(Path(state_dir))
        self._files = config_files(os.environ) if files is None else files
        try:
            if self.context.catalogue.has_unfinished():
                from waypoint.session.lifecycle.recovery import recover_abandoned  # seldom needed

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
        directory, or the name or id of a base in the pool (:meth:`bases`); what an image says of ENV, WORKDIR, USER and
        SHELL then holds where nothing else is said. ``shell`` is ``"bash"``, ``"zsh"``, ``"dash"``, ``"ash"``,
        ``"sh"`` or a path in the base; by default the first of these that the base has. With ``allow_self``
        programs inside may save their own branch (``waypoint-here snapshot NAME``). ``attended`` makes its terminals
        for people: with a prompt, and without the variables that tell programs that nobody is there.

        ``user`` is who the shells run as. ``network`` is by default ``nat`` where this host can do that, else
        ``isolated``. ``limits`` hold for each branch, ``walls`` for all. ``volumes`` and ``secrets`` of the host are
        shared by all branches and are in no checkpoint. ``hide`` and ``show`` change what of the host's
        root is hidden. With ``work_dir`` the host has the workspace of ``main`` mounted, live: at that path, an empty
        directory, or, if it is just True, in the state directory (:attr:`Session.work_directory`).
        """
        _ = self.context.platform  # mounts the pool if need be, which choosing a base looks at
        state_dir = self.context.layout.state_dir
        limits = limits or Limits()
        check_limits(self.context.platform, limits)
        settings = SessionSettings(
            shell=shell,
            env=dict(env or {}),
            size=size,
            allow_self=allow_self,
            attended=attended,
            user=user,
            network=choose_network(network),
            limits=limits,
            walls=walls or Walls(),
            volumes=check_volumes(volumes, state_dir, has_secrets=bool(secrets)),
            secrets=check_secrets(secrets),
            work_dir=None if isinstance(work_dir, bool) else self._free_work_dir(work_dir),
        )
        stored = find_stored(base, self.context.catalogue.base)
        with nullcontext() if stored is None else using_base(self.context, stored):
            chosen, cwd = resolve_base(self.context.layout, workspace, base, stored)
            hidden, shown = choose_hidden(
                chosen,
                cwd,
                state_dir=os.path.realpath(state_dir),
                hide=hide,
                show=show,
                environ=os.environ,
                files=self._files,
            )
            chosen = without_hidden_mounts(chosen, hidden)
            settings = replace(settings, hidden=hidden, shown=shown)
            if stored is not None:
                settings = with_image(settings, stored.config, chosen.path)
            record = create_session(
                self.context,
                chosen,
                workspace=cwd,
                name=name,
                settings=settings,
                has_work_dir=work_dir is not False,
            )
        ensure_attendant(self.context, record)
        return Session(self.context, record)

    def _free_work_dir(self, path: str | Path) -> str:
        """Where a work directory can be mounted."""
        work_dir = os.path.realpath(path)
        taken = {session.settings.work_dir: session.id for session in self.context.catalogue.sessions()}
        reason = ""
        if work_dir in taken:
            reason = f"it is that of session {taken[work_dir]}"
        elif not os.path.isdir(work_dir):
            reason = "it is no directory" if os.path.lexists(work_dir) else "it does not exist"
        elif os.path.ismount(work_dir):
            reason = "something else is mounted there"
        elif os.listdir(work_dir):
            reason = "it is not empty"
        if reason:
            raise UsageError(
                f"{path} cannot be the work directory: {reason}",
                hint="name an empty directory, or none: then it is in the state directory",
            )
        return work_dir

    def bases(self, env: Mapping[str, str] | None = None) -> Bases:
        """The bases in the pool. ``env`` are variables for those who fetch something: proxies, logins."""
        return Bases(self.context, dict(env or {}))

    def session(self, reference: str) -> Session:
        """A session by id, name, or a prefix of its id. Raises NotFound."""
        parse_name("session", reference)
        return Session(self.context, self.context.catalogue.session(reference))

    def sessions(self) -> list[Session]:
        return [Session(self.context, record) for record in self.context.catalogue.sessions()]

    def statuses(self) -> list[SessionStatus]:
        """How all sessions are, read at one moment."""
        return read_statuses(self.context)

    def unmount_pool(self) -> None:
        """Unmount the pool; whatever needs it next mounts it again. Raises Busy while a branch runs."""
        for session in self.sessions():
            for branch in session.branches():
                if branch.is_running():
                    raise Busy(
                        f"the pool is in use by {session.id}:{branch.name}",
                        hint=f"let the session rest (waypoint suspend {session.id}) or remove it (waypoint cleanup {session.id})",
                    )
        self.context.unmount_pool()
