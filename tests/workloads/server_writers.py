"""Clients that write to a database server as fast as they can, and connect anew at random.

Each counts what the server has confirmed, and says how much while /tmp/stop exists. ``check`` lets them say so, and
compares that with what the server has.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

STOP, FAILED = Path("/tmp/stop"), Path("/tmp/failed")
WRITERS = ("first", "second")


class Client(Protocol):
    def insert(self, name: str, number: int) -> None:
        """Return when it is confirmed."""

    def numbers(self, name: str) -> list[int]: ...

    def close(self) -> None: ...


class Redis:
    """Speaks Redis's protocol."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", 6379))
        self._file = self._socket.makefile("rb")

    def insert(self, name: str, number: int) -> None:
        assert self._ask("rpush", name, str(number)) == number + 1

    def numbers(self, name: str) -> list[int]:
        answer = self._ask("lrange", name, "0", "-1")
        assert isinstance(answer, list)
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _ask(self, *words: str) -> int | list[int]:
        parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self._socket.sendall(f"*{len(words)}\r\n{parts}".encode())
        head = self._file.readline()
        if head.startswith(b":"):
            return int(head[1:])
        assert head.startswith(b"*"), head
        items = []
        for _ in range(int(head[1:])):
            self._file.readline()
            items.append(int(self._file.readline()))
        return items


class Postgres:
    """A psql that is told what to do."""

    def __init__(self) -> None:
        self._psql = subprocess.Popen(
            ["psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "postgresql://postgres@/postgres?host=/tmp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def insert(self, name: str, number: int) -> None:
        answer = self._ask(f"insert into numbers values ('{name}', {number}) returning number")
        assert answer == str(number), answer

    def numbers(self, name: str) -> list[int]:
        answer = self._ask(f"select json_agg(number order by number) from numbers where name = '{name}'")
        numbers: list[int] = json.loads(answer.strip() or "[]")
        return numbers

    def close(self) -> None:
        self._psql.communicate()

    def _ask(self, statement: str) -> str:
        assert self._psql.stdin is not None
        assert self._psql.stdout is not None
        self._psql.stdin.write(f"{statement};\n\\echo end\n")
        self._psql.stdin.flush()
        lines = []
        while (line := self._psql.stdout.readline()) != "end\n":
            assert line, "psql has ended"
            lines.append(line)
        return "".join(lines).rstrip("\n")


CLIENTS: dict[str, type[Client]] = {"redis": Redis, "postgres": Postgres}


def write_for_ever(kind: str, name: str) -> None:
    chance = random.Random(name)
    client = CLIENTS[kind]()
    count = 0
    while True:
        if STOP.exists():
            Path(f"/tmp/draft-{name}").write_text(str(count))
            os.rename(f"/tmp/draft-{name}", f"/tmp/report-{name}")
            while STOP.exists():
                time.sleep(0.002)
        if chance.random() < 0.02:
            client.close()
            client = CLIENTS[kind]()
        client.insert(name, count)
        count += 1


def start(kind: str) -> None:
    for name in WRITERS:
        if os.fork() == 0:
            try:
                write_for_ever(kind, name)
            except BaseException as error:
                FAILED.write_text(f"{name}: {error!r}")
                raise


def check(kind: str) -> None:
    """Print how much each writer has seen confirmed, after a look that exactly this is there."""
    STOP.touch()
    reports = {name: Path(f"/tmp/report-{name}") for name in WRITERS}
    while not all(report.exists() for report in reports.values()):
        assert not FAILED.exists(), FAILED.read_text()
        time.sleep(0.002)
    counts = {name: int(report.read_text()) for name, report in reports.items()}
    compare(kind, counts)
    for report in reports.values():
        report.unlink()
    STOP.unlink()
    sys.stdout.write(json.dumps(counts))


def compare(kind: str, counts: dict[str, int], *, may_be_more: bool = False) -> None:
    client = CLIENTS[kind]()
    for name, count in counts.items():
        numbers = client.numbers(name)
        wanted = len(numbers) if may_be_more and len(numbers) > count else count
        assert numbers == list(range(wanted)), f"{name}: {len(numbers)} numbers, {count} confirmed"
    client.close()


if __name__ == "__main__":
    verb, kind, *rest = sys.argv[1:]
    if verb == "contains":
        compare(kind, json.loads(rest[0]), may_be_more=True)
    else:
        {"start": start, "check": check}[verb](kind)
