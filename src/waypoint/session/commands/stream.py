"""The output of a command as an iterator, while it runs."""

from collections.abc import Iterator

from waypoint.errors import UsageError
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.session.commands.exec import CommandResult, command_progress
from waypoint.session.commands.following import Sink

__all__ = ["CommandStream"]


class CommandStream:
    """Iterate over it to get the pieces of the output; then ``result`` says how the command ended.

    A context manager. Leaving it before the end ends the command, as a reader that goes away does.
    """

    def __init__(
        self,
        address: BranchAddress,
        text: str,
        *,
        terminal: str,
        timeout_s: float | None,
        wait: bool,
        output_limit: int | None,
    ) -> None:
        self._pieces: list[bytes] = []
        self._result: CommandResult | None = None
        self._progress = command_progress(
            address,
            text,
            Sink(self._pieces.append, from_terminal=True),
            terminal=terminal,
            timeout_s=timeout_s,
            wait=wait,
            output_limit=output_limit,
        )

    def __enter__(self) -> "CommandStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()

    @property
    def result(self) -> CommandResult:
        if self._result is None:
            raise UsageError("the command has not ended", hint="iterate to the end of its output first")
        return self._result

    def __iter__(self) -> Iterator[bytes]:
        while self._result is None:
            try:
                next(self._progress)
            except StopIteration as end:
                self._result = end.value
            pieces = b"".join(self._pieces)
            self._pieces.clear()
            if pieces:
                yield pieces
