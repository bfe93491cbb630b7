"""The Python package, as a program uses it: ``import waypoint``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import waypoint as package
from support.waiting import wait_until
from waypoint.errors import Busy

HEAVY = "argparse asyncio concurrent.futures ctypes email http logging multiprocessing socket sqlite3 ssl subprocess"
IMPORT = """
import json, sys
before, events = set(sys.modules), []
sys.addaudithook(lambda event, _: events.append(event))
import waypoint
print(json.dumps({"modules": sorted(set(sys.modules) - before), "events": sorted(set(events))}))
"""


def test_a_program_can_branch_a_live_web_server(
    state_dir: Path, workspace: Path, leaves_nothing_behind: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYPOINT_STATE_DIR", os.fspath(state_dir))
    with package.open() as wp:
        s = wp.create(workspace=workspace)
        # Otherwise its log would be written to the terminal, between the output of later commands.
        s.exec("export MODE=debug; python3 -m http.server 8000 >/dev/null 2>&1 &")
        wait_until(s, "curl -s -o /dev/null localhost:8000")
        c = s.snapshot("ready")
        a, b = s.fork(c, n=2)
        assert b.exec("curl -s -o /dev/null -w '%{http_code}' localhost:8000").output == "200"
        s.exec("unset MODE; kill %1; wait")
        s.restore(c)
        for branch in (s.main, a, b):
            answer = branch.exec("echo $MODE; curl -s -o /dev/null -w '%{http_code}' localhost:8000")
            assert answer.output == "debug\n200"
    with package.open(state_dir) as wp:  # closing ended no process
        again = wp.session(s.id)
        assert again.exec("echo $MODE").output == "debug\n"
        again.cleanup()


def test_every_public_name_can_be_imported() -> None:
    namespace: dict[str, object] = {}
    exec("from waypoint import *", namespace)
    namespace.pop("__builtins__")
    assert sorted(namespace) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="nosuch"):
        package.__getattribute__("nosuch")


def test_import_starts_no_process_and_loads_nothing_heavy() -> None:
    ended = subprocess.run([sys.executable, "-I", "-c", IMPORT], capture_output=True, check=True)
    seen = json.loads(ended.stdout)
    assert set(HEAVY.split()) & set(seen["modules"]) == set()
    started = {"os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.connect", "subprocess.Popen"}
    assert started & set(seen["events"]) == set()


def test_a_plain_exec_of_the_command_line_loads_only_what_it_needs() -> None:
    code = "import sys, waypoint.cli.main; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True, text=True)
    not_needed = "argparse ctypes dataclasses enum inspect json logging pathlib re socket subprocess typing"
    assert set(not_needed.split()) & set(ended.stdout.split()) == set()


RUN = """
import sys
from waypoint.cli.main import main
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""
OF_OTHER_VERBS = """
waypoint.kernel.apt waypoint.kernel.bases waypoint.kernel.probe waypoint.kernel.criu.foreign waypoint.kernel.copy.file_tree
waypoint.session.bases waypoint.session.terminals waypoint.session.new_session waypoint.session.branch_files
waypoint.session.network.port_forwards waypoint.session.background.attendant waypoint.session.lifecycle.recovery
waypoint.session.lifecycle.host_program waypoint.session.lifecycle.create waypoint.session.lifecycle.suspend
waypoint.shell.emulator waypoint.cli.bases waypoint.cli.creation waypoint.cli.files waypoint.cli.host waypoint.cli.terminals
tarfile tempfile uuid
"""
"""Modules of other verbs, which none of the common verbs may import."""


def test_a_common_verb_imports_only_what_it_needs(
    state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    with package.Waypoint(os.fspath(state_dir)) as wp:
        session = wp.create(workspace)
        session.snapshot("ready")
        verbs = {
            ("snapshot", session.id): {"fork", "restore"},
            ("restore", session.id, "ready"): {"fork", "snapshot"},
            ("fork", session.id, "ready"): {"restore", "snapshot"},
            ("list", session.id): {"fork", "restore", "snapshot", "endings"},
        }
        for words, others in verbs.items():
            ended = subprocess.run(
                [sys.executable, "-I", "-c", RUN, "--state-dir", os.fspath(state_dir), *words],
                capture_output=True,
                check=True,
                text=True,
            )
            loaded = set(ended.stderr.split())
            forbidden = {
                *OF_OTHER_VERBS.split(),
                *(f"waypoint.session.lifecycle.{other}" for other in others),
            }
            assert forbidden & loaded == set(), words
        session.cleanup()


def test_the_package_works_from_another_directory_than_the_clone(tmp_path: Path) -> None:
    code = "import waypoint; print(waypoint.open.__doc__ is not None, waypoint.Session.__name__)"
    ended = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert ended.stdout == b"True Session\n"


def test_the_pool_is_unmounted_and_mounted_again_for_the_same_open_waypoint(
    state_dir: Path, workspace: Path, leaves_nothing_behind: None
) -> None:
    with package.Waypoint(os.fspath(state_dir)) as wp:
        session = wp.create(workspace)
        with pytest.raises(Busy, match=f"in use by {session.id}:main"):
            wp.unmount_pool()
        session.cleanup()
        wp.unmount_pool()
        assert not os.path.ismount(state_dir / "pool")
        session = wp.create(workspace)
        assert session.exec("echo here").output == "here\n"
        session.cleanup()
