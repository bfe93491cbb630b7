"""Open and close terminals of a branch, and type into them. To read them: :mod:`waypoint.session.terminals.screen`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from waypoint.errors import LaunchFailed, ShellError, UsageError
from waypoint.names import parse_name
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.creation.users import session_user
from waypoint.shell.client import InitRefused, ShellClient, shell_error
from waypoint.shell.keys import encode_keys
from waypoint.shell.profile import UNATTENDED_ENV
from waypoint.shell.protocol import (
    ErrorCode,
    Request,
    TerminalStatus,
    encode_input,
    encode_named,
    encode_resize,
    encode_signal,
)
from waypoint.shell.selection import find_profile
from waypoint.shell.terminal import DEFAULT_SIZE, WindowSize, open_terminal
from waypoint.store.live import root_path
from waypoint.store.settings_column import session_settings

__all__ = [
    "close_terminal",
    "list_terminals",
    "new_terminal",
    "resize_terminal",
    "send_keys",
    "signal_terminal",
]

SIZE_MAX = 1000


def list_terminals(address: BranchAddress) -> list[TerminalStatus]:
    return address.ask(ShellClient.terminals)


def new_terminal(
    address: BranchAddress,
    name: str,
    *,
    size: WindowSize | None = None,
    shell: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    attended: bool | None = None,
) -> None:
    """Open a terminal with a shell in it. A terminal whose shell has ended gets a fresh one.

    What is left out is as in the session's settings.
    """
    parse_name("terminal", name)
    settings = session_settings(address.catalogue, address.session_id)
    size = size or settings.size or DEFAULT_SIZE
    checked_size(size)
    with address.gate():
        incarnation = address.incarnation()
        root = root_path(address.state_dir, incarnation)
        profile = find_profile(Path(root), shell or settings.shell)
        user = session_user(root, settings)
        is_attended = settings.attended if attended is None else attended
        if is_attended:
            profile = profile.attended()
        directory = cwd or address.catalogue.workspace(address.session_id)
        with address.connect(incarnation) as client:
            try:
                variables = {
                    **({} if is_attended else UNATTENDED_ENV),
                    **user.env,
                    **settings.env,
                    **(env or {}),
                }
                open_terminal(
                    client,
                    name,
                    profile,
                    size=size,
                    cwd=directory,
                    env=variables,
                    uid=user.uid,
                    gid=user.gid,
                    groups=user.groups,
                )
            except InitRefused as refusal:
                if refusal.reason in (ErrorCode.EXEC_FAILED, ErrorCode.SHELL):
                    raise LaunchFailed(f"cannot start the shell: {refusal}") from refusal
                raise ShellError(
                    f"cannot open terminal {name!r} in {address.where}: {refusal}",
                    hint="waypoint terminal list shows those that are open",
                ) from refusal


def close_terminal(address: BranchAddress, name: str) -> None:
    """End its shell and what runs in its foreground."""
    _ask(address, name, encode_named(Request.CLOSE, name))


def resize_terminal(address: BranchAddress, name: str, size: WindowSize) -> None:
    """Set the size of a terminal; its programs get SIGWINCH."""
    checked_size(size)
    _ask(address, name, encode_resize(name, *size))


def signal_terminal(address: BranchAddress, name: str, number: int) -> None:
    """Send a signal to the foreground processes."""
    _ask(address, name, encode_signal(name, number))


def send_keys(address: BranchAddress, terminal: str, words: Sequence[str], *, literal: bool = False) -> None:
    """Type text and named keys, as ``tmux send-keys`` does."""
    data = encode_keys(words, literal=literal)
    in_other_mode = encode_keys(words, application_cursor=True, literal=literal)
    if data != in_other_mode:
        from waypoint.session.terminals.screen import (
            read_screen,  # the emulator takes longer to load than a key to send
        )

        data = in_other_mode if read_screen(address, terminal).application_cursor else data
    _ask(address, terminal, encode_input(terminal, data))


def checked_size(size: WindowSize) -> None:
    if not all(1 <= side <= SIZE_MAX for side in size):
        raise UsageError(
            f"a size of {size[1]}x{size[0]} is out of range",
            hint=f"columns x rows, each from 1 to {SIZE_MAX}: 120x40",
        )


def _ask(address: BranchAddress, terminal: str, frame: bytes) -> None:
    try:
        address.ask(lambda client: client.ask(frame))
    except InitRefused as refusal:
        raise shell_error(refusal, address.where, terminal) from refusal
