"""Every shell and Python example of README, docs and examples runs, and prints what the page says."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.command_line import Cli
from support.examples_of_docs import REPOSITORY, Example, examples, pages
from support.tiny_root import make_tiny_root
from support.transcript import BIN, difference, masked, run_script, transcript_script

MARK = "=== example "


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What a reader of a page has before its examples, and what stands for what the test cannot do."""

    before: str = ""  # typed before the first one
    python: str = ""  # before each one in Python
    after: str = ""  # done at the end, also after a failure
    instead: Sequence[tuple[str, str]] = ()


MAKE = f"make -n -C {REPOSITORY}"
APP = (
    '"/srv/app"',
    '__import__("os").path.expanduser("~/app")',
)  # in Python: nothing is made outside of $HOME
FOLLOWS_THE_PAGE = {
    "README.md": Reader(
        before="mkdir -p ~/project/src ~/app",
        instead=[
            ("make demo ", f"{MAKE} demo >~/out #"),
            ("make test ", f"{MAKE} test >~/out #"),  # CI runs both
            APP,
        ],
    ),
    "docs/getting-started.md": Reader(
        before="mkdir ~/project ~/app", instead=[("make install", f"{MAKE} install >~/out"), APP]
    ),
    "docs/checkpoints.md": Reader(
        before="""
            mkdir ~/project ~/model ~/live
            printf '#!/bin/sh\\nn=0; while n=$((n + 1)); do echo $n; sleep 0.05; done\\n' >~/model/simulator
            chmod +x ~/model/simulator
            waypoint init ~/project --name demo --quiet
            waypoint fork demo main --id fork-1 --quiet
            sudo() { waypoint cleanup other --force --quiet; waypoint pool unmount >&2; }  # all that a reboot takes
        """,
        python="import waypoint; session = waypoint.open().create(name='other')",
        after="kill -9 $!",  # a program of the host: the session does not end it
    ),
    "docs/files.md": Reader(
        before="""
            mkdir ~/project ~/app; echo hello >~/app/page
            waypoint init ~/project --name demo --quiet
            waypoint fork demo main --id fork-1 --quiet
            waypoint exec demo:fork-1 -- 'mkdir -p /srv/app; echo {} >/srv/app/result.json; echo started >/srv/app/log'
        """,
        python="""
import io, tarfile, waypoint
branch = waypoint.open().session("demo").branch("fork-1")
text, stream = "{}", io.BytesIO()
tarfile.open(fileobj=stream, mode="w").close()
stream.seek(0)
""",
    ),
    "docs/limits.md": Reader(),
    "docs/sharing.md": Reader(before="mkdir ~/models results; echo secret >~/token"),
    "docs/shells.md": Reader(
        before="mkdir -p ~/project ~/app ~/rootfs/etc ~/rootfs/opt/bin; ln -s /bin/busybox ~/rootfs/opt/bin/ash",
        instead=[APP],
    ),
    "docs/terminals.md": Reader(
        before="waypoint init --name demo --allow-self --quiet",
        instead=[("waypoint-here", "waypoint exec demo --isolated -- waypoint-here")],
    ),
    "docs/statefork.md": Reader(
        before="""
            mkdir -p task/app/venv/bin
            echo 'FROM debian:bookworm' >task/Dockerfile; echo 'COPY app /app' >>task/Dockerfile
            echo 'VIRTUAL_ENV=/app/venv' >task/app/venv/bin/activate
            echo 'exit 1' >task/app/try_fix_a; echo '[ "$MODE" = debug ] && touch fixed' >task/app/try_fix_b
            chmod +x task/app/try_fix_*
        """,
        instead=[("make test", "pwd")],  # the image has no make
    ),
    "docs/backends.md": Reader(
        instead=[
            ("waypoint,docker,podman,hybrid,criu,gvisor,microvm,memory", "criu"),
            ("--repeat 10", "--repeat 1"),
        ]
    ),
}
THE_WALK_THROUGH = "tests/e2e/test_build.py"
ELSEWHERE = {"docs/walkthrough.md": THE_WALK_THROUGH, "examples/webapp/README.md": THE_WALK_THROUGH}
NEEDS_DEBIAN = "docs/statefork.md"


def test_no_page_has_an_example_that_nobody_runs() -> None:
    assert {page for page in pages() if examples(page)} == FOLLOWS_THE_PAGE.keys() | ELSEWHERE.keys()
    walk_through = (REPOSITORY / THE_WALK_THROUGH).read_text()
    assert 'examples("docs/walkthrough.md")' in walk_through
    assert '"examples/walkthrough.sh"' in walk_through


@pytest.mark.timeout(900)  # one of them waits for a Debian to be made
@pytest.mark.parametrize("page", FOLLOWS_THE_PAGE)
def test_the_examples_of_a_page_do_what_it_says(
    page: str, workspace: Path, builder: Cli, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if page == NEEDS_DEBIAN:
        request.getfixturevalue("debian")
    if page == "docs/shells.md":
        make_tiny_root(workspace / "rootfs")
    builder.env["HOME"] = str(workspace)
    reader = FOLLOWS_THE_PAGE[page]
    found = examples(page)
    script = [
        f"trap {shlex.quote(reader.after)} EXIT",
        reader.before,
        *(_script(example, reader) for example in found),
    ]
    ended = run_script(
        builder, "\n".join(script), env={"STATEFORK_STATE_DIR": str(tmp_path / "environments")}
    )
    printed = dict(part.split("\n", maxsplit=1) for part in ended.stdout.split(MARK)[1:])
    assert [*printed, ended.returncode] == [*(f"{page}:{example.line}" for example in found), 0], ended
    for example in found:
        if example.language == "console":
            different = difference(example.text, printed[f"{page}:{example.line}"], builder)
            assert not different, f"{page}:{example.line}\n{different}\n{ended.stderr}"


def _script(example: Example, reader: Reader) -> str:
    """Shell commands that run an example; the first one that fails ends all, except in a transcript."""
    text = example.text
    for said, done in reader.instead:
        text = text.replace(said, done)
    mark = f"echo {shlex.quote(f'{MARK}{example.page}:{example.line}')}"
    match example.language:
        case "console":
            return f"{mark}\n{transcript_script(text)}"
        case "python":
            return f"{mark}\npython - <<'EOF' || exit\n{reader.python}\n{text}\nEOF"
        case _:
            return f"{mark}\n(set -e\n{text}\n) || exit"


def test_the_picture_of_the_readme_shows_what_its_script_sees_now(builder: Cli, tmp_path: Path) -> None:
    drawn = tmp_path / "picture.svg"
    subprocess.run(
        [BIN / "python", REPOSITORY / "docs/picture.py", drawn], env=builder.env, check=True, timeout=120
    )
    recorded, seen = (_texts(path, builder) for path in (REPOSITORY / "docs/picture.svg", drawn))
    assert "bug-found" in recorded
    assert recorded == seen


def _texts(picture: Path, cli: Cli) -> str:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())
    return masked(re.sub(r"waypoint-picture-\w+", "DIR", "\n".join(texts)), cli)
