"""Kill the command line with SIGKILL at random moments, for a long time: ``make soak``.

After each kill a command must find the session as it should be: the processes running, files and shell at the
old point or at the new one, nothing half-made in the catalogue; at the end nothing of the killed commands is left.
``tests/kernel/test_crash.py`` is the short and systematic version.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.state_directory import state_directory
from waypoint import Session, Waypoint

KILL_WITHIN_S = 0.35  # about twice what a command line takes, start of the interpreter included
STATE = 'echo "$x $(cat /tmp/note) $(jobs -r | wc -l)"'
EXPECTED = "kept kept 2\n"


def main() -> int:
    options = _parse()
    chance = random.Random(options.seed)
    print(f"seed {options.seed}, {options.seconds:g} s", file=sys.stderr, flush=True)
    wrong = rounds = 0
    with state_directory("soak") as state_dir, Waypoint(state_dir) as waypoint:
        session = waypoint.create("/root")
        session.exec("x=kept; echo kept >/tmp/note; sleep 100000 & python3 -m http.server >/dev/null 2>&1 &")
        session.snapshot("point")
        began = time.monotonic()
        while time.monotonic() - began < options.seconds:
            rounds += 1
            verb = _choose(chance, session.id, rounds)
            _run_and_kill(state_dir, verb, chance.random() * KILL_WITHIN_S)
            problems = _find_problems(state_dir, session.id)
            wrong += len(problems)
            for problem in problems:
                print(f"round {rounds}, {verb}: {problem}", flush=True)
        strays = _strays(state_dir, session.id)
        session.cleanup(force=True)
    print(f"{rounds} kills, {wrong} wrong, left behind: {strays or 'nothing'}")
    return 1 if wrong or strays else 0


def _choose(chance: random.Random, session: str, number: int) -> list[str]:
    return chance.choice(
        [
            ["snapshot", session, f"soak-{number}"],
            ["restore", session, "point"],
            ["fork", session, "point", "--n", "2"],
            ["exec", session, "--", "sleep 0.1"],
        ]
    )


def _run_and_kill(state_dir: Path, verb: list[str], after_s: float) -> None:
    program = Path(sys.executable).with_name("waypoint")
    command = [str(program), "--state-dir", str(state_dir), *verb]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(after_s)  # the moment of the kill is what is tested; this waits for nothing
        process.send_signal(signal.SIGKILL)


def _find_problems(state_dir: Path, session_id: str) -> list[str]:
    """What is wrong with the session now; forks are checked and removed."""
    problems = []
    with Waypoint(state_dir) as waypoint:
        session = waypoint.session(session_id)
        for branch in session.branches():
            state = branch.exec(STATE, timeout_s=60).output
            if state != EXPECTED:
                problems.append(f"{branch.name} is {state!r}")
            if branch.name != "main":
                branch.destroy()
    return problems


def _strays(state_dir: Path, session_id: str) -> list[str]:
    """Parts in the pool that belong to no branch and no checkpoint."""
    with Waypoint(state_dir) as waypoint:
        session: Session = waypoint.session(session_id)
        session.snapshot()  # waits for the command that was killed last, and finishes or undoes what it began
        incarnations = {branch.record.incarnation for branch in session.branches()}
        checkpoints = {checkpoint.id for checkpoint in session.checkpoints()}
        layout = waypoint.context.layout
        found = set(os.listdir(layout.pool / "branches")) | set(os.listdir(layout.mount("")))
        return sorted(found - incarnations) + sorted(
            set(os.listdir(layout.pool / "checkpoints")) - checkpoints
        )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
