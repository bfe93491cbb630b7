"""A session from its creation to its end."""

from waypoint import Session


def test_the_shell_keeps_directory_and_variables_between_commands(session: Session) -> None:
    session.exec("cd /etc; export SEEN=yes; plain=also")
    assert session.exec("echo $PWD $SEEN $plain").output == "/etc yes also\n"


def test_a_restored_branch_is_at_the_saved_point(session: Session) -> None:
    session.exec("x=1; echo one >/tmp/note")
    session.snapshot("before")
    session.exec("x=2; echo two >/tmp/note; cd /")
    session.restore("before")
    assert session.exec("echo $x $(cat /tmp/note) $PWD").output == f"1 one {session.record.workspace}\n"
