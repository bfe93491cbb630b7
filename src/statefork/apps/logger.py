"""Counts in memory and writes every step into a file: ``logger.py FILE [SECONDS]``."""

import sys
import time


def main() -> None:
    path = sys.argv[1]
    pause_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
    count = 0
    with open(path, "a", buffering=1) as out:
        while True:
            count += 1
            out.write(f"{count}\n")
            time.sleep(pause_s)


if __name__ == "__main__":
    main()
