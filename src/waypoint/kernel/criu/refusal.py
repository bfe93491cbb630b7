"""What CRIU would save in a way that could not be restored, or not as it was."""

__all__ = ["CannotBeSaved"]


class CannotBeSaved(Exception):
    """A process has something that would not come back; the reason names both. ``hint`` says what helps."""

    def __init__(self, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint
