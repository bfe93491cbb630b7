"""What a caller asks of a new session. All of it is checked and chosen before anything is made."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from waypoint.engine.limits import check_limits
from waypoint.errors import UsageError
from waypoint.model import Limits, Network, Secret, SessionRecord, SessionSettings, Volume, Walls
from waypoint.session.bases.draft import using_base
from waypoint.session.context import Context
from waypoint.session.creation.hidden_paths import choose_hidden, without_hidden_mounts
from waypoint.session.creation.image_settings import with_image
from waypoint.session.creation.network_choice import choose_network
from waypoint.session.creation.share_choice import check_secrets, check_volumes
from waypoint.session.lifecycle.create import create_session
from waypoint.shell.terminal import WindowSize
from waypoint.store.base_choice import find_stored, resolve_base

__all__ = ["NewSession"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """What each field means: :meth:`waypoint.session.waypoint.Waypoint.create`."""

    workspace: str | Path | None
    base: str | Path | None
    name: str | None
    size: WindowSize | None
    env: Mapping[str, str] | None
    shell: str | None
    allow_self: bool
    attended: bool
    user: str | None
    network: Network | None
    limits: Limits | None
    walls: Walls | None
    volumes: Sequence[Volume]
    secrets: Sequence[Secret]
    hide: Sequence[str]
    show: Sequence[str]
    work_dir: bool | str | Path

    def create(self, context: Context, files: Sequence[str]) -> SessionRecord:
        """``files`` are the paths where a configuration file is looked for."""
        _ = context.platform  # mounts the pool if need be: choosing a base looks into it
        state_dir = context.layout.state_dir
        settings = self._settings(context)
        stored = find_stored(self.base, context.catalogue.base)
        with nullcontext() if stored is None else using_base(context, stored):
            chosen, cwd = resolve_base(context.layout, self.workspace, self.base, stored)
            hidden, shown = choose_hidden(
                chosen,
                cwd,
                state_dir=os.path.realpath(state_dir),
                hide=self.hide,
                show=self.show,
                environ=os.environ,
                files=files,
            )
            chosen = without_hidden_mounts(chosen, hidden)
            settings = replace(settings, hidden=hidden, shown=shown)
            if stored is not None:
                settings = with_image(settings, stored.config, chosen.path)
            return create_session(
                context,
                chosen,
                workspace=cwd,
                name=self.name,
                settings=settings,
                has_work_dir=self.work_dir is not False,
            )

    def _settings(self, context: Context) -> SessionSettings:
        limits = self.limits or Limits()
        check_limits(context.platform, limits)
        state_dir = context.layout.state_dir
        return SessionSettings(
            shell=self.shell,
            env=dict(self.env or {}),
            size=self.size,
            allow_self=self.allow_self,
            attended=self.attended,
            user=self.user,
            network=choose_network(self.network),
            limits=limits,
            walls=self.walls or Walls(),
            volumes=check_volumes(self.volumes, state_dir, has_secrets=bool(self.secrets)),
            secrets=check_secrets(self.secrets),
            work_dir=None if isinstance(self.work_dir, bool) else _checked_work_dir(context, self.work_dir),
        )


def _checked_work_dir(context: Context, path: str | Path) -> str:
    """The path of the work directory, without links. Raises UsageError if nothing can be mounted there."""
    work_dir = os.path.realpath(path)
    taken = {session.settings.work_dir: session.id for session in context.catalogue.sessions()}
    reason = ""
    if work_dir in taken:
        reason = f"it is the work directory of session {taken[work_dir]}"
    elif not os.path.isdir(work_dir):
        reason = "it is not a directory" if os.path.lexists(work_dir) else "it does not exist"
    elif os.path.ismount(work_dir):
        reason = "something else is mounted there"
    elif os.listdir(work_dir):
        reason = "it is not empty"
    if reason:
        raise UsageError(
            f"{path} cannot be the work directory: {reason}",
            hint="give an empty directory, or none: then it is made in the state directory",
        )
    return work_dir
