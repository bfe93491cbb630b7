"""Bases stored in the pool: build, pull, bootstrap, import, export, remove.

A base is made as a *draft* that nobody sees (:mod:`waypoint.session.bases.draft`). It is then put at
``pool/bases/<id>``, where the id stands for its content, and becomes visible by one row of the catalogue. A base that
exists already under the same id is used as it is.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from waypoint.engine.branch_network import egress_rules
from waypoint.engine.name_files import host_name_servers
from waypoint.errors import BuildFailed, Busy, NotFound, UsageError
from waypoint.kernel.bases.bootstrap import bootstrap_debian, debian_suite
from waypoint.kernel.bases.buildah import Output
from waypoint.kernel.bases.root_tree import copy_directory, unpack_archive, write_archive
from waypoint.model import BaseRecord, Network, NetworkMode, OperationKind, OperationStatus
from waypoint.session.bases.build_errors import build_error, pull_error, refuse_image_archive
from waypoint.session.bases.draft import (
    REMOVE_BASE,
    Draft,
    locked_base,
    remove_forgotten,
    using_base,
    using_images,
)
from waypoint.session.context import BASES, Context
from waypoint.session.operation import begin_operation
from waypoint.store.image_names import full_name, is_full_name, local_name
from waypoint.store.layout import new_id

__all__ = ["TRANSPORTS", "Bases"]

TRANSPORTS = ("docker://", "oci:", "oci-archive:", "docker-archive:", "docker-daemon:")
"""What the address of an image may begin with, as buildah and skopeo write it."""

_LOCAL_TRANSPORTS = ("oci:", "oci-archive:", "docker-archive:")


@dataclass(frozen=True, slots=True)
class Bases:
    """The bases of a state directory. ``env``: variables of the caller for programs that fetch something: proxies."""

    context: Context
    env: Mapping[str, str]

    def all(self) -> list[BaseRecord]:
        return self.context.catalogue.bases()

    def find(self, reference: str) -> BaseRecord:
        """By name, id or a prefix of it. Raises NotFound."""
        return self.context.catalogue.base(reference)

    def users(self, base: BaseRecord) -> list[str]:
        """The sessions over a base, by name or id."""
        return self.context.catalogue.sessions_over(os.fspath(self.context.layout.base(base.id)))

    def build(
        self,
        directory: str | Path,
        *,
        dockerfile: str | Path | None = None,
        arguments: Mapping[str, str] | None = None,
        names: Sequence[str] = (),
        on_output: Output | None = None,
    ) -> BaseRecord:
        """Build a Dockerfile (default: ``Dockerfile`` in ``directory``) and make the image a base.

        ``arguments`` are values for the ARGs of the Dockerfile. Raises BuildFailed with what buildah says.
        """
        context_dir = Path(directory).resolve()
        if not os.fspath(directory) or not context_dir.is_dir():
            raise NotFound("directory", os.fspath(directory), hint="give the directory of a Dockerfile")
        if context_dir == Path("/"):
            raise UsageError("the whole root cannot be built", hint="give the directory of a Dockerfile")
        file = _find_dockerfile(context_dir, dockerfile)
        words = [f"{name}={value}" for name, value in (arguments or {}).items()]
        full = [full_name(name) for name in names] or [local_name(context_dir.name)]
        with Draft(self.context, self.env, OperationKind.BUILD) as draft:
            with draft.step("build"):
                try:
                    image = draft.buildah.build(
                        context_dir,
                        dockerfile=file,
                        arguments=words,
                        rules=egress_rules(Network(mode=NetworkMode.NAT), host_name_servers())[0],
                        on_output=on_output,
                    )
                except BuildFailed as error:
                    raise build_error(error) from error
            return draft.publish_image(image, full, f"build of {context_dir}")

    def pull(self, source: str, *, names: Sequence[str] = (), on_output: Output | None = None) -> BaseRecord:
        """Fetch an image from a registry (``docker://…``), archive or directory and make it a base."""
        transport = next((known for known in TRANSPORTS if source.startswith(known)), None)
        if transport is None:
            raise UsageError(
                f"{source!r} is not an image", hint=f"write one of {', '.join(TRANSPORTS)} before it"
            )
        full = [full_name(name) for name in names]
        where = source
        if transport == "docker://" and not full and "@" not in source:  # a digest is not a name
            full = [full_name(source.removeprefix(transport))]
        elif transport in _LOCAL_TRANSPORTS:
            where = _absolute(transport, source)
        with Draft(self.context, self.env, OperationKind.PULL) as draft:
            with draft.step("pull"):
                try:
                    image = draft.buildah.pull(where, on_output=on_output)
                except BuildFailed as error:
                    raise pull_error(source, error) from error
            return draft.publish_image(image, full, source)

    def bootstrap(
        self,
        reference: str,
        *,
        include: Sequence[str] = (),
        names: Sequence[str] = (),
        on_output: Output | None = None,
    ) -> BaseRecord:
        """Make a Debian base (``debian:bookworm``) from the host's own package mirror."""
        suite = debian_suite(reference)
        full = [full_name(name) for name in names or (f"debian:{suite}", f"debian:{suite}-slim")]
        with Draft(self.context, self.env, OperationKind.BOOTSTRAP) as draft:
            with draft.step("bootstrap"):
                bootstrap_debian(
                    suite,
                    draft.make_tree(),
                    work=draft.make_directory("bootstrap"),
                    include=include,
                    env=self.env,
                    hold=draft.buildah.hold,
                    on_output=on_output,
                )
            return draft.publish_tree(full, " ".join((f"Debian {suite}", *(f"+{name}" for name in include))))

    def import_(
        self, source: str, *, names: Sequence[str] = (), on_output: Output | None = None
    ) -> BaseRecord:
        """Make a base from a tar archive, a directory, or an image (see :meth:`pull`)."""
        if source.startswith(TRANSPORTS):
            return self.pull(source, names=names, on_output=on_output)
        if not names:
            raise UsageError("a base needs a name", hint=f"waypoint base import {source} --name NAME")
        full = [full_name(name) for name in names]
        path = Path(source).resolve()
        if not path.exists():
            raise NotFound("file or directory", source, hint="give a tar archive, a directory or oci:PATH")
        with Draft(self.context, self.env, OperationKind.IMPORT) as draft:
            with draft.step("unpack"):
                if path.is_dir():
                    copy_directory(path, draft.make_tree())
                else:
                    unpack_archive(
                        path, draft.make_tree(), cell=draft.make_directory("cell"), hold=draft.buildah.hold
                    )
                refuse_image_archive(draft.tree, source)
            return draft.publish_tree(full, os.fspath(path))

    def export(self, base: BaseRecord, write: Callable[[bytes], object]) -> None:
        """Write the files of a base as a tar archive, which :meth:`import_` reads back as the same base."""
        with using_base(self.context, base):
            write_archive(self.context.layout.base(base.id), write)

    def remove(self, reference: str) -> BaseRecord:
        """Remove a base, or, if ``reference`` is one of several names that it has, only that name.

        Raises Busy, naming the sessions, if some use it.
        """
        base = self.find(reference)
        name = _name_in(base, reference)
        with locked_base(self.context, base.id, wait=False):
            base = self.find(base.id)
            if name is not None and len(base.names) > 1:
                with using_images(self.context, new_id(), self.env, alone=True) as buildah:
                    buildah.untag(name)  # if we are cut off here, the next use of the store names it again
                    self.context.catalogue.unname_base(name)
                return base
            users = self.users(base)
            if users:
                raise Busy(
                    f"base {reference!r} is used by {', '.join(users)}",
                    hint=f"remove the sessions first: waypoint cleanup {users[0]}",
                )
            with (
                using_images(self.context, new_id(), self.env, alone=True) as buildah,
                begin_operation(
                    self.context, REMOVE_BASE, BASES, base.id, old_incarnation=base.id, checkpoint=base.image
                ) as operation,
            ):
                with operation.timeline.step("forget"), self.context.catalogue.transaction():
                    self.context.catalogue.forget_base(base.id)
                    operation.publish(OperationStatus.PUBLISHED)
                remove_forgotten(self.context, base.id, base.image, buildah, operation.timeline)
                operation.publish()
        return base

    def prune(self) -> list[BaseRecord]:
        """Remove bases that have no name and no session, and steps of builds that nothing needs any more."""
        with using_images(self.context, new_id(), self.env, alone=True) as buildah:
            buildah.prune(self.context.catalogue.images())
        removed = []
        for base in self.all():
            if not base.names and not self.users(base):
                with suppress(Busy):  # a session is just being created over it
                    removed.append(self.remove(base.id))
        return removed


def _find_dockerfile(directory: Path, chosen: str | Path | None) -> Path:
    """Where Docker looks for it: the path ``chosen``, from the current directory, or else in ``directory``."""
    names = ("Dockerfile", "Containerfile")
    candidates = [Path(chosen)] if chosen is not None else [directory / name for name in names]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    hint = "say which it is: -f FILE" if chosen is None else "give the path of a file that exists"
    raise NotFound("Dockerfile", os.fspath(candidates[0]), hint=hint)


def _absolute(transport: str, source: str) -> str:
    """The address of an archive with its path made absolute, so that it means the same wherever it is read."""
    path, colon, tag = source.removeprefix(transport).partition(":")
    if not os.path.exists(path):
        raise NotFound("image", source, hint="give the path of an archive or directory that exists")
    return f"{transport}{os.path.abspath(path)}{colon}{tag}"


def _name_in(base: BaseRecord, reference: str) -> str | None:
    """The name of the base that ``reference`` means, if it is one and not an id."""
    if not is_full_name(reference):
        return None
    names = (full_name(reference), full_name(f"localhost/{reference}"))
    return next((name for name in names if name in base.names), None)
