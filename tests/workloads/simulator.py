"""Count steps in memory, write each to a file at once, and print it on standard output."""

import sys
import time

PAUSE_S = 0.005

step = 0
with open("log.txt", "a", buffering=1) as log:
    while True:
        step += 1
        log.write(f"{step}\n")
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()
        with open("step.txt", "w") as current:
            current.write(f"{step}\n")
        time.sleep(PAUSE_S)
