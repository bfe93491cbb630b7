"""Draw docs/picture.svg from a real run: three fixes tried in three branches of one session, and the best kept.

Run it as root: ``python docs/picture.py docs/picture.svg``. It makes a session of its own and removes it.
"""

import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

WAYPOINT = Path(sys.executable).with_name("waypoint")
NAME = f"bug-{Path('/proc/self').readlink()}"
COLUMNS, ROWS = 56, 11

PROJECT = {
    "price.py": """\
def total(prices):
    return sum(prices)
""",
    "check": """\
#!/bin/sh
[ "$(python3 -c 'import price; print(price.total([0.1, 0.2]))')" = 0.3 ] &&
    printf '\\033[32mok\\033[0m    dimes add up\\n' || printf '\\033[31mFAIL\\033[0m  dimes add up\\n'
[ "$(python3 -c 'import price; print(price.total([0.333] * 3))')" = 0.999 ] &&
    printf '\\033[32mok\\033[0m    nothing is lost\\n' || printf '\\033[31mFAIL\\033[0m  nothing is lost\\n'
""",
}
FIXES = {
    "round-2": "sed -i 's/sum(prices)/round(sum(prices), 2)/' price.py",
    "decimal": "sed -i '1i from decimal import Decimal\\n' price.py; sed -i 's/sum(prices)/sum(Decimal(str(p)) for p in prices)/' price.py",
    "as-int": "sed -i 's/sum(prices)/sum(map(int, prices))/' price.py",
}
PREPARE = """\
chmod +x check; export TERM=xterm-256color GIT_PAGER=cat; git init -q .; git add -A; \
git -c user.name=A -c user.email=a@example.org commit -qm start; PS1='$ '; clear"""

# Where things are drawn, in pixels.
ACROSS, DOWN = 7.23, 16  # of one character
MARGIN, BAR = 12, 24
COLOURS = {31: "#e06c75", 32: "#98c379", 33: "#e5c07b", 34: "#61afef", 35: "#c678dd", 36: "#56b6c2"}


def waypoint(*words: str) -> str:
    done = subprocess.run([WAYPOINT, *words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.rstrip("\n")


def search() -> tuple[str, dict[str, str]]:
    """Try each fix in a branch of its own; the tree at the end, and what the terminals of the branches show."""
    with tempfile.TemporaryDirectory(prefix="waypoint-picture-", dir="/var/tmp") as project:
        for name, text in PROJECT.items():
            (Path(project) / name).write_text(text)
        waypoint("init", project, "--name", NAME, "--quiet")
        try:
            waypoint("terminal", "new", NAME, "work", "--attended", "--size", f"{COLUMNS}x{ROWS}")
            type_line(NAME, PREPARE)
            waypoint("snapshot", NAME, "bug-found")
            screens = {}
            for branch, fix in FIXES.items():
                waypoint("fork", NAME, "bug-found", "--id", branch)
                waypoint("exec", f"{NAME}:{branch}", "--", fix)
                for line in ("git diff -U0 --color | tail -n +5", "./check"):
                    type_line(f"{NAME}:{branch}", line)
                screens[branch] = waypoint(
                    "screen", f"{NAME}:{branch}", "--terminal", "work", "--format", "ansi"
                )
                if "FAIL" not in screens[branch]:
                    waypoint("snapshot", f"{NAME}:{branch}", "all-green")
                    waypoint("promote", f"{NAME}:{branch}")
            return waypoint("tree", NAME), screens
        finally:
            waypoint("cleanup", NAME, "--force", "--quiet")


def type_line(branch: str, line: str) -> None:
    """Type a line and wait until the shell has done with it and shows its prompt."""
    waypoint("send", branch, "--terminal", "work", line, "Enter")
    waypoint("wait-for", branch, "--terminal", "work", "--text", r"^\$ $", "--timeout", "20")


def picture(tree: str, screens: dict[str, str]) -> str:
    """The tree above, the terminals of two branches below it."""
    width = 2 * (COLUMNS * ACROSS + 2 * MARGIN) + 3 * MARGIN
    lines = tree.replace(NAME, "bug").splitlines()
    half = (width - 3 * MARGIN) / 2
    below = 2 * MARGIN + BAR + (len(lines) + 1) * DOWN
    height = below + BAR + (ROWS + 1) * DOWN + MARGIN
    panes = [
        *pane("waypoint tree bug", lines, MARGIN, MARGIN, width - 2 * MARGIN, len(lines)),
        *pane("bug:round-2, terminal work", screens["round-2"].splitlines(), MARGIN, below, half, ROWS),
        *pane(
            "bug:decimal, terminal work",
            screens["decimal"].splitlines(),
            2 * MARGIN + half,
            below,
            half,
            ROWS,
        ),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            'font-family="\'DejaVu Sans Mono\',Menlo,Consolas,monospace" font-size="12">',
            *panes,
            "</svg>\n",
        ]
    )


def pane(title: str, lines: list[str], left: float, top: float, width: float, rows: int) -> Iterator[str]:
    height = BAR + (rows + 1) * DOWN
    yield f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height}" rx="6" fill="#21252b"/>'
    yield f'<text x="{left + MARGIN:.0f}" y="{top + 17:.0f}" fill="#7f848e">{html.escape(title)}</text>'
    for number, line in enumerate(lines[:rows], 1):
        column = 0
        for fill, weight, text in runs(line):
            if text.strip():
                x, y = left + MARGIN + column * ACROSS, top + BAR + number * DOWN
                yield (
                    f'<text x="{x:.1f}" y="{y:.0f}" fill="{fill}"{weight} textLength="{len(text) * ACROSS:.1f}" '
                    f'xml:space="preserve">{html.escape(text)}</text>'
                )
            column += len(text)


def runs(line: str) -> Iterator[tuple[str, str, str]]:
    """The parts of a line of coloured text: colour, weight, text."""
    fill, weight = "#dcdfe4", ""
    for text, codes in re.findall(r"([^\x1b]*)(?:\x1b\[([\d;]*)m)?", line):
        if text:
            yield fill, weight, text
        if codes:
            numbers = [int(code) for code in codes.split(";")]
            fill = next((COLOURS[number] for number in numbers if number in COLOURS), "#dcdfe4")
            weight = ' font-weight="bold"' if 1 in numbers else ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(*search()))
