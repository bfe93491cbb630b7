"""``statefork shell``: an environment and a prompt to save, restore and branch it by hand."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from statefork.errors import StateForkError
from statefork.manager import EnvironmentManager, ForkableEnvironmentManager

__all__ = ["InteractiveShell", "read_lines"]

PROMPT = "StateFork > "
HISTORY_LINES = 1000
_FORKABLE = frozenset({"fork", "forks", "fexec", "destroy", "checkout", "branches"})


class InteractiveShell:
    """Reads commands and prints their results. A command that fails does not stop the next one."""

    def __init__(self, env: EnvironmentManager, out: TextIO) -> None:
        self._env = env
        self._out = out
        self._only_known = True
        self._commands: dict[str, Callable[[list[str], str], None]] = {
            "snapshot": self._snapshot,
            "restore": self._restore,
            "step": self._step,
            "cmd": lambda _words, rest: self._run(rest),
            "fork": self._fork,
            "forks": lambda *_: self._list_branches(),
            "branches": lambda *_: self._list_branches(),
            "fexec": self._fexec,
            "destroy": self._destroy,
            "checkout": self._checkout,
            "tree": lambda *_: self._say(env.print_snapshot_tree()),
            "stats": lambda *_: self._say(env.stats.print_stats()),
            "history": lambda *_: self._say(env.stats.print_history()),
            "storage": lambda *_: self._say(env.stats.print_size_details()),
            "set": self._set,
            "help": lambda *_: self._say(self._help()),
        }

    def banner(self) -> str:
        line = "=" * 60
        return "\n".join(
            (
                line,
                "StateFork Container Manager - Interactive Shell",
                f"Using {type(self._env).__name__} with {self._env.backend} backend",
                self._help(),
                line,
            )
        )

    def words(self) -> list[str]:
        """The words for completion: commands, snapshots, branches."""
        return [*self._commands, "exit", *self._env.list_snapshots(), *self._branch_ids()]

    def run(self, lines: Iterable[str]) -> None:
        """Obey the lines until they end or one is ``exit``; then print the statistics."""
        self._say(self.banner())
        for line in lines:
            if line.strip() == "exit":
                break
            try:
                self.obey(line)
            except StateForkError as error:
                self._say(f"Error: {error}")
        self._say(self._env.stats.print_stats())
        self._say("Cleaning up resources...")

    def obey(self, line: str) -> None:
        """Run one line."""
        name, _, rest = line.strip().partition(" ")
        if not name:
            return
        if name not in self._commands:
            if self._only_known:
                self._say(f"Unknown command: {name}")
            else:
                self._run(line.strip())
            return
        if name in _FORKABLE and not isinstance(self._env, ForkableEnvironmentManager):
            self._say(f"This command requires a forkable backend (current: {self._env.backend}).")
            return
        try:
            # The environment's own shell takes apart a command for the environment.
            words = rest.split() if name in ("cmd", "fexec") else shlex.split(rest)
        except ValueError as error:
            self._say(f"Error: {error}")
            return
        self._commands[name](words, rest.strip())

    # -- one method for each command

    def _snapshot(self, words: list[str], _rest: str) -> None:
        park = "--park" in words
        names = [word for word in words if word != "--park"]
        if not names and not park:
            saved = self._env.snapshot()
            self._say(f"Snapshot created: {saved}" if saved else "Snapshot failed.")
            return
        if not isinstance(self._env, ForkableEnvironmentManager):
            self._say(f"This command requires a forkable backend (current: {self._env.backend}).")
            return
        branch = names[0] if names else self._env.current_branch_id
        saved = self._env.snapshot_branch(branch, park=park)
        if saved is None:
            self._say("Snapshot failed.")
        elif park:
            self._say(f"Fork {branch} parked as snapshot {saved}")
            self._say_current()
        else:
            self._say(f"Snapshot created: {saved}")

    def _restore(self, words: list[str], _rest: str) -> None:
        if not self._need(words, 1, "restore <snapshot>"):
            return
        if words[0] not in self._env.list_snapshots():
            self._say(f"Snapshot {words[0]} not found.")
            return
        is_done = self._env.restore(words[0])
        self._say(f"Restored to snapshot {words[0]}" if is_done else f"Restore failed for {words[0]}.")
        self._say_current()

    def _step(self, _words: list[str], _rest: str) -> None:
        saved = self._env.snapshot()
        stepped = saved is not None and self._env.create_env_from_snapshot(saved) is not None
        self._say(f"Stepped to new container with snapshot {saved}" if stepped else "Step failed.")

    def _fork(self, words: list[str], _rest: str) -> None:
        env = self._forkable()
        if not self._need(words, 1, "fork <snapshot> [n], or fork <branch> <snapshot>"):
            return
        known = env.list_snapshots()
        if len(words) > 1 and words[0] not in known and words[1] in known:
            made = env.fork(words[1], ids=[words[0]])
            source = words[1]
        else:
            if len(words) > 1 and not words[1].isdecimal():
                self._say(f"Neither a snapshot nor a number: {words[1]}")
                return
            made = env.fork(words[0], n=int(words[1]) if len(words) > 1 else 1)
            source = words[0]
        for branch in made:
            self._say(f"Forked {branch.id} from {source}")
        if not made:
            self._say(f"Fork failed for {source}.")

    def _fexec(self, words: list[str], rest: str) -> None:
        if self._need(words, 2, "fexec <fork> <command>"):
            branch, _, command = rest.partition(" ")
            self._run(command.strip(), branch)

    def _destroy(self, words: list[str], _rest: str) -> None:
        if self._need(words, 1, "destroy <fork>"):
            is_done = self._forkable().discard_branch(words[0])
            self._say(f"Fork {words[0]} destroyed." if is_done else f"Destroy failed for {words[0]}.")

    def _checkout(self, words: list[str], _rest: str) -> None:
        if self._need(words, 1, "checkout <branch>"):
            if not self._forkable().checkout(words[0]):
                self._say(f"Checkout failed for {words[0]}.")
            self._say_current()

    def _list_branches(self) -> None:
        env = self._forkable()
        for branch in env.list_branches():
            mark = " (current)" if branch.id == env.current_branch_id else ""
            self._say(f"- {branch.id}{mark}: base={branch.base_snapshot_id} status={branch.status}")

    def _set(self, words: list[str], _rest: str) -> None:
        if words not in (["cmd", "on"], ["cmd", "off"]):
            self._say("Usage: set cmd on|off")
            return
        self._only_known = words[1] == "on"
        how = "needs the word cmd" if self._only_known else "is any line that is not a command of this shell"
        self._say(f"A command for the environment {how}.")

    def _run(self, command: str, branch: str | None = None) -> None:
        if not command:
            self._say("Usage: cmd <command>")
            return
        if branch is None:
            code, output, errors = self._env.exec_command(command)
        else:
            code, output, errors = self._forkable().exec_on_branch(branch, command)
        for name, text in (("stdout", output), ("stderr", errors)):
            if text:
                self._say(f"--- {name} ---\n{text.rstrip()}")
        if code != 0 or branch is not None:
            self._say(f"(exit code {code})")

    # -- internal

    def _forkable(self) -> ForkableEnvironmentManager:
        assert isinstance(self._env, ForkableEnvironmentManager)  # obey() has checked
        return self._env

    def _branch_ids(self) -> list[str]:
        if isinstance(self._env, ForkableEnvironmentManager):
            return [branch.id for branch in self._env.list_branches()]
        return []

    def _need(self, words: Sequence[str], count: int, usage: str) -> bool:
        if len(words) < count:
            self._say(f"Usage: {usage}")
            return False
        return True

    def _say_current(self) -> None:
        if isinstance(self._env, ForkableEnvironmentManager):
            self._say(f"Current branch: {self._env.current_branch_id}")

    def _help(self) -> str:
        return f"Available commands: {', '.join((*self._commands, 'exit'))}"

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def read_lines(complete: Callable[[], list[str]], history: Path) -> Iterator[str]:
    """Lines from standard input; on a terminal with editing, completion, and a history kept in the file ``history``."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    import readline

    def matches(text: str, state: int) -> str | None:
        found = [word for word in complete() if word.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer(matches)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(HISTORY_LINES)
    with suppress(OSError):  # there is none yet
        readline.read_history_file(history)
    try:
        while True:
            try:
                line = input(PROMPT)
            except EOFError:
                print()
                return
            yield line
    finally:
        with suppress(OSError):  # a history that cannot be kept does not matter
            readline.write_history_file(history)
