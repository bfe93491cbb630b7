"""The sample programs, run as their page says."""

import hashlib
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.waiting import wait_for


@contextmanager
def running(app: str, *words: object) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-m", f"statefork.apps.{app}", *map(str, words)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
        return found


# Without a proxy, whatever the caller's environment sets.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(port: int, path: str) -> str:
    with OPENER.open(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
        text: bytes = answer.read()
        return text.decode()


def test_the_kv_server_keeps_what_it_is_sent(port: int, tmp_path: Path) -> None:
    with running("kv_server", port, tmp_path / "up"):
        wait_for((tmp_path / "up").exists)
        assert json.loads(ask(port, "")) == {"keys": 5}
        ask(port, "set/a%20b/1")
        assert json.loads(ask(port, "get/a%20b")) == {"key": "a b", "value": "1"}
        assert json.loads(ask(port, "all"))["key1"] == "value1"
        with pytest.raises(urllib.error.HTTPError) as missing:
            ask(port, "get/nothing")
        assert missing.value.code == 404
        missing.value.close()


def test_the_logger_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running("logger", log, 0.01):
        wait_for(lambda: log.exists() and log.read_text().count("\n") >= 3)
    numbers = [int(line) for line in log.read_text().split()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_memory_hog_reports_the_digest_of_its_memory(port: int, tmp_path: Path) -> None:
    with running("memory_hog", 2, port, tmp_path / "up") as process:
        wait_for((tmp_path / "up").exists)
        digests = {digest_at(port) for _ in range(2)}
        assert len(digests) == 1
        assert len(digests.pop()) == len(hashlib.sha256().hexdigest())
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        assert pages * 4096 > 2 << 20


def digest_at(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        return client.recv(99).decode()


def test_the_file_generator_adds_files(tmp_path: Path) -> None:
    for total in (2, 4):
        subprocess.run(
            [sys.executable, "-m", "statefork.apps.file_generator", tmp_path / "files", "2"], check=True
        )
        sizes = [path.stat().st_size for path in (tmp_path / "files").iterdir()]
        assert sizes == [1 << 20] * total


def test_the_shop_keeps_its_state_in_database_files_and_memory(port: int, tmp_path: Path) -> None:
    with running("shop", tmp_path, port):
        wait_for((tmp_path / "up").exists)
        ask(port, "price/book/1999")
        ask(port, "add/book")
        ask(port, "add/book")
        assert ask(port, "total") == "$39.98\n"
        assert ask(port, "discount/50") == "$19.99\n"
        assert json.loads((tmp_path / "config.json").read_text()) == {"discount": 50}
        assert (tmp_path / "shop.db").exists()
    with running("shop", tmp_path, port):
        wait_for(lambda: is_open(port))
        assert ask(port, "total") == "$0.00\n", "the cart was only in memory"


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return False
    return True
