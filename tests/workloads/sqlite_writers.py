"""Two processes that write to one SQLite database as fast as they can, and open it anew at random.

Each has two connections, counts the rows it has committed, and says how many while /tmp/stop exists. ``check`` lets them
say so, and compares that with what is in the database.
"""

import json
import os
import random
import sqlite3
import sys
import time
from pathlib import Path

DATABASE = Path("/tmp/database/rows.db")
STOP, FAILED = Path("/tmp/stop"), Path("/tmp/failed")
WRITERS = ("first", "second")


def connect() -> sqlite3.Connection:
    return sqlite3.connect(DATABASE, timeout=30, isolation_level=None)


def write_for_ever(name: str) -> None:
    chance = random.Random(name)
    connections = [connect(), connect()]
    count = 0
    while True:
        if STOP.exists():
            report(name, count)
        which = chance.randrange(2)
        if chance.random() < 0.2:
            connections[which].close()
            connections[which] = connect()
        connection = connections[which]
        connection.execute("begin immediate")
        connection.execute("insert into rows values (?, ?)", (name, count))
        connection.execute("commit")
        count += 1
        if chance.random() < 0.1:
            seen = (
                connections[1 - which].execute("select count(*) from rows where name = ?", (name,)).fetchone()
            )
            assert seen == (count,), f"one connection has committed {count} rows, the other sees {seen}"


def report(name: str, count: int) -> None:
    Path(f"/tmp/draft-{name}").write_text(str(count))
    os.rename(f"/tmp/draft-{name}", f"/tmp/report-{name}")
    while STOP.exists():
        time.sleep(0.002)


def start(mode: str) -> None:
    DATABASE.parent.mkdir()
    first = connect()
    assert first.execute(f"pragma journal_mode = {mode}").fetchone() == (mode,)
    first.execute("create table rows (name, number)")
    first.close()
    for name in WRITERS:
        if os.fork() == 0:
            try:
                write_for_ever(name)
            except BaseException as error:
                FAILED.write_text(f"{name}: {error!r}")
                raise


def check() -> None:
    """Print how many rows each has committed, after a look that exactly these are there."""
    STOP.touch()
    reports = {name: Path(f"/tmp/report-{name}") for name in WRITERS}
    while not all(report.exists() for report in reports.values()):
        assert not FAILED.exists(), FAILED.read_text()
        time.sleep(0.002)
    counts = {name: int(report.read_text()) for name, report in reports.items()}
    connection = connect()
    for name, count in counts.items():
        rows = connection.execute("select number from rows where name = ? order by rowid", (name,)).fetchall()
        assert rows == [(number,) for number in range(count)], f"{name}: {len(rows)} rows, {count} committed"
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()
    for report in reports.values():
        report.unlink()
    STOP.unlink()
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    check() if sys.argv[1] == "check" else start(sys.argv[1])
