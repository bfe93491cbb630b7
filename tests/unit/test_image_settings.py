"""The settings of an image, and what a session over the image makes of them."""

from pathlib import Path

import pytest

from waypoint.errors import NotFound
from waypoint.kernel.bases.buildah import WithoutNoise, parse_config
from waypoint.model import ImageConfig, SessionSettings
from waypoint.session.creation.image_settings import COMMAND_VARIABLE, with_image

DOCKER = {
    "User": "app",
    "Env": ["PATH=/opt/bin:/bin", "GREETING=a=b", "PAGER=less", "EMPTY="],
    "WorkingDir": "/srv",
    "Shell": ["/bin/dash", "-c"],
    "ExposedPorts": {"8000/tcp": {}, "53/udp": {}},
    "Volumes": {"/data": {}},
    "Entrypoint": ["/run me"],
    "Cmd": ["--fast"],
    "Labels": {"team": "x"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "etc").mkdir()
    for name in ("bash", "dash", "python3"):
        (tmp_path / "bin" / name).write_text("")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "etc/group").write_text("root:x:0:\nstaff:x:50:\n")
    return tmp_path


def test_a_configuration_in_dockers_format_is_read() -> None:
    config = parse_config(DOCKER)
    assert config.env == {"PATH": "/opt/bin:/bin", "GREETING": "a=b", "PAGER": "less", "EMPTY": ""}
    assert (config.user, config.workdir, config.shell) == ("app", "/srv", ("/bin/dash", "-c"))
    assert (config.ports, config.volumes) == (("53/udp", "8000/tcp"), ("/data",))
    assert (config.entrypoint, config.cmd, config.labels) == (("/run me",), ("--fast",), {"team": "x"})


def test_each_part_may_be_missing_or_null() -> None:
    assert parse_config({}) == ImageConfig()
    assert parse_config(dict.fromkeys(DOCKER)) == ImageConfig()


def test_a_session_uses_the_settings_of_the_image(root: Path) -> None:
    settings = with_image(SessionSettings(), parse_config(DOCKER), root)
    assert (settings.user, settings.shell) == ("app", "/bin/dash")
    assert settings.env == {
        "PATH": "/opt/bin:/bin:/.waypoint/bin",  # so that waypoint-here is found in any image
        "GREETING": "a=b",
        "EMPTY": "",
        COMMAND_VARIABLE: "'/run me' --fast",
    }  # and PAGER is left alone in a session without a person


def test_a_session_for_a_person_also_gets_the_pager(root: Path) -> None:
    assert with_image(SessionSettings(attended=True), parse_config(DOCKER), root).env["PAGER"] == "less"


def test_the_users_options_override_the_image(root: Path) -> None:
    asked = SessionSettings(user="root", shell="bash", env={"GREETING": "hi", "PATH": "/bin"})
    settings = with_image(asked, parse_config(DOCKER), root)
    assert (settings.user, settings.shell) == ("root", "bash")
    assert (settings.env["GREETING"], settings.env["PATH"]) == ("hi", "/bin")


def test_a_shell_of_the_image_without_terminal_support_is_not_used(root: Path) -> None:
    for shell in (("/bin/python3", "-c"), ("/bin/none", "-c"), ("powershell", "-command")):
        assert with_image(SessionSettings(), ImageConfig(shell=shell), root).shell is None


def test_a_group_of_the_image_is_found_by_its_name(root: Path) -> None:
    assert with_image(SessionSettings(), ImageConfig(user="app:staff"), root).user == "app:50"
    assert with_image(SessionSettings(), ImageConfig(user="7:8"), root).user == "7:8"
    with pytest.raises(NotFound, match="no group named 'none'"):
        with_image(SessionSettings(), ImageConfig(user="app:none"), root)


@pytest.mark.parametrize(
    "noise",
    [
        b'time="now" level=error msg="Failed to delete btrfs qgroup 7 for /x: device or resource busy"\n',
        b'time="now" level=warning msg="Failed to remove cgroup (will retry)" error="rmdir /x: read-only"\n',
        b'time="now" level=error msg="Failed to remove paths: map[:/sys/fs/cgroup/x]"\n',
    ],
)
def test_log_lines_about_files_we_remove_ourselves_are_not_shown(noise: bytes) -> None:
    shown: list[bytes] = []
    write = WithoutNoise(shown.append)
    for chunk in (
        b"STEP 1\n" + noise[:30],
        noise[30:] + b"wor",
        b"king...",
        b'time="',
        b'x"\n',
        noise,
        b"end",
    ):
        write(chunk)
    assert b"".join(shown) == b'STEP 1\nworking...time="x"\nend'
    assert b"working..." in b"".join(shown[:3])  # before the line is complete
    write(b'\ntime="now" level=warning msg="missing argument"\n')
    assert shown[-1].endswith(b'msg="missing argument"\n')
