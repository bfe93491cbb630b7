"""Writes files of one megabyte each: ``file_generator.py DIRECTORY MB``."""

import os
import sys


def main() -> None:
    directory = sys.argv[1]
    os.makedirs(directory, exist_ok=True)
    start = len(os.listdir(directory))
    for number in range(start, start + int(sys.argv[2])):
        with open(f"{directory}/{number:06}", "wb") as out:
            out.write(os.urandom(1 << 20))


if __name__ == "__main__":
    main()
