"""Why CRIU failed, in one line, from its log."""

import re
from pathlib import Path

__all__ = ["CriuFailed", "digest_log"]

ERRORS_QUOTED = 2  # the first is the cause, later ones are its consequences

_ERROR = re.compile(r"^(?:\([\d.]+\))?\s*(?:\d+:\s*)?Error \([^)]*\): (.*)$")
# Logged at every start where root lacks CAP_SYS_RESOURCE; CRIU continues.
_HARMLESS = "RLIMIT_NOFILE"


class CriuFailed(Exception):
    """CRIU refused or failed; ``reason`` is the digest of its log."""

    def __init__(self, reason: str, log_file: Path) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log_file = log_file


def digest_log(log_file: Path, out_file: Path) -> str:
    """The reason of a failure in one line, from the errors in CRIU's log; without any, what it printed."""
    errors = []
    if log_file.exists():
        for line in log_file.read_text(errors="replace").splitlines():
            match = _ERROR.match(line)
            if match and _HARMLESS not in match[1]:
                errors.append(match[1])
    distinct = list(dict.fromkeys(errors))
    return "; ".join(distinct[:ERRORS_QUOTED]) or out_file.read_text(errors="replace").strip()
