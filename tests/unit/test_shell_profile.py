"""Which shell a base has, found without leaving the base; and the scripts that make a shell report."""

import os
from pathlib import Path

import pytest

from waypoint.cli.parser import parse
from waypoint.errors import NotFound, UsageError
from waypoint.shell.profile import ASH, BASH, DASH, ZSH, ShellProfile
from waypoint.shell.selection import find_profile

RUN_LINE_MAX = 1024  # the limit in init


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/bin").symlink_to("usr/bin")
    return tmp_path / "root"


def put(root: Path, path: str, content: bytes = b"\x7fELF") -> None:
    program = root / path.lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(content)
    program.chmod(0o755)


def link(root: Path, path: str, target: str) -> None:
    (root / path.lstrip("/")).symlink_to(target)


def test_bash_comes_first_then_zsh_dash_and_busybox(root: Path) -> None:
    for path, expected in (
        ("/usr/bin/busybox", ASH.at("/bin/busybox", "ash")),
        ("/usr/bin/dash", DASH.at("/bin/dash")),
        ("/usr/bin/zsh", ZSH.at("/bin/zsh")),
        ("/usr/local/bin/bash", BASH.at("/usr/local/bin/bash")),
        ("/usr/bin/bash", BASH.at("/bin/bash")),
    ):
        put(root, path)
        assert find_profile(root, None) == expected


def test_a_shell_is_found_by_name_and_by_path(root: Path) -> None:
    for path in ("/usr/bin/bash", "/usr/bin/zsh", "/opt/zsh-5.9"):
        put(root, path)
    assert find_profile(root, "zsh") == ZSH.at("/bin/zsh")
    assert find_profile(root, "/usr/bin/zsh") == ZSH.at("/usr/bin/zsh")
    assert find_profile(root, "/opt/zsh-5.9") == ZSH.at("/opt/zsh-5.9")


@pytest.mark.parametrize(
    ("target", "program", "expected"),
    [
        ("dash", "/usr/bin/dash", DASH.at("/usr/bin/dash")),
        # under the name sh, it would not read its rc file
        ("bash", "/usr/bin/bash", BASH.at("/usr/bin/bash")),
        ("/bin/busybox", "/usr/bin/busybox", ASH.at("/bin/sh")),
        ("/bin/../../../bin/busybox.static", "/usr/bin/busybox.static", ASH.at("/bin/sh")),
        ("/etc/alternatives/sh", "/usr/bin/zsh5", ZSH.at("/usr/bin/zsh5")),
    ],
)
def test_the_kind_of_sh_is_found_by_following_its_links(
    root: Path, target: str, program: str, expected: ShellProfile
) -> None:
    put(root, program)
    (root / "etc/alternatives").mkdir(parents=True)
    link(root, "/etc/alternatives/sh", "../../bin/zsh5")
    link(root, "/usr/bin/sh", target)
    assert find_profile(root, "sh") == expected


def test_a_hard_link_or_copy_is_recognised_by_inode_or_content(root: Path) -> None:
    put(root, "/usr/bin/dash")
    os.link(root / "usr/bin/dash", root / "usr/bin/sh")
    assert find_profile(root, "sh") == DASH.at("/bin/dash")
    (root / "usr/bin/sh").unlink()
    put(root, "/usr/bin/sh", b"\x7fELF...BusyBox v1.36.1 (2024)...")
    assert find_profile(root, "sh") == ASH.at("/bin/sh")


def test_links_are_never_followed_out_of_the_root(root: Path, tmp_path: Path) -> None:
    put(tmp_path, "/bash")
    for number, target in enumerate((f"{tmp_path}/bash", "../../../bash", "/proc/self/root/bin/bash")):
        link(root, f"/usr/bin/bash{number}", target)
        with pytest.raises(NotFound):
            find_profile(root, f"/bin/bash{number}")
    assert (root / "usr/bin/bash0").exists()  # if the link is followed on the host


def test_absolute_links_and_dots_are_resolved_inside_the_root(root: Path) -> None:
    put(root, "/opt/shells/bash")
    link(root, "/usr/bin/bash", "/../opt/./shells/../shells/bash")
    assert find_profile(root, None) == BASH.at("/bin/bash")


def test_what_is_not_a_program_is_skipped(root: Path) -> None:
    (root / "usr/bin/bash").mkdir()
    (root / "usr/bin/zsh").write_text("not executable")
    link(root, "/usr/bin/dash", "dash")  # a loop
    os.mkfifo(root / "usr/bin/ash", 0o755)
    put(root, "/usr/local/bin/dash")
    assert find_profile(root, None) == DASH.at("/usr/local/bin/dash")


def test_an_error_names_the_shells_that_were_searched_for(root: Path) -> None:
    with pytest.raises(NotFound) as nothing:
        find_profile(root, None)
    for path in ("/bin/bash", "/usr/local/bin/bash", "/bin/zsh", "/bin/dash", "/bin/busybox", "/bin/sh"):
        assert path in nothing.value.hint
    with pytest.raises(NotFound, match="'zsh'") as none:
        find_profile(root, "zsh")
    assert "/usr/bin/zsh" in none.value.hint


def test_a_shell_of_an_unknown_kind_is_refused(root: Path) -> None:
    put(root, "/usr/bin/sh")
    for wanted in (None, "sh", "/bin/sh"):
        with pytest.raises(UsageError, match="cannot tell what kind of shell /bin/sh is"):
            find_profile(root, wanted)
    for wanted in ("fish", "", "bin/bash", "bash ", "/bin/\0bash"):
        with pytest.raises(UsageError, match="unknown shell"):
            find_profile(root, wanted)


@pytest.mark.parametrize("profile", [BASH, ZSH, DASH, ASH, ASH.at("/opt/my box/busybox", "ash")])
def test_the_scripts_are_filled_in_and_fit(profile: ShellProfile) -> None:
    shell = profile.for_terminal("second")
    texts = (*shell.argv, shell.rc, shell.run_line, *shell.env.values())
    assert not any("%DIR%" in text or "%PROGRAM%" in text for text in texts)
    assert "/.waypoint/second/status" in shell.rc
    assert shell.run_line.startswith(" ")
    assert shell.run_line.endswith("\n")
    assert len(shell.run_line) <= RUN_LINE_MAX
    assert shell.argv[0] == profile.program[0]


def test_an_applet_is_started_with_all_its_words_and_named_sh() -> None:
    shell = ASH.at("/opt/my box/busybox", "ash").for_terminal("main")
    assert shell.argv[:2] == ("/opt/my box/busybox", "ash")
    assert "exec '/opt/my box/busybox' ash -c" in shell.rc
    assert shell.path == "/bin/sh"
    assert ZSH.at("/opt/zsh").path == "/opt/zsh"


@pytest.mark.parametrize(
    ("words", "directory", "shell"),
    [
        (["init", "--shell", "DIR"], "DIR", None),
        (["init", "DIR", "--shell"], "DIR", None),
        (["init", "DIR"], "DIR", None),
        (["init", "--shell=zsh", "DIR"], "DIR", "zsh"),
        (["init", "DIR", "--shell=/bin/dash"], "DIR", "/bin/dash"),
        (["--json", "init", "--shell"], None, None),
    ],
)
def test_the_name_of_a_shell_is_set_only_with_an_equals_sign(
    words: list[str], directory: str | None, shell: str | None
) -> None:
    options = parse(words)
    assert options.directory == directory
    assert (options.shell or None) == shell
