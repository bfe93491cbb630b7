"""A search as scripts for generation C write it: several forks, five deep, parked, forked again and restored."""

from pathlib import Path

from support.command_line import Cli
from support.transcript import check_transcript

SEARCH = r"""
$ S=$(waypoint init "$DIR" --shell --quiet | cut -d, -f1)
$ waypoint exec $S main -- 'path=; echo start >trace'
$ waypoint checkpoint $S root
Checkpoint 'root' created successfully
$ waypoint checkpoint $S root
Error: checkpoint or branch 'root' already exists
[1]
$ try() { waypoint exec $S $1 -- "path+=$2; echo $2 >>trace; [ $2 != dead ]" >/dev/null; echo "$1 $?"; }
$ parent=root
$ for depth in 1 2 3 4 5; do
>   waypoint fork $S $parent --id good | cut -d' ' -f1
>   waypoint fork $S $parent --id bad | cut -d' ' -f1
>   { try good g$depth & try bad dead & wait; } | sort
>   waypoint snapshot $S good level-$depth --park
>   waypoint destroy $S bad
>   parent=level-$depth
> done
good
bad
bad 1
good 0
Fork 'good' parked as checkpoint 'level-1'
Fork 'bad' destroyed successfully
good
bad
bad 1
good 0
Fork 'good' parked as checkpoint 'level-2'
Fork 'bad' destroyed successfully
good
bad
bad 1
good 0
Fork 'good' parked as checkpoint 'level-3'
Fork 'bad' destroyed successfully
good
bad
bad 1
good 0
Fork 'good' parked as checkpoint 'level-4'
Fork 'bad' destroyed successfully
good
bad
bad 1
good 0
Fork 'good' parked as checkpoint 'level-5'
Fork 'bad' destroyed successfully
$ waypoint exec $S good -- true
Error executing command: no branch named 'good'
[1]
$ waypoint list $S | sed -n 's/ branch=.*//; s/ directory=.*//; p'
Checkpoints:
  root parent=- status=ready layers=root
  level-1 parent=root status=ready layers=level-1,root
  level-2 parent=level-1 status=ready layers=level-2,level-1,root
  level-3 parent=level-2 status=ready layers=level-3,level-2,level-1,root
  level-4 parent=level-3 status=ready layers=level-4,level-3,level-2,level-1,root
  level-5 parent=level-4 status=ready layers=level-5,level-4,level-3,level-2,level-1,root
Live forks:
  main checkpoint=root status=running pid=N socket=/proc/N/root/.waypoint/sock
$ waypoint fork $S level-2 --n 2
fork-1 pid=N socket=/proc/N/root/.waypoint/sock duration=Tms
fork-2 pid=N socket=/proc/N/root/.waypoint/sock duration=Tms
$ waypoint exec $S fork-1 -- 'echo $path; paste -sd, trace'
g1g2
start,g1,g2
$ waypoint fork-exec $S fork-2 'path+=other; printf %s $path'
g1g2other
$ waypoint fork $S level-5 --id winner | cut -d' ' -f1
winner
$ waypoint exec $S winner -- 'echo $path >result; cat result'
g1g2g3g4g5
$ waypoint cp $S winner:"$DIR"/result "$DIR"/exported && cat "$DIR"/exported
g1g2g3g4g5
$ waypoint cp $S "$DIR"/exported fork-1:"$DIR"/given && waypoint exec $S fork-1 -- 'cat given'
g1g2g3g4g5
$ waypoint cp $S winner:/no/such "$DIR"/x 2>&1 | sed 's/: .*//; s/  hint.*//'
Error copying
$ waypoint exec $S main -- 'echo [$path]; cat trace'
[]
start
$ waypoint exec $S main -- 'exit_with() { return $1; }; exit_with 37'
[37]
$ waypoint exec $S main -- echo unquoted words
Error: expected one command line after --, got 3 words
[1]
$ waypoint exec $S main -- 'if true; then' 2>&1 | sed -n '1s/error: .*/error/p'
waypoint exec: command syntax error
$ waypoint exec $S main -- 'if true; then' 2>/dev/null
[2]
$ waypoint snapshot $S main of-main
Fork 'main' snapshotted as checkpoint 'of-main'
$ waypoint snapshot $S main never --park >/dev/null 2>&1
[1]
$ waypoint destroy $S winner
Fork 'winner' destroyed successfully
$ waypoint cleanup $S | sed "s/$S/S/"
Session 'S' cleaned up successfully
$ waypoint exec $S main -- true | sed "s/'.*'/S/"
Error loading session: no session named S
$ waypoint list
No sessions found
"""


def test_a_search_can_park_revive_and_export_forks(cli: Cli, workspace: Path) -> None:
    check_transcript(cli, SEARCH, env={"DIR": str(workspace)})
