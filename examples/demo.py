"""The main job of Waypoint, shown and checked step by step: run it with ``make demo``.

A live terminal session is saved, damaged, restored and branched four ways. Each promise is checked where it is
made; one that is not kept is reported, and the exit code is then 1.
"""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import waypoint
from waypoint.cli.text_tree import draw_tree
from waypoint.errors import Busy

PORT = 8000
BRANCHES = 4
DEADLINE_S = 30.0

# Keeps its count in memory only; the file is for us to look at.
COUNTER = """\
import time
count = 0
while True:
    count += 1
    with open("/tmp/count", "w") as out:
        print(count, file=out)
    time.sleep(0.01)
"""
PROJECT = {"site/index.html": "first version\n", "notes.txt": "do not lose me\n", "counter.py": COUNTER}
# Functions of the session's shell: ask the web server for its page, and the counter for its count.
SHELL_FUNCTIONS = rf"""
page() ( exec 3<>/dev/tcp/127.0.0.1/{PORT} && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && sed '1,/^\r$/d' <&3 ) 2>/dev/null
count() {{ local n=; until [ -n "$n" ]; do read -r n 2>/dev/null </tmp/count; done; echo "$n"; }}
"""


class Story:
    """Prints what is shown and remembers whether every promise was kept."""

    all_kept = True
    chapters = 0

    def chapter(self, title: str) -> None:
        self.chapters += 1
        print(f"\n{self.chapters}. {title}", flush=True)

    def run(self, session: waypoint.Session, command: str) -> None:
        print(f"     $ {command}", flush=True)
        session.exec(command, timeout_s=DEADLINE_S)

    def check(self, promise: str, is_kept: bool) -> None:
        self.all_kept = self.all_kept and is_kept
        print(f"     {'ok' if is_kept else 'NOT AS PROMISED'}: {promise}", flush=True)


def main() -> int:
    story = Story()
    print("Waypoint: a live terminal session is saved, damaged, restored and branched.")
    try:
        with waypoint.open() as wp:
            with workspace() as directory:
                show(story, wp, directory)
            leave_host_as_found(wp)
    except waypoint.WaypointError as error:
        print(f"demo: {error}\n  hint: {error.hint}", file=sys.stderr)
        return 1
    print("\nAll as promised." if story.all_kept else "\nNOT everything was as promised: see above.")
    return 0 if story.all_kept else 1


@contextmanager
def workspace() -> Iterator[Path]:
    """A small project on the host. The session sees it copy-on-write."""
    directory = Path(tempfile.mkdtemp(prefix="waypoint-demo-", dir="/var/tmp"))
    try:
        (directory / "site").mkdir()
        for name, text in PROJECT.items():
            (directory / name).write_text(text)
        yield directory
    finally:
        shutil.rmtree(directory)


def show(story: Story, wp: waypoint.Waypoint, directory: Path) -> None:
    session = wp.create(directory)
    try:
        start_things(story, session)
        story.chapter("Save all of it as the checkpoint 'ready': files, shell, processes and their memory.")
        counted = int(output(session, "count"))
        ready = session.snapshot("ready")
        story.check("saved; the session runs on", int(output(session, "count")) >= counted)
        take_path_a(story, session)
        go_back(story, session, ready, counted)
        take_path_b(story, session)
        branch_out(story, session, ready)
        is_same = all((directory / name).read_text() == text for name, text in PROJECT.items())
        story.check("the real directory on the host never changed", is_same)
        story.chapter("What was made from what (also: waypoint tree).")
        print(indented(draw_tree(session.status(with_files=True))))
        story.chapter("What each operation took.")
        print(indented(timings(session)))
    finally:
        session.cleanup(force=True)


def start_things(story: Story, session: waypoint.Session) -> None:
    story.chapter("A session over this machine's own root, copy-on-write, with things going on in it.")
    session.exec(SHELL_FUNCTIONS)
    story.run(session, "export MODE=debug")
    story.run(session, f"python3 -m http.server {PORT} --directory site >/dev/null 2>&1 &")
    story.run(session, "python3 counter.py &")
    story.run(session, "cd site")
    wait_until(session, "page >/dev/null")
    wait_until(session, "[ -s /tmp/count ] && [ $(count) -ge 50 ]")
    story.check("the web server answers 'first version'", output(session, "page") == "first version")
    reached = int(output(session, "count"))
    story.check(f"the counting process has reached {reached}", reached >= 50)


def take_path_a(story: Story, session: waypoint.Session) -> None:
    story.chapter("Path A: a bad idea.")
    story.run(session, "cd ..; rm -r site notes.txt; kill %1 %2; wait; unset MODE; cd /")
    story.check("the files are gone", output(session, f"ls {session.record.workspace}") == "counter.py")
    story.check("the server is gone, and so is the counter", output(session, "page; jobs -r") == "")


def go_back(story: Story, session: waypoint.Session, ready: waypoint.CheckpointRecord, counted: int) -> None:
    story.chapter("Back to 'ready'.")
    session.restore(ready)
    story.check("the variable is back", output(session, "echo $MODE") == "debug")
    story.check("the directory is back", output(session, "pwd") == f"{session.record.workspace}/site")
    files = output(session, "cat index.html ../notes.txt")
    story.check("the files are back", files == "first version\ndo not lose me")
    story.check("the web server answers", output(session, "page") == "first version")
    now = int(output(session, "count"))
    wait_until(session, f"[ $(count) -gt {now} ]")
    story.check(
        f"the counter continues: it was past {counted} when saved, now it is at {now}", now >= counted
    )


def take_path_b(story: Story, session: waypoint.Session) -> None:
    story.chapter("Path B: a better idea, kept as the checkpoint 'works'.")
    story.run(session, "echo second version >index.html")
    story.check("the web server answers with it", output(session, "page") == "second version")
    session.snapshot("works")


def branch_out(story: Story, session: waypoint.Session, ready: waypoint.CheckpointRecord) -> None:
    story.chapter(
        f"'ready' {BRANCHES} times more, at once: live branches, each with its server on port {PORT}."
    )
    branches = session.fork(ready, n=BRANCHES)
    for branch in branches:
        branch.exec(f"echo idea of {branch.name} >index.html")
    wanted = {"main": "second version", **{branch.name: f"idea of {branch.name}" for branch in branches}}
    with ThreadPoolExecutor(len(wanted)) as pool:  # all are asked at the same time
        answers = list(pool.map(lambda name: output(session.branch(name), "page"), wanted))
    for (name, page), answer in zip(wanted.items(), answers, strict=True):
        story.check(f"{name} answers on port {PORT}: {answer!r}", answer == page)


def output(where: waypoint.Session | waypoint.Branch, command: str) -> str:
    return where.exec(command, timeout_s=DEADLINE_S).output.strip()


def wait_until(session: waypoint.Session, condition: str) -> None:
    """Let the shell try until ``condition`` is true; an error if that takes too long."""
    session.exec(f"until {condition}; do sleep 0.02; done", timeout_s=DEADLINE_S)


def timings(session: waypoint.Session) -> str:
    """A line for each operation; of the many commands, how many there were and the median."""
    lines, starts = [], []
    for operation in session.operations():
        if operation.kind == "exec":
            starts.append(operation.phases_ms["start"])
            continue
        pause = operation.phases_ms.get("pause")
        note = "" if pause is None else f"   of which the session stood still for {pause:.0f} ms"
        lines.append(f"{operation.kind:9} {operation.branch:8} {operation.total_ms or 0:7.0f} ms{note}")
    lines.append(
        f"exec      {len(starts)} commands, each started after {statistics.median(starts):.1f} ms (median)"
    )
    return "\n".join(lines)


def indented(text: str) -> str:
    return "\n".join(f"     {line}" for line in text.splitlines())


def leave_host_as_found(wp: waypoint.Waypoint) -> None:
    if wp.sessions():
        return
    try:
        wp.unmount_pool()
    except Busy as busy:  # used by somebody else on this host: unmounting it was not promised
        print(f"\nThe session is gone; {busy}, so that stays mounted.")
    else:
        print("\nThe session is gone and the pool is unmounted: nothing runs, nothing is mounted.")


if __name__ == "__main__":
    sys.exit(main())
