"""The probe answers every question, quickly, and leaves nothing behind."""

import ctypes
from pathlib import Path

import pytest

from waypoint.errors import AbilityMissing
from waypoint.kernel import probe
from waypoint.kernel.criu.provision import CriuBuild
from waypoint.kernel.probe import Ability, can_checkpoint, probe_host


def by_name(abilities: list[Ability]) -> dict[str, Ability]:
    return {ability.name: ability for ability in abilities}


def working_criu(tmp_path: Path, status: int = 0, version: str = "4.2.1") -> CriuBuild:
    """A stand-in for CRIU whose ``check`` ends with ``status``."""
    program = tmp_path / f"criu-{status}"
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    return CriuBuild(command=(str(program),), version=version, origin="prefix")


def test_every_ability_says_what_was_found_why_it_matters_and_how_to_get_it(tmp_path: Path) -> None:
    abilities = probe_host(None, tmp_path)
    assert len({ability.name for ability in abilities}) == len(abilities)
    for ability in abilities:
        assert ability.detail, ability.name
        assert ability.why, ability.name
        assert ability.remedy, ability.name


def test_without_criu_nothing_can_be_checkpointed(tmp_path: Path) -> None:
    abilities = probe_host(None, tmp_path)
    assert not by_name(abilities)["CRIU"].found
    assert by_name(abilities)["CRIU"].remedy == "waypoint setup"
    assert not can_checkpoint(abilities)


@pytest.mark.parametrize(
    ("status", "version", "found", "told"),
    [(0, "4.2.1", True, "4.2.1"), (1, "4.2.1", False, "check fails"), (0, "3.17.1", False, "too old")],
)
def test_criu_counts_only_if_new_enough_and_its_check_passes(
    tmp_path: Path, status: int, version: str, found: bool, told: str
) -> None:
    ability = by_name(probe_host(working_criu(tmp_path, status, version), tmp_path))["CRIU"]
    assert ability.found is found
    assert told in ability.detail


@pytest.mark.parametrize(("found", "detail"), [(True, "libvterm.so.0"), (False, "not installed")])
def test_the_screen_library_is_probed_and_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool, detail: str
) -> None:
    load = ctypes.CDLL

    def library(name: str | None, *, use_errno: bool = False) -> object:
        if name is None:
            return load(None, use_errno=use_errno)
        if not found:
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    monkeypatch.setattr(ctypes, "CDLL", library)
    ability = by_name(probe_host(None, tmp_path))["libvterm"]
    assert (ability.found, ability.required, ability.detail) == (found, False, detail)
    assert ability.remedy == "apt-get install libvterm0"


def test_a_missing_optional_ability_allows_checkpoints_but_a_missing_required_one_does_not() -> None:
    def ability(*, found: bool, required: bool) -> Ability:
        return Ability(name="x", found=found, required=required, detail="d", why="w", remedy="r")

    assert can_checkpoint([ability(found=True, required=True), ability(found=False, required=False)])
    assert not can_checkpoint([ability(found=False, required=True)])


def test_a_host_without_cgroup_v2_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise AbilityMissing("cgroup v2 is not mounted")

    monkeypatch.setattr(probe, "find_cgroup2", nowhere)
    abilities = by_name(probe_host(None, tmp_path))
    for name in ("cgroup v2 freeze", "cgroup v2 kill"):
        assert not abilities[name].found
        assert abilities[name].detail == "cgroup v2 is not mounted"


def test_the_probe_uses_a_temporary_cgroup_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "find_cgroup2", lambda: tmp_path)
    abilities = by_name(probe_host(None, tmp_path))
    assert not abilities["cgroup v2 kill"].found, "a plain directory has no cgroup.kill"
    assert list(tmp_path.iterdir()) == []


def test_the_state_directory_need_not_exist_yet(tmp_path: Path) -> None:
    ability = by_name(probe_host(None, tmp_path / "not" / "yet"))["free space"]
    assert str(tmp_path) in ability.detail
    assert not (tmp_path / "not").exists()


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MIN_FREE_BYTES", 1 << 60)
    assert not by_name(probe_host(None, tmp_path))["free space"].found
