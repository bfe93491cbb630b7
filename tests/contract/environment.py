"""What every backend promises its users. Its test file supplies the fixture ``shared`` and subclasses the contract.

A claimed capability must hold, and an unclaimed one must be absent: the table in the docs is generated from the claims.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statefork import EnvironmentManager, ForkableEnvironmentManager
from statefork.errors import CommandTimedOut, StateForkError, UnknownSnapshot, Unsupported
from statefork.survival_probes import PROBES, Probing

__all__ = ["EnvironmentContract", "discard_other_branches", "run"]

NO_BRANCHES = "branches beside each other are not claimed"


def run(env: EnvironmentManager, command: str, branch: str | None = None) -> str:
    result = env.core.run(command, branch_id=branch, timeout_s=120.0)
    assert result.exit_code == 0, (command, result)
    return result.output


def discard_other_branches(env: EnvironmentManager) -> None:
    """Discard all branches but main, for the next test."""
    if not env.core.is_closed:
        env.core.switch("main")
        for branch in env.core.branches():
            if branch.id != "main":
                env.core.discard(branch.id)


class EnvironmentContract:
    """The fixture ``shared`` must give an environment with a POSIX shell, coreutils, procps and python3.

    Environments take seconds to make, so all tests of the class share one, and each sets up what it needs.
    """

    @pytest.fixture
    def env(self, shared: EnvironmentManager) -> Iterator[EnvironmentManager]:
        yield shared
        discard_other_branches(shared)

    def end(self, env: EnvironmentManager) -> None:
        """End the current branch without the manager's knowledge."""
        env.core.backend.discard(env.core.branch().instance)

    def test_a_restore_and_a_fork_keep_exactly_the_claimed_capabilities(
        self, env: EnvironmentManager
    ) -> None:
        claimed = {probe.capability for probe in PROBES} & set(env.capabilities.names())
        clean = env.core.snapshot().snapshot_id
        probing = Probing(env.core)
        probing.prepare()
        saved = env.core.snapshot().snapshot_id
        assert probing.found() >= claimed, "the saved branch does not keep running"
        probing.disturb()
        if env.capabilities.concurrent_branches:
            [fork] = env.core.fork(saved)
            assert probing.found(fork.id) == claimed
        else:
            with pytest.raises(Unsupported):
                env.core.fork(saved)
        env.core.restore(saved)
        assert probing.found() == claimed
        env.core.restore(clean)
        probing.end()

    def test_tmp_is_restored_too_and_each_branch_has_its_own(self, env: EnvironmentManager) -> None:
        path = f"/tmp/sf-{secrets.token_hex(4)}"
        run(env, f"echo before > {path}")
        if not env.capabilities.files:
            Path(path).unlink()  # it is a file of the host
            pytest.skip("files are not claimed to be kept")
        saved = env.core.snapshot().snapshot_id
        run(env, f"echo after > {path}")
        assert not Path(path).exists(), "the file was made on the host"
        [fork] = env.core.fork(saved)
        assert run(env, f"cat {path}", fork.id) == "before\n"
        run(env, f"echo forked > {path}", fork.id)
        assert run(env, f"cat {path}") == "after\n"
        env.core.restore(saved)
        assert run(env, f"cat {path}") == "before\n"

    def test_commands_return_their_exit_code_and_output(self, env: EnvironmentManager) -> None:
        assert env.exec_command("echo out; exit_status() { return 7; }; exit_status")[:2] == (7, "out\n")
        assert env.exec_command(["printf", "%s|", "a b", "$HOME"])[:2] == (0, "a b|$HOME|")
        assert env.exec_command("printf 'no newline'")[1] == "no newline"

    def test_a_command_that_times_out_is_ended_and_the_environment_still_works(
        self, env: EnvironmentManager
    ) -> None:
        code, _, errors = env.exec_command("sleep 1000", timeout=0.5)
        assert (code, errors) == (-2, "[timeout after 0.5s]")
        with pytest.raises(CommandTimedOut):
            env.core.run("sleep 1000", timeout_s=0.5)
        assert run(env, "echo here") == "here\n"

    def test_an_agent_can_try_two_ways_from_the_same_point(self, env: EnvironmentManager) -> None:
        """The loop agents run: activate once, try A from there, go back, try B from the very same point.

        Where the shell is not part of the state, each command starts afresh, before and after the restore.
        """
        keeps = env.capabilities
        activated = "on debug /var/tmp/task" if keeps.shell else ""
        look = "echo $TOOLS $MODE $PWD"
        run(env, "mkdir -p /var/tmp/task && echo 'export TOOLS=on' > /var/tmp/task/activate")
        fresh = run(env, look).strip()
        run(env, "cd /var/tmp/task && . ./activate && export MODE=debug")
        ready = env.snapshot()
        assert ready is not None
        assert run(env, look).strip() == (activated or fresh)
        code, _, _ = env.exec_command(
            "export MODE=a && cd / && echo broken > /var/tmp/task/result && cat /nowhere"
        )
        assert code != 0, "A did not fail"
        assert env.restore(ready)
        assert run(env, look).strip() == (activated or fresh)
        has_result = env.exec_command("cat /var/tmp/task/result")[0] == 0
        assert has_result is not keeps.files, "the file that A wrote"
        run(env, "echo fixed > /var/tmp/task/result")
        assert run(env, "cat /var/tmp/task/result") == "fixed\n", "B does not work"
        run(env, "cd /")  # the directory may be on the host, and will be removed

    def test_a_restore_reaches_any_snapshot_of_the_tree_and_can_continue_from_it(
        self, env: EnvironmentManager
    ) -> None:
        def seen(as_restored: str, as_written: str) -> bool:
            # Where files are not part of the state, they keep what was written last.
            expected = as_restored if env.capabilities.files else as_written
            return run(env, "cat /var/tmp/step").split() == expected.split()

        one, two = self.step(env, "one"), self.step(env, "two")
        assert env.restore(one)
        assert seen("one", "one two")
        three = self.step(env, "three")
        assert env.restore(two)
        assert seen("one two", "one two three")
        assert env.restore(three)
        assert seen("one three", "one two three")
        assert {env.snapshot_graph[saved].parent_id for saved in (two, three)} == {one}
        assert env.current_snapshot == three

    def step(self, env: EnvironmentManager, name: str) -> str:
        run(env, f"echo {name} >> /var/tmp/step")
        return env.core.snapshot().snapshot_id

    def test_branches_do_not_see_each_other(self, env: EnvironmentManager) -> None:
        claims = (env.capabilities.live_fork, env.capabilities.concurrent_branches)
        if not isinstance(env, ForkableEnvironmentManager):
            assert claims == (False, False)
            pytest.skip(NO_BRANCHES)
        assert claims == (True, True)
        run(env, "echo base > /var/tmp/note")
        saved = env.snapshot()
        assert saved is not None
        made = env.fork(saved, n=2)
        assert len(made) == 2
        for branch in made:
            run(env, f"echo {branch.id} > /var/tmp/note; export NOTE={branch.id}", branch.id)

        def seen_file(own: str) -> str:
            # Where files are not part of the state, there is only one file, with what the last branch wrote.
            return own if env.capabilities.files else f"{made[-1].id}\n"

        for branch in made:
            assert run(env, "cat /var/tmp/note", branch.id) == seen_file(f"{branch.id}\n")
            if env.capabilities.shell:
                assert run(env, "echo $NOTE", branch.id) == f"{branch.id}\n"
        assert run(env, "cat /var/tmp/note") == seen_file("base\n")
        parked = env.park_branch(made[0].id)
        assert parked is not None
        [again] = env.fork(parked, ids=[made[0].id])
        assert run(env, "cat /var/tmp/note", again.id) == seen_file(f"{again.id}\n")
        assert env.discard_branch(made[1].id)
        assert {branch.id for branch in env.list_branches()} == {"main", again.id}

    def test_files_are_copied_in_and_out(self, env: EnvironmentManager, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(bytes(range(256)) * 100)
        assert env.copy_in(source, "/var/tmp/copied")
        assert run(env, "wc -c < /var/tmp/copied").strip() == "25600"
        assert env.copy_out("/var/tmp/copied", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == source.read_bytes()
        assert not env.copy_in(tmp_path / "nothing", "/var/tmp/nothing")
        assert not env.copy_out("/var/tmp/nothing", tmp_path / "nothing")

    def test_files_are_copied_into_and_out_of_one_branch(
        self, env: EnvironmentManager, tmp_path: Path
    ) -> None:
        if not isinstance(env, ForkableEnvironmentManager):
            pytest.skip(NO_BRANCHES)
        run(env, "rm -f /var/tmp/copied")
        saved = env.snapshot()
        assert saved is not None
        [fork] = env.fork(saved)
        (tmp_path / "source").write_text("for the fork")
        assert env.copy_in_branch(fork.id, tmp_path / "source", "/var/tmp/copied")
        assert run(env, "cat /var/tmp/copied", fork.id) == "for the fork"
        assert env.copy_out("/var/tmp/copied", tmp_path / "main") is not env.capabilities.files
        assert env.copy_out_branch(fork.id, "/var/tmp/copied", tmp_path / "back")
        assert (tmp_path / "back").read_text() == "for the fork"
        assert not env.copy_in_branch("nobody", tmp_path / "source", "/var/tmp/copied")
        assert not env.copy_out_branch("nobody", "/var/tmp/copied", tmp_path / "nothing")

    def test_copies_follow_the_same_rules_in_every_backend(
        self, env: EnvironmentManager, tmp_path: Path
    ) -> None:
        """Missing directories are made; a directory is merged into an existing one, and a file is put into it."""
        tree = tmp_path / "tree"
        (tree / "sub").mkdir(parents=True)
        (tree / "sub/file").write_text("in tree")
        (tree / "private").write_text("private")
        (tree / "private").chmod(0o600)
        (tree / "link").symlink_to("sub/file")
        (tmp_path / "to-tree").symlink_to("tree")
        run(env, "mkdir -p /var/tmp/copies/there && echo kept > /var/tmp/copies/there/kept")
        for target in ("there", "deep/er"):
            assert env.copy_in(tmp_path / "to-tree", f"/var/tmp/copies/{target}"), "a link must be followed"
        assert env.copy_in(tree / "sub/file", "/var/tmp/copies/there")
        assert env.copy_in(tree / "sub/file", "/var/tmp/copies/new/")
        look = "cd /var/tmp/copies && cat there/kept there/sub/file there/link there/file new/file && cd /"
        assert run(env, look) == "kept\n" + "in tree" * 4
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine").touch()
        for target in ("out", "far/away"):
            assert env.copy_out("/var/tmp/copies/deep/er", tmp_path / target)
            assert (tmp_path / target / "sub/file").read_text() == "in tree"
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "link",
            "mine",
            "private",
            "sub",
        ]
        assert env.copy_out("/var/tmp/copies/deep/er/private", tmp_path / "out/sub")
        if env.core.backend.runs_programs:
            assert os.readlink(tmp_path / "out/link") == "sub/file"
            assert (tmp_path / "out/sub/private").stat().st_mode & 0o777 == 0o600
            run(env, "ln -s deep/er /var/tmp/copies/way && mkfifo /var/tmp/copies/pipe")
            assert env.copy_out("/var/tmp/copies/way/link", tmp_path / "followed")
            assert not (tmp_path / "followed").is_symlink(), "the link would point to a file of the host"
            assert not env.copy_out("/var/tmp/copies/pipe", tmp_path / "pipe")
        os.mkfifo(tmp_path / "fifo")
        assert not env.copy_in(tmp_path / "fifo", "/var/tmp/copies/fifo")
        for path in ("relative", "", "/", "/../"):
            assert not env.copy_in(source := tree / "private", path), (source, path)
            assert not env.copy_out(path, tmp_path / "nothing")
        run(env, "rm -rf /var/tmp/copies")  # they may be on the host

    def test_an_invalid_command_is_refused_in_the_same_way(self, env: EnvironmentManager) -> None:
        wrong: list[Any] = [None, 5, b"true", [], ["echo", 5], "echo a\0b"]
        for command in wrong:
            code, output, message = env.exec_command(command)
            assert (code, output) == (-1, ""), command
            assert "command" in message
        for timeout in (0, -1, "5"):
            assert env.exec_command("true", timeout=timeout)[0] == -1  # type: ignore[arg-type]
        assert env.exec_command("echo ok", timeout=60)[:2] == (0, "ok\n")

    def test_any_text_goes_in_and_comes_out_unchanged(self, env: EnvironmentManager) -> None:
        said = 'it\'s "ž日🎉" ; $HOME && `x` \\ *'
        assert env.exec_command(["echo", said])[:2] == (0, f"{said}\n")
        assert run(env, "echo 'one'\n\necho two") == "one\ntwo\n"

    def test_an_unknown_snapshot_is_refused_and_changes_nothing(self, env: EnvironmentManager) -> None:
        assert not env.restore("00000000")
        with pytest.raises(UnknownSnapshot):
            env.core.restore("00000000")
        assert run(env, "echo here") == "here\n"

    def test_a_dead_branch_is_reported_and_can_be_restored(self, env: EnvironmentManager) -> None:
        saved = env.snapshot()
        assert saved is not None
        self.end(env)
        code, _, message = env.exec_command("true")
        assert code == -1
        assert env.core.backend.name in message
        if isinstance(env, ForkableEnvironmentManager):
            assert env.live_branches["main"].status == "failed"
        with pytest.raises(StateForkError):
            env.core.run("true")
        assert env.snapshot() is None
        assert env.restore(saved), "a dead branch cannot be restored"
        assert env.exec_command("echo back")[0] == 0
        if isinstance(env, ForkableEnvironmentManager):
            assert env.live_branches["main"].status == "running"
