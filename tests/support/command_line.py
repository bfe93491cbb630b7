"""The command line as users run it: the installed script, as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Cli", "Ended", "Failure"]

COMMAND = Path(sys.executable).with_name("waypoint")
TIMEOUT_S = 120.0


class Ended(NamedTuple):
    """How a command line ended."""

    exit_code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


class Failure(NamedTuple):
    """An error as the user sees it."""

    exit_code: int
    code: str
    message: str
    hint: str


class Cli:
    """Runs ``waypoint`` on one state directory. No run may ever show a Python traceback."""

    def __init__(self, state_dir: Path, home: Path) -> None:
        self.state_dir = state_dir
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": os.fspath(home),  # no configuration file of a real user
            "WAYPOINT_STATE_DIR": os.fspath(state_dir),
        }

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [COMMAND, *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str, prefix: Sequence[str] = (), env: dict[str, str] | None = None) -> Ended:
        ended = subprocess.run(
            [*prefix, COMMAND, *words],
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        err = ended.stderr.decode()
        assert "Traceback" not in err, err
        return Ended(ended.returncode, ended.stdout, err)

    def __call__(self, *words: str) -> str:
        """Run a command line that must succeed; return what it printed."""
        ended = self.run(*words)
        assert ended.exit_code == 0, ended
        return ended.text.rstrip("\n")

    def document(self, *words: str) -> Any:
        """Run a command line that must succeed; return the JSON document it printed."""
        return json.loads(self("--json", *words))

    def failure_document(self, *words: str) -> Any:
        """Run a command line that must fail with a JSON document; return the error in it."""
        ended = self.run("--json", *words)
        assert ended.exit_code != 0
        return json.loads(ended.out)["error"]

    def failure(self, *words: str, prefix: Sequence[str] = (), env: dict[str, str] | None = None) -> Failure:
        """Run a command line that must fail, as text and as JSON: both must say the same, with a hint."""
        text = self.run(*words, prefix=prefix, env=env)
        formal = self.run("--json", *words, prefix=prefix, env=env)
        assert text.exit_code == formal.exit_code != 0, (text, formal)
        error = json.loads(formal.out)["error"]
        assert set(error) - {"output"} == {"code", "hint", "message"}
        assert (text.out, formal.err) == (b"", "")
        assert text.err == f"waypoint: error: {error['message']}\n  hint: {error['hint']}\n"
        assert error["hint"], error
        return Failure(text.exit_code, error["code"], error["message"], error["hint"])
