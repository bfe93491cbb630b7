"""Every path on disk, as properties of one class. ``docs/on-disk-format.md`` describes them."""

import os
from dataclasses import dataclass
from pathlib import Path

from waypoint.store.live import catalogue_path, facts_path, lock_path, root_path

__all__ = ["WORK", "Layout", "new_id"]

WORK = "work"


def new_id(nbytes: int = 6) -> str:
    """A new random id, as hexadecimal digits."""
    return os.urandom(nbytes).hex()


@dataclass(frozen=True, slots=True)
class Layout:
    """The state directory."""

    state_dir: Path

    @property
    def catalogue(self) -> Path:
        return Path(catalogue_path(str(self.state_dir)))

    @property
    def pool(self) -> Path:
        return self.state_dir / "pool"

    @property
    def criu_prefix(self) -> Path:
        return self.state_dir / "criu"

    @property
    def host_facts(self) -> Path:
        """What set-up found out about this host: CRIU's command and version."""
        return Path(facts_path(str(self.state_dir)))

    def kdat(self, criu_version: str) -> Path:
        """What this version of CRIU found out about the running kernel; another version or kernel must ask again."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return self.state_dir / f"criu-{criu_version}-{boot}.kdat"

    def lock(self, name: str) -> Path:
        return Path(lock_path(str(self.state_dir), name))

    def work(self, session_id: str) -> Path:
        """Logs of the runs of CRIU that failed."""
        return self.state_dir / "work" / session_id

    def session(self, session_id: str) -> Path:
        return self.state_dir / "sessions" / session_id

    def live(self, session_id: str, branch: str) -> Path:
        """The link that people follow to the live files of a branch; stable across restores."""
        return self.session(session_id) / branch

    def work_directory(self, session_id: str) -> Path:
        """Where the host has the workspace of ``main`` mounted, in a session that wants it and names no other directory."""
        return self.session(session_id) / WORK

    def mount(self, incarnation: str) -> Path:
        return Path(root_path(str(self.state_dir), incarnation))

    def shared(self, incarnation: str) -> Path:
        """Where a branch's volumes and secrets are mounted on the host, one entry each."""
        return self.state_dir / "shared" / incarnation

    def layer(self, incarnation: str) -> Path:
        """The branch's own changes: ``upper`` and ``work`` of its overlay."""
        return self.pool / "branches" / incarnation

    def checkpoint(self, checkpoint_id: str) -> Path:
        return self.pool / "checkpoints" / checkpoint_id

    def checkpoint_layer(self, checkpoint_id: str) -> Path:
        return self.checkpoint(checkpoint_id) / "files"

    def checkpoint_space_left(self, checkpoint_id: str) -> Path:
        """How much of the disk limit was left, if the session has one."""
        return self.checkpoint(checkpoint_id) / "room"

    def checkpoint_mounts(self, checkpoint_id: str) -> Path:
        """Where other file systems of the host were in the branch, if its base has some."""
        return self.checkpoint(checkpoint_id) / "mounts.json"

    def checkpoint_program(self, checkpoint_id: str) -> Path:
        """Which program of the host is saved, in a checkpoint that has one."""
        return self.checkpoint(checkpoint_id) / "program.json"

    def program_aside(self, incarnation: str) -> Path:
        """A host program that a restore has saved and ended, until the restore has succeeded."""
        return self.pool / "programs" / incarnation

    def images(self, checkpoint_id: str) -> Path:
        return self.checkpoint(checkpoint_id) / "images"

    def init_copy(self, digest: str) -> Path:
        """Our init as it is put into branches; on the pool so that each copy is only a reference."""
        return self.pool / "init" / digest

    def base(self, base_id: str) -> Path:
        return self.pool / "bases" / base_id

    def is_stored_base(self, path: Path) -> bool:
        return path.parent == self.base("")

    @property
    def inode_numbers(self) -> Path:
        """What layers over bases of the pool are copies of: empty, but with inode numbers above those of all bases."""
        return self.pool / "numbers"

    def base_draft(self, draft: str) -> Path:
        """A base that is being made."""
        return self.pool / "drafts" / draft

    @property
    def image_store(self) -> Path:
        """The images from which bases are built and exported; private to this state directory."""
        return self.pool / "images"
