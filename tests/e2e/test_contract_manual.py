"""Manual mode as generation A has it: a program of the host in the work directory, saved and restored by its PID."""

from pathlib import Path

from support.command_line import Cli
from support.transcript import check_transcript

# Counts in memory and writes files; at step 100 it waits until it may continue, so that a test can save it there.
SIMULATOR = """\
import os, sys, time

step, history = 0, []
while True:
    step += 1
    history.append(step)
    with open("history", "a") as out:
        print(step, file=out)
    with open("state.new", "w") as out:
        print(step, sum(history), os.getpid(), file=out)
    os.rename("state.new", "state")
    while step == 100 and not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    time.sleep(0.002)
"""

BY_PID = r"""
$ S=$(checkpoint-lite init "$DIR" --quiet | tee made | cut -d, -f1); W=$(cut -d, -f2 made)
$ start() { cd $W; exec setsid python3 $HOME/simulator.py $HOME/go </dev/null >/dev/null 2>&1; }
$ until_step() { until [ "$(cut -d' ' -f1 $W/state 2>/dev/null)" -ge $1 ] 2>/dev/null; do sleep 0.02; done; }
$ start & PID=$!; until_step 100
$ checkpoint-lite create $S step-100 $PID
Checkpoint 'step-100' created successfully
$ touch $HOME/go; until_step 150
$ checkpoint-lite create $S files -1
Skipping memory checkpoint as per user request
Checkpoint 'files' created successfully
$ checkpoint-lite list $S
Available checkpoints:
  step-100
  files
$ checkpoint-lite list $S --json | sed -n 's/^      "pid": //p' | sed "s/$PID/PID/" | head -n 2
PID,
-1,
$ rm $HOME/go; checkpoint-lite restore $S step-100 >restored; sed "s/$PID/PID/" restored
Checkpoint 'step-100' restored, new PID: PID
$ cat $W/state | sed "s/$PID/PID/"; tail -n 1 $W/history
100 5050 PID
100
$ touch $HOME/go; until_step 120; [ "$(seq 110)" = "$(head -n 110 $W/history)" ] && kill -0 $PID
$ checkpoint-lite create $S nobody 4194305 2>/dev/null | sed 's/:.*//'
Error
$ kill $PID; checkpoint-lite cleanup $S --force >/dev/null 2>&1; checkpoint-lite list
No sessions found
"""


def test_a_simulator_returns_to_step_100(cli: Cli, workspace: Path) -> None:
    Path(cli.env["HOME"], "simulator.py").write_text(SIMULATOR)
    check_transcript(cli, BY_PID, env={"DIR": str(workspace)})
