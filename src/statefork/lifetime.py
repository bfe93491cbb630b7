"""When an environment may end, while several threads work with it.

It ends only when nobody is making instances or images: what appeared afterwards would belong to nobody, and nobody
would remove it. Commands and copies make nothing, and end with their branch. Names are promised to branches and
snapshots before they exist, so that no two get the same.
"""

import threading
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

from statefork.errors import BranchExists, EnvironmentClosed, SnapshotExists

__all__ = ["Lifetime"]


NameTaken = BranchExists | SnapshotExists


class Lifetime:
    """Hold ``state`` to read or change what is known of the environment; ``end`` says how it ended."""

    def __init__(self) -> None:
        self.state = threading.Condition(threading.RLock())
        self.end = ""
        self._is_ending = False
        self._makers: list[int] = []
        self._promised: set[tuple[type[NameTaken], str]] = set()

    def require(self) -> None:
        """Raise EnvironmentClosed if the environment has ended, or is about to."""
        with self.state:
            if self.end or self._is_ending:
                raise EnvironmentClosed(
                    f"the environment was {self.end}" if self.end else "the environment is about to end",
                    hint="create another one; one that was left can be opened",
                )

    @contextmanager
    def making(self) -> Iterator[None]:
        """The environment does not end during the block."""
        me = threading.get_ident()
        with self.state:
            self.require()
            self._makers.append(me)
        try:
            yield
        finally:
            with self.state:
                self._makers.remove(me)
                self.state.notify_all()

    @contextmanager
    def ending(self, how: str) -> Iterator[bool]:
        """Wait until nothing is being made, then hold the state. If the block succeeds, the environment has ended; the
        block gets False if it had ended already. Whoever wants to make something meanwhile is refused."""
        with self.state:
            self._is_ending = True
            try:
                self.state.wait_for(self._is_quiet)
                yield not self.end
                self.end = self.end or how
            finally:
                self._is_ending = False

    def _is_quiet(self) -> bool:
        """Whether no other thread is making anything. A thread cannot wait for what it makes itself: it is in a signal
        handler that ends the environment."""
        return all(maker == threading.get_ident() for maker in self._makers)

    @contextmanager
    def promised(
        self, names: Sequence[str], taken: Container[str], *, refuse: type[NameTaken]
    ) -> Iterator[None]:
        """Nobody else gets these names during the block. One that is taken, or promised already, is refused."""
        promises = {(refuse, name) for name in names}
        with self.state:
            for name in names:
                if name in taken or (refuse, name) in self._promised or names.count(name) > 1:
                    raise refuse(name)
            self._promised |= promises
        try:
            yield
        finally:
            with self.state:
                self._promised -= promises
