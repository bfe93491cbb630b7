"""What snapshots take on disk, as numbers and as text."""

from pathlib import Path

import pytest

from statefork import create_env_manager
from statefork.backend import EVERYTHING, Image, Instance
from statefork.backends.memory import MemoryBackend
from statefork.calculators import (
    Calculator,
    FileSizeCalculator,
    GvisorCalculator,
    ImageCalculator,
    WaypointCalculator,
)
from statefork.errors import WrongUse
from statefork.stats import BenchmarkStats

DOCKER = """#!/bin/sh
case "$1" in
images) [ "$3" = 'reference=app:*' ] && printf 'one\\ntwo\\n' ;;
history) [ "$5" = app:one ] && printf '1000\\n77\\n' || echo 2000 ;;
info) echo "$DOCKER_TEST_ROOT" ;;
container) echo '[{"Id": "aaaa", "State": {"Running": true, "Pid": 1, "ExitCode": 0}}]' ;;
esac
"""


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that keeps files and memory, and reports the size of both for each snapshot."""
    real = MemoryBackend.snapshot

    def snapshot(self: MemoryBackend, instance: Instance, snapshot_id: str) -> Image:
        real(self, instance, snapshot_id)
        sizes = {"memory": 4_000_000, "state": 1_000_000, "disk": 2_000_000, "disk-data": 1_000_000}
        return Image(id=snapshot_id, sizes=sizes)

    monkeypatch.setattr(MemoryBackend, "capabilities", EVERYTHING)
    monkeypatch.setattr(MemoryBackend, "snapshot", snapshot)


def test_files_and_memory_are_separate_and_each_snapshot_counts_once(halves: None, tmp_path: Path) -> None:
    with create_env_manager("memory", state_dir=tmp_path) as env:
        assert env.stats.print_size_details() == "No size details available."
        one, other = sorted(str(env.snapshot()) for _ in range(2))
        found = env.stats.get_all_statistics().size
        assert {label: (its.count, its.mean, its.max) for label, its in found.items()} == {
            "FILESYSTEM #1": (2, 3.0, 3.0),
            "MEMORY #1": (2, 5.0, 5.0),
        }
        text = env.stats.print_stats()
        assert "[FILESYSTEM #1] mean=3.000 MB median=3.000 MB min=3.000 MB max=3.000 MB" in text
        assert "[MEMORY #1] mean=5.000 MB" in text
        assert env.stats.print_size_details().splitlines() == [
            "[Storage Cost Summary #1]",
            f">> {one}: 3.000 MB",
            f">> {other}: 3.000 MB",
            "[Storage Cost Summary #2]",
            f">> {one}: 5.000 MB",
            f">> {other}: 5.000 MB",
        ]


def test_a_backend_with_one_store_has_one_number_for_each_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBackend, "image_sizes", lambda *_: {"files": 1_000_000, "more": 500_000})
    with create_env_manager("memory", state_dir=tmp_path) as env:
        env.snapshot()
        assert "[STORAGE #1] mean=1.500 MB" in env.stats.print_stats()


class Rows(Calculator):
    """A calculator as a user may write it."""

    def _collect(self) -> list[tuple[str, int]]:
        return [("a", 1_000_000), ("b", 3_000_000)]


def test_calculators_are_functions_or_the_published_classes() -> None:
    stats = BenchmarkStats()
    stats.attach_size_calculator(lambda: {"x": 1_000_000})
    stats.attach_size_calculator(dict)
    stats.attach_size_calculator(Rows("ROWS"))
    stats.attach_size_calculator(Rows())
    stats.attach_size_calculator(Rows("ROWS"), name="OTHER")
    assert list(stats.get_all_statistics().size) == ["STORAGE #1", "ROWS #1", "STORAGE #3", "OTHER #1"]
    assert "[ROWS #1] mean=2.000 MB median=2.000 MB min=1.000 MB max=3.000 MB" in stats.print_stats()


def test_directories_are_measured(tmp_path: Path) -> None:
    (tmp_path / "one/upper/below").mkdir(parents=True)
    (tmp_path / "one/upper/below/file").write_bytes(b"x" * 5000)
    (tmp_path / "two").write_bytes(b"x" * 300)
    directories = sum((tmp_path / name).stat().st_size for name in ("one", "one/upper", "one/upper/below"))
    assert FileSizeCalculator(tmp_path)() == {"one": directories + 5000, "two": 300}
    upper = WaypointCalculator(tmp_path, "upper", name="FILESYSTEM")
    assert upper.name == "FILESYSTEM"
    assert upper() == {"one": directories - (tmp_path / "one").stat().st_size + 5000}
    assert FileSizeCalculator(tmp_path / "nowhere")() == {}


def test_images_and_checkpoints_of_an_engine_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    checkpoint = tmp_path / "containers/aaaa/checkpoints/first"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"x" * 40)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_TEST_ROOT", str(tmp_path))
    assert ImageCalculator("docker", "app")() == {"one": 1000, "two": 2000}
    assert GvisorCalculator("web")() == {"first": 40}
    with pytest.raises(WrongUse, match="no container engine 'rocket'"):
        ImageCalculator("rocket", "app")
