"""Files that native/preload writes or reads while CRIU works, handed over as descriptors that variables name."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

__all__ = ["HandedOver", "Input", "Output"]


class HandedOver:
    """A context manager for the time of one dump or restore: ``descriptors`` and ``env`` are for the process of CRIU."""

    def __init__(self, variable: str) -> None:
        self._variable = variable
        self.descriptors: tuple[int, ...] = ()
        self.env: dict[str, str] = {}

    def __exit__(self, *_: object) -> None:
        for fd in self.descriptors:
            os.close(fd)

    def _hand_over(self, fd: int) -> None:
        self.descriptors, self.env = (fd,), {self._variable: str(fd)}


class Output(HandedOver):
    """What CRIU's process writes, to be read when it has ended."""

    def __enter__(self) -> Self:
        self._hand_over(os.memfd_create(self._variable, os.MFD_CLOEXEC))
        return self

    def read(self) -> bytes:
        (fd,) = self.descriptors
        return os.pread(fd, os.fstat(fd).st_size, 0)

    def opened(self) -> IO[bytes]:
        """For a program that reads it from its beginning."""
        (fd,) = self.descriptors
        return open(f"/proc/self/fd/{fd}", "rb")


class Input(HandedOver):
    """A file beside the images for CRIU's process to read; it need not exist."""

    def __init__(self, variable: str, file: Path) -> None:
        super().__init__(variable)
        self.file = file

    def __enter__(self) -> Self:
        with suppress(FileNotFoundError):
            self._hand_over(os.open(self.file, os.O_RDONLY | os.O_CLOEXEC))
        return self
