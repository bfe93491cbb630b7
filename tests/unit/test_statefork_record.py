"""What is stored of an environment between processes, and what happens when it cannot be stored."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statefork import create_env_manager, open_env_manager
from statefork.backends.memory import MemoryBackend
from statefork.cli.main import main
from statefork.errors import BackendFailed, StateForkError
from statefork.record import directories, read_record


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Act as a full disk: the kernel writes what still fits, then nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def sequences(history: Path) -> list[int]:
    return [json.loads(line)["sequence"] for line in history.read_text().splitlines()]


def test_a_partly_written_history_continues_when_there_is_space(tmp_path: Path) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    directory = tmp_path / env.core.id
    history = directory / "history.jsonl"
    saved = env.snapshot()
    assert saved is not None
    while history.stat().st_size < 2 * (directory / "environment.json").stat().st_size:
        assert env.restore(saved)
    with no_file_longer_than(history.stat().st_size + 20):
        assert not env.restore(saved)
    assert not history.read_text().endswith("\n"), "only a part of the line must be written"
    assert len(read_record(directory).history) == len(env.stats.entries) - 1
    assert env.restore(saved)
    assert sequences(history) == list(range(1, len(env.stats.entries) + 1))
    env.core.leave()
    with open_env_manager(env.core.id, state_dir=tmp_path) as again:
        assert again.stats.entries == env.stats.entries


def test_a_damaged_history_is_reported_and_does_not_prevent_cleanup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = create_env_manager("memory", state_dir=tmp_path)
    env.core.leave()
    history = tmp_path / env.core.id / "history.jsonl"
    damaged = '{"sequ{"sequence": 1}\n'
    history.write_text(damaged)
    with pytest.raises(StateForkError, match=f"the history of environment {env.core.id}") as refused:
        open_env_manager(env.core.id, state_dir=tmp_path)
    assert str(history) in refused.value.hint

    def fail(_self: MemoryBackend) -> None:
        raise BackendFailed("memory", "cleanup", "the daemon is gone")

    words = ["cleanup", env.core.id, "--state-dir", str(tmp_path)]
    with monkeypatch.context() as patched:
        patched.setattr(MemoryBackend, "close", fail)
        assert main(words) == 1
        assert "the daemon is gone" in capsys.readouterr().err
        assert history.read_text() == damaged, "the file must stay, so that it can be repaired"
    assert main(words) == 0
    assert list(directories(tmp_path)) == []
