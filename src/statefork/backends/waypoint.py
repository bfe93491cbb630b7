"""Waypoint as a backend: everything of a live session is kept, and branches are made in milliseconds.

StateFork's branches are Waypoint's, its snapshots are checkpoints of the same id, so ``waypoint tree`` and ``waypoint attach``
show the same environment.
"""

import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import waypoint
from statefork.backend import EVERYTHING, Availability, Backend, Command, CommandResult, Image, Instance
from statefork.errors import BackendFailed, CommandTimedOut
from waypoint import Branch, Session, Waypoint
from waypoint.errors import CommandTimedOut as ShellTimedOut
from waypoint.errors import NotFound, WaypointError
from waypoint.names import MAIN
from waypoint.store.layer_sizes import added_by_layer

__all__ = ["WaypointBackend"]


class WaypointBackend(Backend):
    name = "waypoint"
    path_options = ("waypoint_state_dir",)
    capabilities = EVERYTHING

    def __init__(
        self,
        home: Path,
        tag: str,
        *,
        dockerfile_dir: str | None = None,
        build: bool = True,
        session_id: str | None = None,
        target_pid: int = -2,
        waypoint_state_dir: str | None = None,
    ) -> None:
        super().__init__(home, tag)
        self._directory = dockerfile_dir
        self._builds = build
        self._attached_to = session_id
        self._state_dir = waypoint_state_dir
        self._opened: Waypoint | None = None
        self._session: Session | None = None

    @classmethod
    def probe(cls) -> Availability:
        return cls.probe_with({})

    @classmethod
    def probe_with(cls, options: Mapping[str, object]) -> Availability:
        chosen = options.get("waypoint_state_dir")
        try:
            waypoint.open(str(chosen) if chosen else None).close()
        except WaypointError as error:
            return Availability(is_available=False, reason=str(error), remedy=error.hint)
        return Availability(is_available=True, detail=f"waypoint {waypoint.__version__}")

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> str | None:
        session_id = options.get("session_id")
        return None if session_id is None else f"{options.get('waypoint_state_dir') or ''}:{session_id}"

    @property
    def session(self) -> Session:
        """The session of Waypoint, for what only Waypoint can do."""
        if self._session is None:
            kept = self.home / "session"
            reference = self._attached_to or (kept.read_text() if kept.exists() else "")
            with self._failing("open"):
                self._session = self._waypoint().session(reference)
        return self._session

    def start(self, branch_id: str) -> Instance:
        (self.home / "session").write_text(self.tag)  # first: else a session could stay that nobody knows of
        with self._failing("start"):
            opened = self._waypoint()
            where = Path(self._directory or ".").absolute()
            if self._builds:
                base = opened.bases(os.environ).build(where)  # proxies and logins of the caller
                self._session = opened.create(base=base.id, name=self.tag)
            else:
                self._session = opened.create(where, name=self.tag)
        return _instance(MAIN)

    def attach(self) -> Instance:
        with self._failing("attach"):
            _ = self.session.main.record
        return _instance(MAIN)

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        with self._failing("snapshot"):
            checkpoint = self._branch(instance).snapshot(snapshot_id)
        return Image(id=snapshot_id, sizes={"memory": checkpoint.memory_bytes})

    def park(self, instance: Instance, snapshot_id: str) -> Image:
        if instance.id == MAIN:  # a session always has it
            return self.snapshot(instance, snapshot_id)
        with self._failing("park"):
            checkpoint = self._branch(instance).park(snapshot_id)
        return Image(id=snapshot_id, sizes={"memory": checkpoint.memory_bytes})

    def spawn(self, image: Image, branch_id: str) -> Instance:
        with self._failing("fork"):
            taken = {branch.name for branch in self.session.branches()}
            # A successor is made while the branch that it will replace still has the name.
            name = f"{branch_id}-{secrets.token_hex(4)}" if branch_id in taken else branch_id
            [branch] = self.session.fork(image.id, ids=[name])
        return _instance(branch.name)

    def replace(self, instance: Instance, image: Image, branch_id: str) -> Instance:
        with self._failing("restore"):
            self._branch(instance).restore(image.id)
        return instance

    def supersede(self, instance: Instance, successor: Instance) -> Instance:
        with self._failing("promote"):
            self._branch(successor).promote(self._branch(instance).name)
        return instance

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        text = command if isinstance(command, str) else shlex.join(command)
        try:
            with self._failing("exec"):
                result = self._branch(instance).exec(text, timeout_s=timeout_s)
        except BackendFailed as error:
            if isinstance(error.__cause__, ShellTimedOut):
                late = error.__cause__
                raise CommandTimedOut(late.timeout_s, late.output.decode(errors="replace")) from late
            raise
        return CommandResult(exit_code=result.exit_code, output=result.output)

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        with self._failing("copy_in"):
            self._branch(instance).upload(source, path, links=True, follow=True)

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        with self._failing("copy_out"):
            self._branch(instance).download(path, target, links=True, follow=True)

    def discard(self, instance: Instance) -> None:
        if instance.id == MAIN or self._is_removed():  # a session always has it; it ends with the session
            return
        with self._failing("destroy"):
            try:
                self._branch(instance).destroy()
            except NotFound:
                return

    def delete(self, image: Image) -> None:
        """Do nothing: checkpoints belong to the session, and are removed with it."""

    def is_alive(self, instance: Instance) -> bool:
        with self._failing("look"):
            return self._branch(instance).is_running()

    def image_sizes(self, image: Image) -> Mapping[str, int]:
        with self._failing("look"):
            known = {checkpoint.name: checkpoint for checkpoint in self.session.checkpoints()}
            found = known.get(image.id)
            if found is None:
                return image.sizes
            layer = self.session.context.layout.checkpoint_layer
            parent = None if found.parent is None else layer(found.parent)
            return {**image.sizes, "files": added_by_layer(layer(found.id), parent)}

    def process_id(self, instance: Instance) -> int | None:
        with self._failing("look"):
            return self._branch(instance).record.init_pid

    def known_images(self) -> list[tuple[Image, str | None]]:
        with self._failing("look"):
            kept = self.session.checkpoints()
        names = {checkpoint.id: checkpoint.name for checkpoint in kept}
        return [
            (
                Image(id=checkpoint.name, sizes={"memory": checkpoint.memory_bytes}),
                names.get(checkpoint.parent or ""),
            )
            for checkpoint in kept
        ]

    def close(self) -> None:
        """Remove the session, unless it is someone else's."""
        is_begun = self._session is not None or (self.home / "session").exists()
        if self._attached_to is None and is_begun and not self._is_removed():
            with self._failing("cleanup"):
                self.session.cleanup(force=True)
        if self._opened is not None:
            self._opened.close()
            self._opened = self._session = None

    def _is_removed(self) -> bool:
        """Whether someone has removed the session already."""
        try:
            _ = self.session.main.record
        except NotFound:
            return True
        except BackendFailed as error:
            if isinstance(error.__cause__, NotFound):
                return True
            raise
        except WaypointError as error:
            raise BackendFailed(self.name, "look", str(error), hint=error.hint) from error
        return False

    def _waypoint(self) -> Waypoint:
        if self._opened is None:
            self._opened = waypoint.open(self._state_dir)
        return self._opened

    def _branch(self, instance: Instance) -> Branch:
        return self.session.branch(instance.id)

    @contextmanager
    def _failing(self, operation: str) -> Iterator[None]:
        try:
            yield
        except WaypointError as error:
            raise BackendFailed(self.name, operation, str(error), hint=error.hint) from error


def _instance(name: str) -> Instance:
    return Instance(id=name, handle={"branch": name})
