"""The published examples of checkpoint-lite: one with every verb, one that leaves the verb out."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Cli
from support.small_root import make_small_root
from support.transcript import check_transcript
from waypoint import Waypoint

EVERY_VERB = r"""
$ checkpoint-lite list
No sessions found
$ checkpoint-lite init "$DIR"
Environment initialized!
Session ID: ID
Work in this directory: STATE/sessions/ID/work
Save the session ID for future operations!
$ S=$(checkpoint-lite list | sed -n '2s/ //gp'); cd $WAYPOINT_STATE_DIR/sessions/$S/work
$ checkpoint-lite list
Available sessions:
  ID
$ checkpoint-lite list $S
No checkpoints found
$ checkpoint-lite exec $S echo 'hello >greeting;' step=1
$ checkpoint-lite exec $S cat greeting
hello
$ checkpoint-lite create $S first
Checkpoint 'first' created successfully
$ echo from outside >>greeting; checkpoint-lite exec $S 'step=2; cat greeting'
hello
from outside
$ checkpoint-lite create $S second -1
Skipping memory checkpoint as per user request
Checkpoint 'second' created successfully
$ checkpoint-lite create $S second -2
Error: checkpoint or branch 'second' already exists
[1]
$ checkpoint-lite create $S third -2
Checkpoint 'third' created successfully
$ checkpoint-lite list $S
Available checkpoints:
  first
  second
  third
$ checkpoint-lite restore $S first
Checkpoint 'first' restored, new PID: N
$ checkpoint-lite exec $S 'echo $step; cat greeting'; cat $WAYPOINT_STATE_DIR/sessions/$S/work/greeting
1
hello
hello
$ checkpoint-lite restore $S second
Skipping memory restore as per user request
Checkpoint 'second' restored, new PID: -1
$ checkpoint-lite exec $S 'echo [$step]; cat greeting'
[]
hello
from outside
$ checkpoint-lite restore $S third
Checkpoint 'third' restored, new PID: N
$ checkpoint-lite exec $S 'echo $step; (exit 9)'
2
[9]
$ checkpoint-lite restore $S nosuch 2>/dev/null
Error: no checkpoint named 'nosuch'
[1]
$ cd /; checkpoint-lite cleanup $S | sed "s/$S/S/"
Session 'S' cleaned up successfully
$ ls $WAYPOINT_STATE_DIR/sessions
$ ls -A "$DIR"
"""

WITHOUT_VERB = r"""
$ checkpoint-lite build "$DIR" --quiet >built 2>/dev/null; cat built
ID,STATE/sessions/ID/main,N
$ S=$(cut -d, -f1 built)
$ kill -0 $(cut -d, -f3 built)
$ checkpoint-lite $S pwd
/
$ checkpoint-lite $S cd /app
$ checkpoint-lite $S ls
program
$ checkpoint-lite $S export 'WORD="two  words"'
$ checkpoint-lite create $S before $(cut -d, -f3 built)
Checkpoint 'before' created successfully
$ checkpoint-lite $S rm -rf /app
$ checkpoint-lite $S ls /app 2>&1 | sed 's/.*: //'
No such file or directory
$ checkpoint-lite restore $S before
Checkpoint 'before' restored, new PID: N
$ checkpoint-lite $S 'echo "$WORD in $PWD"; ls'
two  words in /app
program
$ checkpoint-lite cleanup $S --force 2>/dev/null | sed "s/$S/S/"
Session 'S' cleaned up successfully
$ checkpoint-lite $S ls | sed "s/$S/S/"
Unknown command: S
$ echo >"$DIR"/Dockerfile; checkpoint-lite build "$DIR" 2>&1 | grep -c '^Error building sandbox image: [a-z]'
1
"""


def test_the_example_with_every_verb_works(cli: Cli, workspace: Path) -> None:
    check_transcript(cli, EVERY_VERB, env={"DIR": str(workspace)})


@pytest.fixture
def small(cli: Cli, state_dir: Path, tmp_path: Path) -> Iterator[str]:
    """A base of a few megabytes to build on."""
    root = make_small_root(tmp_path / "root")
    with Waypoint(state_dir) as opened:
        base = opened.bases().import_(os.fspath(root), names=["sandbox:1"])
        yield "sandbox:1"
        for built in opened.bases().all():
            if built.id != base.id and any("example" in name for name in built.names):
                opened.bases().remove(built.id)
        opened.bases().remove(base.id)


def test_the_example_without_the_verb_works(cli: Cli, small: str, workspace: Path) -> None:
    example = workspace / "example"
    example.mkdir()
    (example / "Dockerfile").write_text(f"FROM {small}\nCOPY program /app/program\n")
    (example / "program").touch()
    check_transcript(cli, WITHOUT_VERB, env={"DIR": str(example)})
