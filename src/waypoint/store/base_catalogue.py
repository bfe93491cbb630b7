"""The bases in the catalogue: what the pool has, under which names, and who uses it."""

import dataclasses
import json
import sqlite3
from collections.abc import Iterable

from waypoint.errors import NotFound
from waypoint.model import BaseRecord, ImageConfig
from waypoint.store.image_names import full_name, is_full_name
from waypoint.store.live import LiveCatalogue

__all__ = ["BaseCatalogue"]

_ID_PREFIX_MIN = 6


class BaseCatalogue(LiveCatalogue):
    """A base exists if and only if it is here."""

    def bases(self) -> list[BaseRecord]:
        return [self._base(row) for row in self._rows("SELECT * FROM bases ORDER BY created_at, id")]

    def base(self, reference: str) -> BaseRecord:
        """By name (of one built here also without ``localhost/``), by id or by a prefix of the id."""
        found = self.find_base(reference)
        if found is None:
            hint = (
                f"waypoint base list shows them; make it: waypoint base bootstrap|import … --name {reference}"
            )
            raise NotFound("base", reference, hint=hint)
        return found

    def find_base(self, reference: str) -> BaseRecord | None:
        rows: list[sqlite3.Row] = []
        if is_full_name(reference):
            for name in (full_name(reference), full_name(f"localhost/{reference}")):
                rows = rows or self._rows(
                    "SELECT bases.* FROM bases JOIN base_names ON base_id = id WHERE name = ?", name
                )
        if not rows and len(reference) >= _ID_PREFIX_MIN:
            rows = self._rows("SELECT * FROM bases WHERE substr(id, 1, ?) = ?", len(reference), reference)
        return self._base(rows[0]) if len(rows) == 1 else None

    def base_of_image(self, image: str) -> str | None:
        """The id of the base that has the files of an image of the store."""
        rows = self._rows("SELECT id FROM bases WHERE image = ?", image)
        return str(rows[0]["id"]) if rows else None

    def images(self) -> dict[str, tuple[str, ...]]:
        """The images of all bases, each with the names that it should have in the store."""
        return {base.image: base.names for base in self.bases() if base.image is not None}

    def add_base(self, base: BaseRecord) -> None:
        """Insert a base; one that exists gets this image, and these names in addition to its own.

        A name that another base had is taken from it.
        """
        self._write(
            "INSERT INTO bases (id, created_at, size_bytes, source, config, image) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET image = excluded.image",
            base.id,
            base.created_at,
            base.size_bytes,
            base.source,
            json.dumps(dataclasses.asdict(base.config)),
            base.image,
        )
        self.name_base(base.id, base.names)

    def name_base(self, base_id: str, names: Iterable[str]) -> None:
        for name in names:
            self._write("INSERT OR REPLACE INTO base_names (name, base_id) VALUES (?, ?)", name, base_id)

    def unname_base(self, name: str) -> None:
        self._write("DELETE FROM base_names WHERE name = ?", name)

    def forget_base(self, base_id: str) -> None:
        """Remove a base and its names, in a transaction of the caller's."""
        self._write("DELETE FROM base_names WHERE base_id = ?", base_id)
        self._write("DELETE FROM bases WHERE id = ?", base_id)

    def sessions_over(self, base_path: str) -> list[str]:
        """The sessions, by name or id, whose base is at ``base_path``."""
        rows = self._rows(
            "SELECT coalesce(name, id) FROM sessions WHERE base_path = ? ORDER BY created_at, id", base_path
        )
        return [str(row[0]) for row in rows]

    def _base(self, row: sqlite3.Row) -> BaseRecord:
        names = self._rows("SELECT name FROM base_names WHERE base_id = ? ORDER BY name", row["id"])
        fields = json.loads(row["config"])
        lists = ("shell", "ports", "volumes", "entrypoint", "cmd")
        return BaseRecord(
            id=row["id"],
            names=tuple(str(name[0]) for name in names),
            created_at=row["created_at"],
            size_bytes=row["size_bytes"],
            source=row["source"],
            config=ImageConfig(**{**fields, **{name: tuple(fields[name]) for name in lists}}),
            image=row["image"],
        )
