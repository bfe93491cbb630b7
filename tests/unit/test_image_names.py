"""Names of bases are references as in Dockerfiles; all forms of a name mean the same base."""

import pytest

from waypoint.errors import UsageError
from waypoint.store.image_names import full_name, local_name, short_name


@pytest.mark.parametrize(
    ("written", "full", "short"),
    [
        ("debian", "docker.io/library/debian:latest", "debian"),
        ("debian:bookworm", "docker.io/library/debian:bookworm", "debian:bookworm"),
        ("docker.io/library/debian:bookworm", "docker.io/library/debian:bookworm", "debian:bookworm"),
        ("docker.io/debian:bookworm", "docker.io/library/debian:bookworm", "debian:bookworm"),
        ("team/tools:1.2", "docker.io/team/tools:1.2", "team/tools:1.2"),
        ("localhost/app", "localhost/app:latest", "localhost/app"),
        ("localhost:5000/app:3", "localhost:5000/app:3", "localhost:5000/app:3"),
        ("example.org/a/b/c", "example.org/a/b/c:latest", "example.org/a/b/c"),
        ("my_app-2", "docker.io/library/my_app-2:latest", "my_app-2"),
    ],
)
def test_a_name_has_one_full_and_one_short_form(written: str, full: str, short: str) -> None:
    assert full_name(written) == full
    assert short_name(full) == short
    assert full_name(short) == full


@pytest.mark.parametrize(
    "written",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        "Debian",
        "a b",
        "a:",
        "a:b:c",
        "a@sha256:00",
        "-a",
        "a:-",
        "host",
    ],
)
def test_an_invalid_image_name_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a base"):
        full_name(written)


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("webapp", "localhost/webapp:latest"),
        ("My App!", "localhost/my-app:latest"),
        ("…", "localhost/base:latest"),
    ],
)
def test_an_image_built_here_has_a_localhost_name(directory: str, name: str) -> None:
    assert local_name(directory) == name
    assert full_name(name) == name
