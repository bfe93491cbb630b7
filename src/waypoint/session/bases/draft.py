"""A base that is being made, and what happens to it if it is cut off.

A draft is a subvolume (or directory) of the pool, filled by buildah, mmdebstrap or tar. Operations on bases are
recorded like those on sessions, with :data:`BASES` in place of a session, and recovered in the same way:
the endings at the end of this module. Locks:

* of a draft, held by its maker and by every program that works for it;
* of a base: shared while a session is being created over it, exclusive while it is published or removed;
* of the image store: shared while buildah works in it, exclusive while images or leftovers of builds are removed.

Images in the store have names, too, for FROM to find. They follow those in the catalogue: an image gets its names after
its base was published, and every use of the store first gives the images the names that the catalogue has.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from waypoint.engine.platform import cgroup_name
from waypoint.errors import Busy
from waypoint.kernel.bases.build_cgroup import remove_build_cgroup
from waypoint.kernel.bases.buildah import Buildah
from waypoint.kernel.bases.root_tree import content_id, finish_tree, tree_size
from waypoint.kernel.storage.reflink import share_content
from waypoint.kernel.storage.subvolumes import create_subvolume, snapshot_subvolume
from waypoint.log import Timeline
from waypoint.model import BaseRecord, ImageConfig, OperationKind, OperationStatus
from waypoint.session.context import BASES, Context
from waypoint.session.operation import Ending, Operation, begin_operation
from waypoint.store.layout import new_id
from waypoint.store.lock import locked

__all__ = [
    "BASE_ENDINGS",
    "REMOVE_BASE",
    "Draft",
    "locked_base",
    "remove_forgotten",
    "using_base",
    "using_images",
]

ALONE_TIMEOUT_S = 5.0  # others who remove something are done by then; builds and downloads may take hours
NAMING_TIMEOUT_S = 60.0

DRAFTS = "localhost/waypoint/drafts"
"""The name of images made of imported files, until their base is published; other images have no name until then."""

_ID = re.compile(r"[0-9a-f]{64}")


class Draft:
    """A base that is being made; a context manager, which leaves a whole base or nothing."""

    def __init__(self, context: Context, env: Mapping[str, str], kind: OperationKind) -> None:
        self._context = context
        self._env = env
        self._ending = Ending(kind, take_back=_settle_draft, finish=_settle_draft)
        self._id = new_id()

    def __enter__(self) -> "Draft":
        context = self._context
        _ = context.platform  # mounts the pool
        with ExitStack() as stack:
            fd = stack.enter_context(locked(context.branch_lock(BASES, self._id), what="the new base"))
            stack.callback(context.remove_locks, BASES, self._id)
            self._operation = stack.enter_context(
                begin_operation(context, self._ending, BASES, self._id, incarnation=self._id)
            )
            stack.callback(_discard_draft, context, self._id)
            self.tree.parent.mkdir(exist_ok=True)
            self.buildah = stack.enter_context(using_images(context, self._id, self._env, hold=(fd,)))
            self.buildah.require_tools()  # files are made an image, too, at the end
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    @property
    def tree(self) -> Path:
        return self._context.layout.base_draft(self._id)

    @property
    def _image_name(self) -> str:
        return f"{DRAFTS}:{self._id}"

    def step(self, name: str) -> AbstractContextManager[None]:
        return self._operation.timeline.step(name)

    def make_tree(self) -> Path:
        """An empty tree to be filled."""
        if self._context.platform.layers.name == "btrfs":
            create_subvolume(self.tree)
        else:
            self.tree.mkdir()
        self.tree.chmod(0o755)
        return self.tree

    def make_directory(self, name: str) -> Path:
        """An empty directory that is removed with the draft."""
        path = self.buildah.scratch / name
        path.mkdir(parents=True)
        return path

    def publish_image(self, image: str, names: Sequence[str], source: str) -> BaseRecord:
        """Make an image of the store a base, unless it is one already."""
        base_id = self._context.catalogue.base_of_image(image) or image
        with locked_base(self._context, base_id):
            known = self._context.catalogue.find_base(base_id)
            if known is not None:
                return self._publish(replace(known, names=tuple(names)))
            with self.step("export"):
                config = self.buildah.config(image)
                self.buildah.export(image, self.tree)
            with self.step("finish"):
                finish_tree(self.tree, (*filter(None, (config.workdir,)), *config.volumes))
            return self._seal(_record(image, names, source, image, config))

    def publish_tree(self, names: Sequence[str], source: str) -> BaseRecord:
        """Make the draft's tree a base, and an image with the same names for Dockerfiles to build on."""
        with self.step("finish"):
            finish_tree(self.tree, ())
            base_id = content_id(self.tree)
        with locked_base(self._context, base_id):
            known = self._context.catalogue.find_base(base_id)
            image = None if known is None else known.image
            with self.step("image"):
                if image is None or image not in self.buildah.index().layers:  # removed before its base
                    image = self._commit()
            if known is not None:
                return self._publish(replace(known, names=tuple(names), image=image))
            return self._seal(_record(base_id, names, source, image))

    def _commit(self) -> str:
        """Make an image of the tree. buildah copies it; on btrfs the space is shared again afterwards."""
        image = self.buildah.commit(self.tree, self._image_name)
        if self._context.platform.layers.name == "btrfs":
            twin = _twin(self.tree)
            self.buildah.export(image, twin)
            self._context.platform.layers.flush(self.tree)  # else the kernel flushes file by file
            share_content(twin, self.tree)
            self._context.platform.layers.delete(twin)
        return image

    def _seal(self, record: BaseRecord) -> BaseRecord:
        """Put the tree at its final path, where it is not changed any more, and publish it."""
        path = self._context.layout.base(record.id)
        with self.step("seal"):
            record = replace(record, size_bytes=tree_size(self.tree))
            self._context.platform.layers.reserve_inode_numbers(self.tree, self._context.layout.inode_numbers)
            self._context.platform.layers.delete(path)  # of one that was cut off just here
            if self._context.platform.layers.name == "btrfs":
                snapshot_subvolume(self.tree, path, read_only=True)
            else:
                os.rename(self.tree, path)
        return self._publish(record)

    def _publish(self, record: BaseRecord) -> BaseRecord:
        catalogue = self._context.catalogue
        with self.step("publish"), catalogue.transaction():
            catalogue.add_base(record)
            self._operation.publish(OperationStatus.PUBLISHED)
        with self.step("name"):
            _name_images(self._context, self.buildah)
            if self._image_name in self.buildah.index().names:
                self.buildah.untag(self._image_name)
        self._operation.publish()
        return catalogue.base(record.id)


def _record(
    base_id: str, names: Sequence[str], source: str, image: str, config: ImageConfig | None = None
) -> BaseRecord:
    return BaseRecord(
        id=base_id,
        names=tuple(names),
        created_at=time.time(),
        size_bytes=0,
        source=source,
        config=config or ImageConfig(),
        image=image,
    )


@contextmanager
def using_images(
    context: Context,
    work: str,
    env: Mapping[str, str],
    *,
    hold: tuple[int, ...] = (),
    alone: bool = False,
    wait: bool = True,
) -> Iterator[Buildah]:
    """buildah on the image store, for the piece of work with the id ``work``.

    A caller that removes images must be ``alone``: a build may be about to use an image that nothing needs yet. Raises
    Busy if someone else keeps working in the store; with ``wait=False``, at once.
    """
    _ = context.platform  # mounts the pool
    if _unswept_mark(context).exists():
        _sweep_images(context)
    with locked(
        _store_lock(context),
        what="the image store",
        shared=not alone,
        wait=wait,
        timeout_s=ALONE_TIMEOUT_S if alone else None,
        hint="something is being built or fetched: try again when that is done",
    ) as fd:
        buildah = _buildah(context, work, env, (*hold, fd))
        try:
            _name_images(context, buildah)
            yield buildah
        finally:
            _remove_scratch(buildah.scratch)


def _buildah(context: Context, work: str, env: Mapping[str, str], hold: tuple[int, ...]) -> Buildah:
    store = context.layout.image_store
    return Buildah(
        store=store,
        scratch=store / "tmp" / work,
        pool=context.layout.pool,
        driver="btrfs" if context.platform.layers.name == "btrfs" else "overlay",
        cgroup=f"/{_cgroup(context, work)}",
        env=env,
        hold=hold,
    )


@contextmanager
def using_base(context: Context, base: BaseRecord) -> Iterator[None]:
    """Keep a base from being removed during the block. Raises NotFound if it was removed already."""
    with locked(context.branch_lock(BASES, base.id), what=f"base {base.id[:12]}", shared=True):
        if context.catalogue.find_base(base.id) is None:
            context.remove_locks(BASES, base.id)
            context.catalogue.base(base.id)
        yield


@contextmanager
def locked_base(context: Context, base_id: str, *, wait: bool = True) -> Iterator[None]:
    what = f"base {base_id[:12]}"
    hint = "a session is being created over it, or it is being made or removed: try again"
    with locked(context.branch_lock(BASES, base_id), what=what, wait=wait, hint=hint):
        try:
            yield
        finally:
            if context.catalogue.find_base(base_id) is None:
                context.remove_locks(BASES, base_id)


def _settle_draft(operation: Operation) -> None:
    """Remove what was not published of a base that was being made, and nothing else."""
    context = operation.context
    _discard_draft(context, operation.incarnation)
    _sweep_images(context)
    _sweep_unpublished(context)


def _keep_base(_operation: Operation) -> None:
    """The removal of a base was not published: nothing of it was removed."""


def _finish_removal(operation: Operation) -> None:
    """Continue the removal of a base. Raises Busy at once if someone works in the image store."""
    context, record = operation.context, operation.record
    if record.old_incarnation is not None:
        with using_images(context, record.old_incarnation, {}, alone=True, wait=False) as buildah:
            remove_forgotten(context, record.old_incarnation, record.checkpoint, buildah, operation.timeline)


def remove_forgotten(
    context: Context, base_id: str, image: str | None, buildah: Buildah, timeline: Timeline
) -> None:
    """Remove the files and the image of a base that is not in the catalogue any more, as far as they are left.

    If the catalogue has it, it was made again since, and stays. The caller holds the base's lock, so nobody is making
    it now, and ``buildah`` is alone in the image store.
    """
    with timeline.step("files"):
        if context.catalogue.find_base(base_id) is None:
            context.platform.layers.delete(context.layout.base(base_id))
    with timeline.step("image"):
        if image is not None and context.catalogue.base_of_image(image) is None:
            buildah.remove(image)
            buildah.prune(context.catalogue.images())


def _discard_draft(context: Context, draft: str) -> None:
    """Remove what was written for a draft, as far as it is left."""
    tree = context.layout.base_draft(draft)
    for path in (tree, _twin(tree)):
        context.platform.layers.delete(path)
    remove_build_cgroup(_cgroup(context, draft))
    _remove_scratch(context.layout.image_store / "tmp" / draft)


def _twin(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.twin")


def _remove_scratch(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _cgroup(context: Context, draft: str) -> str:
    return cgroup_name(context.layout, f"build.{draft}")


def _store_lock(context: Context) -> Path:
    context.layout.image_store.mkdir(exist_ok=True)
    return context.layout.image_store / "lock"


def _unswept_mark(context: Context) -> Path:
    """The file that exists while the image store may hold leftovers of a build that was cut off."""
    return context.layout.image_store / "unswept"


def _sweep_images(context: Context) -> None:
    """Remove what builds that were cut off have left in the image store.

    If someone works in it, a later use of the store does that.
    """
    if not (context.layout.image_store / "layers").exists():  # buildah has never run
        return
    _unswept_mark(context).touch()
    with (
        suppress(Busy),
        locked(_store_lock(context), what="the image store", wait=False) as fd,
    ):
        buildah = _buildah(context, "sweep", {}, (fd,))
        _name_images(context, buildah)
        for name in buildah.index().names:
            if name.startswith(f"{DRAFTS}:") and context.catalogue.find_base(name) is None:
                buildah.untag(name)
        buildah.remove_leftovers()
        _unswept_mark(context).unlink(missing_ok=True)


def _name_images(context: Context, buildah: Buildah) -> None:
    """Give the images in the store the names that the catalogue has for them. An image that is not there is skipped."""
    naming = context.layout.image_store / "naming"
    with locked(naming, what="naming of images", timeout_s=NAMING_TIMEOUT_S, hint="try again"):
        index = buildah.index()
        for image, names in context.catalogue.images().items():
            if image in index.layers:
                buildah.tag(image, [name for name in names if index.names.get(name) != image])


def _sweep_unpublished(context: Context) -> None:
    """Remove directories and locks of bases that were not published: their maker was cut off before that."""
    directories = {path.name for path in context.layout.base("").iterdir()}
    locks = {path.name.removeprefix(f"{BASES}:") for path in context.layout.lock("").glob(f"{BASES}:*")}
    for base_id in directories | locks:
        if _ID.fullmatch(base_id) and context.catalogue.find_base(base_id) is None:
            with suppress(Busy), locked_base(context, base_id, wait=False):
                if context.catalogue.find_base(base_id) is None:
                    context.platform.layers.delete(context.layout.base(base_id))


_MAKING = (OperationKind.BUILD, OperationKind.PULL, OperationKind.BOOTSTRAP, OperationKind.IMPORT)
REMOVE_BASE = Ending(OperationKind.REMOVE_BASE, take_back=_keep_base, finish=_finish_removal)
BASE_ENDINGS = (
    *(Ending(kind, take_back=_settle_draft, finish=_settle_draft) for kind in _MAKING),
    REMOVE_BASE,
)
