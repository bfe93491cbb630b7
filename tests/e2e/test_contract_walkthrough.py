"""The published walk-through of generation B: six lines, and what each prints."""

from pathlib import Path

from support.command_line import Cli
from support.transcript import check_transcript

SIX_LINES = r"""
$ waypoint init "$DIR" | tee init
Environment initialized!
Session ID: ID
Work in this directory: STATE/sessions/ID/main
Save the session ID for future operations!
$ S=$(sed -n 's/^Session ID: //p' init)
$ waypoint exec $S "cd /tmp; export MODE=debug; echo one >file; sleep 1000 & "
$ waypoint snapshot $S before
Checkpoint 'before' created successfully
$ waypoint exec $S "rm file; unset MODE; kill %1; cd /"
$ waypoint restore $S before | tee restored
Checkpoint 'before' restored, new PID: N
$ waypoint exec $S "echo $MODE \$MODE; pwd; cat file; jobs | sed 's/ \+/ /g'"
debug
/tmp
one
[1]+ Running sleep 1000 &
$ kill -0 $(sed 's/.*: //' restored)
$ waypoint restore $S nosuch 2>/dev/null
[3]
$ waypoint cleanup $S >/dev/null
"""


def test_the_six_lines_of_the_walk_through_print_what_was_published(cli: Cli, workspace: Path) -> None:
    check_transcript(cli, SIX_LINES, env={"DIR": str(workspace)})
