"""`waypoint build` on real Dockerfiles, and `waypoint base`, through the command line."""

import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import COMMAND, Cli
from support.examples_of_docs import examples
from support.leaks import cgroups_of
from support.small_root import make_small_root
from support.transcript import difference
from support.waiting import DEADLINE_S, wait_for
from waypoint import Waypoint
from waypoint.engine.platform import cgroup_name
from waypoint.kernel.storage.mounts import read_mounts
from waypoint.store.layout import Layout
from workloads.raw_frame import GATEWAY_MAC, IPV4, syn

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def builder(builder: Cli) -> Iterator[Cli]:
    """No build leaves anything of its work behind."""
    yield builder
    assert_nothing_left(builder)


@pytest.fixture(scope="module")
def small(state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A base of a few megabytes for all of these tests."""
    root = make_small_root(tmp_path_factory.mktemp("small") / "root")
    with Waypoint(state_dir) as opened:
        base = opened.bases().import_(os.fspath(root), names=["small:1"])
        yield "small:1"
        opened.bases().remove(base.id)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app"
    path.mkdir()
    return path


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def assert_nothing_left(cli: Cli) -> None:
    assert leftovers(cli) == []


def leftovers(cli: Cli) -> list[Path]:
    store = cli.state_dir / "pool/images"
    return [
        *(cli.state_dir / "pool/drafts").iterdir(),
        *(store / "tmp").iterdir(),
        *store.glob("layers/*-containers/*/"),
        *cgroups_of(cli.state_dir, "build.*"),
    ]


def built(cli: Cli, directory: Path, *options: str) -> str:
    """Build; return the id of the session."""
    session, work, pid = cli("build", os.fspath(directory), "--quiet", *options).split(",")
    assert Path(work).is_dir()
    assert Path(f"/proc/{pid}").exists()
    return session


# --- real projects -------------------------------------------------------------------------------------


@pytest.mark.timeout(900)  # the first that needs a Debian waits for it to be made
def test_the_walk_through_of_a_web_application_returns_from_a_wrong_fix(builder: Cli, debian: str) -> None:
    """docs/walkthrough.md: packages by apt, dependencies by pip, a server, a wrong fix and a right one."""
    ended = subprocess.run(
        [REPOSITORY / "examples/walkthrough.sh"],
        env={**builder.env, "WAYPOINT": os.fspath(COMMAND)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended
    (page,) = examples("docs/walkthrough.md")
    recorded, seen = (re.sub(r"server \d+", "server N", text) for text in (page.text, ended.stdout))
    assert not difference(recorded, seen, builder)
    parts = ended.stdout.split("$ waypoint ")
    printed = {part.splitlines()[0]: part.splitlines()[1:] for part in parts[1:]}
    states = [part.splitlines()[1:4] for part in parts if part.startswith("exec webapp -- state\n")]
    assert "  FAIL: test_three_dimes_are_thirty_cents" in printed["exec webapp -- '. prepare'"]
    assert printed["exec webapp -- try_fix_a"][-2:] == ["(exit code 1)", ""]
    assert "  FAIL: test_carol_still_has_her_savings" in printed["exec webapp -- try_fix_a"]
    assert [line.split(":")[0] for line in printed["exec webapp -- try_fix_b"] if line] == ["  ok"] * 3
    prepared, after_a, restored, after_b = states
    assert prepared == restored  # code, data, the server and its memory
    assert all(one != other for one, other in zip(prepared, after_a, strict=True))
    assert prepared[1] == after_b[1] == "  data:    carol has 1234.56 EUR"


def test_a_node_application_is_built_and_runs(builder: Cli, debian: str, app: Path) -> None:
    subprocess.run(["npm", "pack", "--silent", "npm@10.8.2"], cwd=app, check=True, stdout=subprocess.DEVNULL)
    write(
        app,
        Dockerfile=f"""\
FROM {debian}
RUN apt-get update && apt-get install -y --no-install-recommends nodejs && rm -rf /var/lib/apt/lists/*
ADD npm-10.8.2.tgz /opt/npm
WORKDIR /app
COPY package.json .
RUN node /opt/npm/package/bin/npm-cli.js install --no-audit --no-fund
COPY app.js .
CMD ["node", "app.js"]
""",
        package__json='{"name": "app", "dependencies": {"is-odd": "3.0.1"}}',
        app__js='console.log([1, 2, 3].filter(require("is-odd")).join());',
    )
    session = built(builder, app)
    assert builder("exec", session, "--", 'eval "$WAYPOINT_IMAGE_COMMAND"') == "1,3"


def test_a_c_project_is_built_in_two_stages(builder: Cli, debian: str, app: Path) -> None:
    write(
        app,
        Dockerfile=f"""\
FROM {debian} AS compiler
COPY hello.c /src/
RUN tcc -o /src/hello /src/hello.c

FROM {debian}-slim
COPY --from=compiler /src/hello /usr/local/bin/
""",
        hello__c='#include <stdio.h>\nint main(void) { puts("hello from C"); return 3; }\n',
    )
    session = built(builder, app)
    ended = builder.run("exec", session, "--", "hello")
    assert (ended.exit_code, ended.text) == (3, "hello from C\n")
    assert builder.run("exec", session, "--", "ls /src").exit_code != 0  # only the first stage has it


# --- settings of an image ------------------------------------------------------------------------------

CONFIGURED = """\
FROM small:1
ARG WHO=nobody
ENV GREETING="hello $WHO" PATH=/opt/bin:/bin PAGER=less
RUN mkdir -p /opt/bin && printf '#!/bin/sh\\necho "$@"\\n' >/opt/bin/say && chmod +x /opt/bin/say
SHELL ["/bin/ash", "-c"]
VOLUME /data
EXPOSE 8000 53/udp
LABEL team=x
USER app:staff
WORKDIR /srv/app
ENTRYPOINT ["say"]
CMD ["two words", "x"]
"""


@pytest.mark.quick
def test_the_settings_of_an_image_apply_in_its_session(builder: Cli, small: str, app: Path) -> None:
    write(app, Dockerfile=CONFIGURED)
    ended = builder.run("build", os.fspath(app), "--name", "demo", "--build-arg", "WHO=me")
    assert ended.exit_code == 0, ended
    assert ended.lines[0] == "Sandbox environment built successfully!"
    assert ended.lines[1].startswith("Session ID: ")
    assert "Command of the image, not started: say 'two words' x" in ended.lines
    assert any(line.startswith("Ports of the image: 53/udp, 8000/tcp") for line in ended.lines)
    assert "STEP 2/12: ARG WHO=nobody" in ended.err  # printed during the build
    assert builder(
        "exec", "demo", "--", "echo $PWD; echo $GREETING; echo $PAGER; echo $SHELL; id -un; id -gn"
    ).splitlines() == [
        "/srv/app",
        "hello me",
        "cat",  # nobody is there to use a pager
        "/bin/ash",
        "app",
        "staff",
    ]
    assert builder("exec", "demo", "--", 'eval "$WAYPOINT_IMAGE_COMMAND"') == "two words x"
    assert builder("exec", "demo", "--isolated", "--", "echo $PWD $GREETING") == "/srv/app hello me"
    (base,) = [base for base in builder.document("base", "list")["bases"] if "localhost/app" in base["names"]]
    assert base["sessions"] == ["demo"]
    assert base["config"]["ports"] == ["53/udp", "8000/tcp"]
    assert base["config"]["entrypoint"] + base["config"]["cmd"] == ["say", "two words", "x"]
    assert (base["config"]["user"], base["config"]["labels"]["team"]) == ("app:staff", "x")


def test_a_volume_of_an_image_is_a_directory_of_the_branch(builder: Cli, small: str, app: Path) -> None:
    session = built(builder, write(app, Dockerfile=f"FROM {small}\nVOLUME /data\n"))
    builder("exec", session, "--", "echo saved >/data/file")
    builder("snapshot", session, "point")
    builder("exec", session, "--", "echo later >/data/file")
    builder("fork", session, "point", "--id", "side")
    assert builder("exec", f"{session}:side", "--", "cat /data/file") == "saved"
    assert builder("exec", session, "--", "cat /data/file") == "later"


def test_options_of_the_user_override_the_image(builder: Cli, small: str, app: Path) -> None:
    write(app, Dockerfile=CONFIGURED)
    words = (
        "--workdir",
        "/opt",
        "--env",
        "GREETING=mine",
        "--env",
        "PAGER=more",
        "--shell=sh",
        "--user",
        "root",
    )
    session = built(builder, app, *words, "-t", "mine:2")
    assert builder("exec", session, "--", "echo $PWD $GREETING $PAGER $(id -u)") == "/opt mine more 0"
    assert "mine:2" in builder("base", "list", "--quiet").split()
    other = builder("init", "/data", "--base", "mine:2", "--user", "root", "--quiet").partition(",")[0]
    assert builder("exec", other, "--", "pwd") == "/data"


def test_a_dockerfile_may_have_another_name_and_files_may_be_ignored(
    builder: Cli, small: str, app: Path
) -> None:
    write(
        app,
        other="FROM small:1\nCOPY . /app/\n",
        secret__txt="no",
        public__txt="yes",
        __dockerignore="secret*",
    )
    session = built(builder, app, "-f", os.fspath(app / "other"))
    assert builder("exec", session, "--", "ls -1 /app") == "other\npublic.txt"


# --- built only once -----------------------------------------------------------------------------------


def test_the_second_build_of_an_image_copies_nothing(builder: Cli, small: str, app: Path) -> None:
    write(app, Dockerfile="FROM small:1\nRUN dd if=/dev/urandom of=/large bs=1M count=32\n")
    first = builder.document("build", os.fspath(app), "--timings")
    assert {"export", "seal"} <= set(first["timings"][0]["phases_ms"])
    os.sync()
    used = os.statvfs(builder.state_dir / "pool")
    second = builder.document("build", os.fspath(app), "--timings")
    third = builder.document("init", "--base", "app", "--timings")
    os.sync()
    assert second["base"]["id"] == first["base"]["id"]
    assert not {"export", "seal"} & set(second["timings"][0]["phases_ms"])
    assert "build" not in [timing["operation"] for timing in third["timings"]]
    after = os.statvfs(builder.state_dir / "pool")
    assert (used.f_bfree - after.f_bfree) * after.f_frsize < 16 << 20


def test_several_builds_can_run_at_the_same_time(builder: Cli, small: str, tmp_path: Path) -> None:
    running = []
    for number in range(3):
        directory = tmp_path / f"app{number}"
        directory.mkdir()
        write(directory, Dockerfile=f"FROM small:1\nRUN echo {number % 2} >/number\n")
        running.append(builder.start("build", os.fspath(directory), "--quiet"))
    for number, process in enumerate(running):
        out, err = process.communicate(timeout=DEADLINE_S * 4)
        assert process.returncode == 0, err
        session = out.decode().partition(",")[0]
        assert builder("exec", session, "--", "cat /number") == str(number % 2)


# --- when it fails -------------------------------------------------------------------------------------


def test_a_build_that_fails_says_why_and_leaves_nothing(builder: Cli, small: str, app: Path) -> None:
    write(app, Dockerfile="FROM small:1\nRUN echo before; ls /no/such/file\n")
    before = builder("base", "list", "--json")
    for words in ((), ("--quiet",)):
        ended = builder.run("build", os.fspath(app), *words)
        assert (ended.exit_code, ended.out) == (1, b"")
        assert "before" in ended.err  # also with --quiet: now its output is needed
        assert "ls: /no/such/file: No such file or directory" in ended.err
        assert "Failed to remove" not in ended.err
        assert "waypoint: error: Error building sandbox image: building at STEP" in ended.err
        assert_nothing_left(builder)
    assert builder("base", "list", "--json") == before
    assert builder("list", "--quiet") == ""
    assert builder.failure_document("build", os.fspath(app))["code"] == "build_failed"


def test_an_unknown_base_is_reported_with_the_ways_to_get_it(builder: Cli, app: Path) -> None:
    write(app, Dockerfile="FROM registry.invalid/team/nosuch:1\n")
    error = builder.failure_document("build", os.fspath(app))
    assert "the base 'registry.invalid/team/nosuch:1' is not known here" in error["message"]
    assert "waypoint base bootstrap" in error["hint"]
    assert "waypoint base import" in error["hint"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_build_leaves_nothing(builder: Cli, small: str, app: Path, number: int) -> None:
    write(app, Dockerfile="FROM small:1\nRUN touch /begun; sleep 1000\n")
    process = builder.start("build", os.fspath(app))
    wait_for_cgroup(builder)
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)

    def is_settled() -> bool:
        builder("base", "list")  # any command cleans up, once all killed processes have ended
        return leftovers(builder) == []

    wait_for(is_settled)
    assert [base["names"] for base in builder.document("base", "list")["bases"] if "small:1" in base["names"]]


def test_output_of_a_build_is_shown_at_once(builder: Cli, small: str, app: Path) -> None:
    write(app, Dockerfile="FROM small:1\nRUN echo step one\nRUN echo it begins; sleep 1000\n")
    process = builder.start("build", os.fspath(app))
    assert process.stderr is not None
    seen, deadline = b"", time.monotonic() + DEADLINE_S
    try:
        while b"\nit begins\n" not in seen:  # the second step never prints anything else
            assert select.select([process.stderr], [], [], max(0.0, deadline - time.monotonic()))[0], seen
            data = os.read(process.stderr.fileno(), 1 << 16)
            assert data, seen
            seen += data
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    lines = seen.decode().splitlines()
    assert lines.index("STEP 2/3: RUN echo step one") < lines.index("step one") < lines.index("it begins")


def wait_for_cgroup(cli: Cli) -> None:
    """Wait until the RUN step of a build runs."""
    deadline = time.monotonic() + DEADLINE_S * 2
    while not any((group / "cgroup.procs").read_text() for group in cgroups_of(cli.state_dir, "build.*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_run_steps_cannot_reach_the_loopback_of_the_host(builder: Cli, small: str, app: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        tries = " ".join(f"! nc -w 2 {address} {port} </dev/null &&" for address in ("127.0.0.1", "10.0.2.2"))
        write(app, Dockerfile=f"FROM small:1\nRUN {tries} true\n")
        built(builder, app)


RAW = """\
#include <arpa/inet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>

int main(void)
{
    unsigned char frame[2048];
    struct sockaddr_ll device = {.sll_family = AF_PACKET, .sll_protocol = htons(0x0800)};
    struct timeval patience = {.tv_sec = 1};
    size_t length = fread(frame, 1, sizeof(frame), stdin);
    int wire = socket(AF_PACKET, SOCK_RAW, htons(0x0800));

    device.sll_ifindex = if_nametoindex("tap0");
    if (bind(wire, (struct sockaddr *)&device, sizeof(device)) || send(wire, frame, length, 0) < 0)
        return 1;
    setsockopt(wire, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    while (recv(wire, frame, sizeof(frame), 0) > 0)
        if (frame[23] == 6 && (frame[47] & 0x12) == 0x12)
            return puts("raw open"), 0;
    return puts("raw closed"), 0;
}
"""


@pytest.mark.timeout(900)  # the first test that needs a Debian waits until it is made
def test_run_steps_do_not_reach_the_loopback_with_hand_made_frames(
    builder: Cli, debian: str, app: Path
) -> None:
    addresses = ("127.0.0.1", "0.0.0.0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for address in addresses:
            packet = syn(address, server.getsockname()[1])
            (app / address).write_bytes(GATEWAY_MAC + bytes(6) + IPV4.to_bytes(2, "big") + packet)
        looks = " && ".join(f"tcc -run raw.c <{address}" for address in addresses)
        write(app, raw__c=RAW, Dockerfile=f"FROM {debian}\nWORKDIR /made\nCOPY . .\nRUN {looks}\n")
        ended = builder.run("build", os.fspath(app))
    assert ended.exit_code == 0, ended
    assert [line for line in ended.err.splitlines() if line.startswith("raw ")] == ["raw closed"] * 2


def test_a_directory_named_as_a_system_directory_is_built_completely(
    builder: Cli, small: str, app: Path
) -> None:
    """The private root of a build has a directory of that name, too."""
    top = Path(*app.parts[:2])
    write(app, file="here", Dockerfile=f"FROM {small}\nCOPY {app.relative_to(top)}/file /file\n")
    ended = builder.run("build", os.fspath(top), "-f", f"{app}/Dockerfile", "--name", "top", "-t", "top")
    assert ended.exit_code == 0, ended
    assert builder("exec", "top", "--", "cat /file") == "here"
    assert builder.failure_document("build", "/")["code"] == "usage"


# On a separate line: output and errors come through two pipes, and a shell writes its errors in pieces.
SAY_LOOKED = "printf '\\nlooked\\n'"


def test_no_link_redirects_a_mount_of_a_run_step_to_the_host(builder: Cli, small: str, app: Path) -> None:
    """Neither a link in the directory that is built nor one in an image."""
    outside = app.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("of the host")
    (app / "link").symlink_to(outside)
    look = f"cat /m/file /m{outside}/file; touch /m{outside}/planted /m/planted; {SAY_LOOKED}"
    write(
        app,
        Dockerfile=f"FROM {small} AS other\nRUN ln -s / /slash\nFROM {small}\n"
        f"RUN --mount=type=bind,source=link,target=/m,rw {look}\n"
        f"RUN --mount=type=bind,from=other,source=/slash,target=/m,rw {look}; ls /m /m/root /m/etc;"
        " for file in /m/etc/* /m/usr/bin/env; do if true >>$file; then echo opened $file; fi; done\n",
    )
    ended = builder.run("build", os.fspath(app))
    assert ended.exit_code == 0, ended
    assert ended.err.splitlines().count("looked") == 2
    assert "of the host" not in ended.err
    assert "shadow" not in ended.err
    assert "can't create /m/etc/passwd: Read-only file system" in ended.err
    assert [line for line in ended.err.splitlines() if line.startswith("opened")] == []
    assert [path.name for path in outside.iterdir()] == ["file"]


@pytest.fixture
def disks(app: Path) -> Iterator[list[Path]]:
    """Two file systems mounted below the directory to build from, one inside the other."""
    places = [app / "disk", app / "disk" / "a second"]
    for place in places:
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "disk", place], check=True)
        (place / "file").write_text(f"on {place.name}\n")
    yield places
    subprocess.run(["umount", "--recursive", places[0]], check=True)


def test_a_run_step_cannot_write_to_file_systems_mounted_below_the_directory(
    builder: Cli, small: str, app: Path, disks: list[Path]
) -> None:
    look = f"touch /m/planted '/m/a second/planted' '/m/disk/a second/planted'; {SAY_LOOKED}"
    write(
        app,
        Dockerfile=f'FROM {small}\nCOPY ["disk/a second/file", "/copied"]\nRUN cat /copied\n'
        f"RUN --mount=type=bind,source=.,target=/m,rw {look}\n"
        f"RUN --mount=type=bind,source=disk,target=/m,rw {look}\n",
    )
    ended = builder.run("build", os.fspath(app))
    assert ended.exit_code == 0, ended
    lines = ended.err.splitlines()
    assert "on a second" in lines
    assert lines.count("looked") == 2
    assert list(app.rglob("planted")) == []


def test_a_run_step_can_write_only_to_the_cgroups_of_its_build(builder: Cli, small: str, app: Path) -> None:
    groups = [Path(mount.path) for mount in read_mounts() if mount.fstype in ("cgroup", "cgroup2")]
    write(
        app,
        Dockerfile=f"FROM {small} AS other\nRUN ln -s /sys/fs/cgroup /cg\nFROM {small}\n"
        "RUN --mount=type=bind,from=other,source=/cg,target=/m,rw"
        " find /m -maxdepth 3 -name cgroup.procs;"
        " for group in /m /m/*; do mkdir $group/waypoint-planted; done;"
        f" find /m -name cgroup.procs ! -path '*/{cgroup_name(Layout(builder.state_dir), 'build.*')}' | while read -r file;"
        f" do if echo 0 >$file; then echo written: $file; fi; done; {SAY_LOOKED}\n",
    )
    ended = builder.run("build", os.fspath(app))
    assert ended.exit_code == 0, ended
    lines = ended.err.splitlines()
    assert "looked" in lines
    assert [line for line in lines if line.startswith("/m/")]  # they can be read
    assert [line for line in lines if line.startswith("written")] == []
    assert [group for group in groups if (group / "waypoint-planted").exists()] == []


# --- the other verbs -----------------------------------------------------------------------------------


def test_bases_are_listed_exported_imported_and_removed(builder: Cli, small: str, tmp_path: Path) -> None:
    archive = os.fspath(tmp_path / "small.tar")
    builder("base", "export", small, archive)
    assert builder.run("base", "export", small, "-").out == Path(archive).read_bytes()
    (listed,) = [base for base in builder.document("base", "list")["bases"] if small in base["names"]]
    assert builder("base", "import", archive, "--name", "small:2", "--quiet") == listed["id"]
    assert f"  small:1,small:2 id={listed['id'][:12]}" in builder("base", "list")
    assert builder("base", "rm", "small:2") == "Base 'small:2' removed"
    assert builder.failure("base", "rm", "small:2").exit_code == 3
    builder("init", "--base", small, "--name", "user", "--quiet")
    failure = builder.failure("base", "rm", small)
    assert (failure.exit_code, failure.code) == (5, "busy")
    assert "user" in failure.message


def test_completion_offers_the_names_of_bases(builder: Cli, small: str) -> None:
    assert "small:1" in builder("__complete", "base", "rm", "sm").split()
    assert "small:1" in builder("__complete", "init", "--base", "sm").split()
    assert builder("__complete", "init", "--base", "ho") == "host"
    assert {"bootstrap", "export", "import", "list", "prune", "rm"} <= set(
        builder("__complete", "base", "").split()
    )


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (("build", "/no/such/directory"), 3, "no directory named '/no/such/directory'"),
        (("build", "/etc"), 3, "no Dockerfile named '/etc/Dockerfile'"),
        (("build", "/etc", "-f", "/none"), 3, "no Dockerfile named '/none'"),
        (("base", "bootstrap", "ubuntu:noble"), 2, "cannot bootstrap 'ubuntu:noble'"),
        (("base", "import", "/etc", "--name", "Not A Name"), 2, "'Not A Name' cannot be the name of a base"),
        (("base", "import", "/etc/passwd"), 2, "a base needs a name"),
        (("base", "export", "none", "-"), 3, "no base named 'none'"),
        (("base", "rm", "none"), 3, "no base named 'none'"),
        (("init", "--base", "none"), 3, "no base named 'none'"),
        (("init", "--from-image", "none"), 2, "'none' is not an image"),
        (("init", "--from-image", "oci:/none"), 3, "no image named 'oci:/none'"),
    ],
)
def test_mistakes_are_reported_by_name(
    cli: Cli, words: tuple[str, ...], exit_code: int, message: str
) -> None:
    failure = cli.failure(*words)
    assert (failure.exit_code, failure.message) == (exit_code, message)
