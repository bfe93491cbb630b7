"""The SQLite file under the catalogue: connection, schema, transactions."""

from __future__ import annotations

import sqlite3
import threading

from waypoint.errors import CatalogueTooNew, StoreError

TYPE_CHECKING = False  # see waypoint.errors
if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Database"]

BUSY_TIMEOUT_S = 30.0

_MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, name TEXT UNIQUE, base_kind TEXT NOT NULL, base_path TEXT NOT NULL,
        extra_mounts TEXT NOT NULL, workspace TEXT NOT NULL, created_at REAL NOT NULL,
        is_open INTEGER NOT NULL, numbers_given INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE checkpoints (
        id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions(id), name TEXT NOT NULL,
        parent TEXT REFERENCES checkpoints(id), branch TEXT NOT NULL, created_at REAL NOT NULL,
        memory_bytes INTEGER NOT NULL, UNIQUE (session_id, name)
    ) STRICT;
    CREATE TABLE branches (
        session_id TEXT NOT NULL REFERENCES sessions(id), name TEXT NOT NULL, incarnation TEXT NOT NULL UNIQUE,
        init_pid INTEGER NOT NULL, head TEXT REFERENCES checkpoints(id), created_at REAL NOT NULL,
        PRIMARY KEY (session_id, name)
    ) STRICT;
    CREATE TABLE operations (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, session_id TEXT NOT NULL, branch TEXT NOT NULL,
        status TEXT NOT NULL, began_at REAL NOT NULL, total_ms REAL, incarnation TEXT, old_incarnation TEXT,
        checkpoint TEXT, phases_ms TEXT NOT NULL DEFAULT '{}'
    ) STRICT;
    CREATE INDEX operations_open ON operations (id) WHERE status IN ('begun', 'published');
    CREATE INDEX operations_of_session ON operations (session_id);
    """,
    "ALTER TABLE sessions ADD COLUMN settings TEXT NOT NULL DEFAULT '{}'",
    """
    CREATE TABLE ports (
        session_id TEXT NOT NULL REFERENCES sessions(id), branch TEXT NOT NULL, port INTEGER NOT NULL,
        host_port INTEGER NOT NULL UNIQUE, PRIMARY KEY (session_id, branch, port)
    ) STRICT
    """,
    """
    CREATE TABLE bases (
        id TEXT PRIMARY KEY, created_at REAL NOT NULL, size_bytes INTEGER NOT NULL, source TEXT NOT NULL,
        config TEXT NOT NULL, image TEXT
    ) STRICT;
    CREATE TABLE base_names (name TEXT PRIMARY KEY, base_id TEXT NOT NULL REFERENCES bases(id)) STRICT
    """,
    "ALTER TABLE checkpoints ADD COLUMN kind TEXT NOT NULL DEFAULT 'full'",
    "ALTER TABLE branches ADD COLUMN is_suspended INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE programs (
        session_id TEXT NOT NULL REFERENCES sessions(id), pid INTEGER NOT NULL, started INTEGER NOT NULL,
        boot TEXT NOT NULL, PRIMARY KEY (session_id, pid)
    ) STRICT
    """,
)


class Database:
    """One connection, usable from several threads."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._db.row_factory = sqlite3.Row
        try:
            # WAL: readers never wait for a writer. NORMAL: a commit survives our death but, at a power
            # failure, the last ones may be missing.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate(path)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise StoreError(
                f"{path} cannot be read: {error}", hint="put back a copy of this file"
            ) from error
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def transaction(self, *, survives_power_failure: bool = False) -> _Transaction:
        """A block whose writes become visible together, or not at all.

        If it is to survive a power failure, all that was written before will survive it too.
        """
        return _Transaction(self._lock, self._db, is_synced=survives_power_failure)

    def reading(self) -> _Transaction:
        """A block whose reads are all of one moment, whatever others write meanwhile."""
        return _Transaction(self._lock, self._db, writes=False)

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise _explained(error) from error

    def _write(self, query: str, *values: object) -> int:
        with self._lock:
            try:
                return self._db.execute(query, values).lastrowid or 0
            except sqlite3.Error as error:
                raise _explained(error) from error

    def _migrate(self, path: str | PathLike[str]) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(_MIGRATIONS):
            raise CatalogueTooNew(
                f"{path} has schema {version}, this version knows {len(_MIGRATIONS)}",
                hint="use the newer version of waypoint that wrote it",
            )
        if version == len(_MIGRATIONS):
            return
        with self.transaction():
            (version,) = self._db.execute("PRAGMA user_version").fetchone()  # another process may have won
            for number in range(version, len(_MIGRATIONS)):
                for statement in _MIGRATIONS[number].split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {number + 1}")


class _Transaction:
    def __init__(
        self, lock: threading.RLock, db: sqlite3.Connection, *, writes: bool = True, is_synced: bool = False
    ) -> None:
        self._lock = lock
        self._db = db
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        self._is_synced = is_synced

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self._is_synced:
                self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(self._begin)
        except BaseException as error:
            self._end()
            raise _explained(error) from error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise _explained(error) from error
        finally:
            self._end()

    def _end(self) -> None:
        """Whatever happened, also a signal between two lines, no transaction stays open."""
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if self._is_synced:
                self._db.execute("PRAGMA synchronous = NORMAL")
        finally:
            self._lock.release()


def _explained(error: BaseException) -> BaseException:
    """An error of SQLite as a StoreError; any other as it is. A violated constraint is for the caller to explain."""
    if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"the catalogue cannot be used: {error}", hint="is there space left on its disk?")
    return error
