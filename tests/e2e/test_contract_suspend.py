"""Suspend as scripts for generation C use it, and a cleanup that keeps the session."""

from pathlib import Path

from support.command_line import Cli
from support.transcript import check_transcript

SUSPENDED = r"""
$ S=$(waypoint init "$DIR" --shell --quiet | cut -d, -f1)
$ waypoint exec $S main -- 'x=kept; echo file >file'
$ waypoint checkpoint $S saved
Checkpoint 'saved' created successfully
$ waypoint fork $S saved --id worker >/dev/null
$ waypoint suspend $S | sed "s/$S/S/g"
Session 'S' suspended; checkpoints remain on disk — bring it back: waypoint resume S
  main checkpoint=suspended-main-1
  worker checkpoint=suspended-worker-2
$ waypoint list $S --json | grep '"status": "suspended"' | sort -u | tr -d ,
      "status": "suspended"
      "status": "suspended"
$ waypoint exec $S worker -- 'echo $x' 2>/dev/null | sed "s/$S/S/g"
Error executing command: branch 'worker' of session S is suspended
$ waypoint fork $S saved --id later | cut -d' ' -f1
later
$ waypoint exec $S later -- 'echo $x; cat file'
kept
file
$ waypoint resume $S | sed "s/$S/S/g"
Session 'S' resumed
  main checkpoint=suspended-main-1 pid=N
  worker checkpoint=suspended-worker-2 pid=N
$ waypoint exec $S worker -- 'echo $x'
kept
$ export WAYPOINT_PRESERVE_SESSION_ON_CLEANUP=true
$ waypoint cleanup $S --force 2>note | sed "s/$S/S/g"
Session 'S' cleaned up successfully
$ sed "s/$S/S/g" note
waypoint: kept on disk, as preserve_session_on_cleanup (env:WAYPOINT_PRESERVE_SESSION_ON_CLEANUP) says; bring it back: waypoint resume S
$ waypoint info $S | grep -c '"available": false'
3
$ unset WAYPOINT_PRESERVE_SESSION_ON_CLEANUP
$ waypoint cleanup $S >/dev/null; waypoint list
No sessions found
"""


def test_a_session_is_suspended_forked_and_resumed(cli: Cli, workspace: Path) -> None:
    check_transcript(cli, SUSPENDED, env={"DIR": str(workspace)})
