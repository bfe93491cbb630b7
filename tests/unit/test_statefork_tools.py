"""What StateFork's backends decide without starting anything: arguments, flags, processes, what to download."""

import os
from pathlib import Path

import pytest

from statefork import runsc_provision
from statefork.backends.containers.run_arguments import Volume, parse_run_arguments
from statefork.backends.sandbox.runsc import keeps_files
from statefork.errors import WrongUse
from waypoint.errors import AbilityMissing
from waypoint.kernel.processes.process_tree import read_process, tree_of, wait_until_free
from waypoint.kernel.processes.programs import DEVNULL, spawn


def test_a_sandbox_understands_these_arguments_of_docker_run() -> None:
    words = ("-v", "/tmp:/tmp", "--volume=/etc:/look:ro", "-e", "A=b=c", "-e", "EMPTY=", "-w", "/app")
    parsed = parse_run_arguments(words)
    assert parsed.volumes == (Volume(Path("/tmp"), "/tmp", False), Volume(Path("/etc"), "/look", True))
    assert parsed.env == {"A": "b=c", "EMPTY": ""}
    assert parsed.workdir == "/app"


@pytest.mark.parametrize("words", [("-p", "80:80"), ("-v", "x:/y"), ("-v", "/x"), ("-v", "/x:/y:z"), ("x",)])
def test_unsupported_arguments_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(WrongUse, match="extra_args"):
        parse_run_arguments(words)


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ((), True),
        (("--overlay2=root:memory",), True),
        (("--overlay2=all:self",), True),
        (("--overlay2=none",), False),
    ],
)
def test_the_flags_of_a_sandbox_show_whether_it_keeps_files(flags: tuple[str, ...], kept: bool) -> None:
    assert keeps_files(flags) is kept


class TestProcesses:
    def test_a_tree_has_its_descendants_and_no_other_process(self) -> None:
        process = spawn(("sh", "-c", "sleep 1000 & sleep 1000"), stdout=DEVNULL, stderr=DEVNULL)
        try:
            while len(tree_of(process.pid)) < 3:
                assert process.poll() is None
            tree = tree_of(process.pid)
            assert tree[0].pid == process.pid
            assert {entry.session for entry in tree} == {process.pid}
        finally:
            os.killpg(process.pid, 9)
            process.wait()
        assert tree_of(process.pid) == []

    def test_our_own_dead_child_is_reaped_so_that_its_pid_is_free(self) -> None:
        process = spawn(("true",), stdout=DEVNULL, stderr=DEVNULL)
        while (found := read_process(process.pid)) is not None and found.is_alive:
            pass
        assert wait_until_free([process.pid]) is None
        assert read_process(process.pid) is None
        process.wait()

    def test_a_killed_process_is_waited_for(self) -> None:
        process = spawn(("sleep", "1000"), stdout=DEVNULL, stderr=DEVNULL)
        process.kill()
        assert wait_until_free([process.pid]) is None
        process.wait()

    def test_a_process_that_keeps_running_is_reported(self) -> None:
        found = wait_until_free([os.getpid()])
        assert found is not None
        assert found.is_alive


class TestRunsc:
    def test_a_runsc_that_is_too_old_or_prints_no_version_does_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STATEFORK_STATE_DIR", str(tmp_path))
        monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
        program = tmp_path / "tools/runsc/usr/bin/runsc"
        program.parent.mkdir(parents=True)
        for text, is_found in (
            ("runsc version 0.0~20240729.0", True),
            ("0.0~20221219.0", False),
            ("", False),
        ):
            program.write_text(f"#!/bin/sh\necho '{text}'\n")
            program.chmod(0o755)
            runsc_provision.runsc_release.cache_clear()
            assert (runsc_provision.find_runsc() == program) is is_found
        runsc_provision.runsc_release.cache_clear()

    def test_no_package_source_is_an_error_with_a_hint_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STATEFORK_STATE_DIR", str(tmp_path))
        monkeypatch.setattr(runsc_provision, "find_runsc", lambda: None)
        monkeypatch.setattr(runsc_provision, "APT_DIR", tmp_path / "no-apt")
        with pytest.raises(AbilityMissing, match="no source of Debian packages") as caught:
            runsc_provision.provision_runsc(lambda _: None)
        assert "PATH" in caught.value.hint
        assert [path.name for path in (tmp_path / "tools").iterdir()] == ["runsc.lock"]
