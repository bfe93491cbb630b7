"""What of an environment survives a restore: one probe for each capability.

Each probe sets something up, a snapshot is taken, each disturbs what it made, the snapshot is restored, and each looks. The
contract tests and the benchmark run all of them in one environment.
"""

import secrets
from dataclasses import dataclass

from statefork.environment import Environment
from statefork.errors import BackendFailed

__all__ = ["PROBES", "Probe", "Probing", "survivors"]

_TIMEOUT_S = 120.0
_END = "sf-end"
_DIRECTORY = "/var/tmp/sf"  # in the texts of the probes; each probing has a directory of its own

_HOLDER = (
    "(n=6; n=$((n*7)); trap 'echo $n > /var/tmp/sf/next; mv /var/tmp/sf/next /var/tmp/sf/told' USR1;"
    " echo > /var/tmp/sf/held; while :; do sleep 1000 & wait; done) >/dev/null 2>&1 & echo $! > /var/tmp/sf/holder"
)
_LISTENER = (
    'python3 -IS -c \'import socket; s = socket.create_server(("127.0.0.1", 18181)); open("/var/tmp/sf/up", "w").close()\n'
    'while True:\n c, _ = s.accept(); c.sendall(b"listening\\n"); c.close()\' >/dev/null 2>&1 & echo $! > /var/tmp/sf/listener'
)
_ASK = 'python3 -IS -c \'import socket; print(socket.create_connection(("127.0.0.1", 18181), 30).recv(99).decode(), end="")\''

_TERMINAL_OF_JOB = "cut -d ' ' -f 7 /proc/$(cat /var/tmp/sf/job)/stat 2>/dev/null"


@dataclass(frozen=True, slots=True)
class Probe:
    """Shell text to set something up, to disturb it, and to look; ``answer`` is what ``look`` prints if it survived."""

    capability: str
    prepare: str
    disturb: str
    look: str
    answer: str


PROBES = (
    Probe(
        "files",
        prepare="echo before > /var/tmp/sf/file",
        disturb="echo after > /var/tmp/sf/file",
        look="cat /var/tmp/sf/file",
        answer="before\n",
    ),
    Probe(
        "shell",
        prepare="cd /var/tmp && export SF_VARIABLE=before",
        disturb="cd / && export SF_VARIABLE=after",
        look="pwd && echo $SF_VARIABLE",
        answer="/var/tmp\nbefore\n",
    ),
    Probe(
        "processes",
        prepare="sleep 98765 >/dev/null 2>&1 & echo $! > /var/tmp/sf/pid",
        disturb="kill $(cat /var/tmp/sf/pid)",
        look="tr '\\0' ' ' < /proc/$(cat /var/tmp/sf/pid)/cmdline",
        answer="sleep 98765 ",
    ),
    Probe(
        # A number that is nowhere but in the variable of a process, which writes it down when asked to.
        "memory",
        prepare=f"rm -f /var/tmp/sf/held; {_HOLDER}\nuntil [ -e /var/tmp/sf/held ]; do sleep 0.05; done",
        disturb="kill $(cat /var/tmp/sf/holder)",
        look="rm -f /var/tmp/sf/told; kill -USR1 $(cat /var/tmp/sf/holder); for i in $(seq 600); do"
        " [ -e /var/tmp/sf/told ] || [ ! -d /proc/$(cat /var/tmp/sf/holder) ] && break; sleep 0.05; done;"
        " cat /var/tmp/sf/told",
        answer="42\n",
    ),
    Probe(
        # Its settings, and that it still is the terminal of a job in the background.
        "terminal",
        prepare="stty intr ^B 2>/dev/null; sleep 87654 >/dev/null 2>&1 & echo $! > /var/tmp/sf/job;"
        f" {_TERMINAL_OF_JOB} > /var/tmp/sf/terminal",
        disturb="stty intr ^C 2>/dev/null; kill $(cat /var/tmp/sf/job)",
        look="stty -a 2>/dev/null | grep -o 'intr = ^B';"
        f' [ "$({_TERMINAL_OF_JOB})" = "$(cat /var/tmp/sf/terminal)" ] && echo the same',
        answer="intr = ^B\nthe same\n",
    ),
    Probe(
        "sockets",
        prepare=f"{_LISTENER}\nfor i in $(seq 600); do [ -e /var/tmp/sf/up ] || [ ! -d /proc/$(cat /var/tmp/sf/listener) ]"
        " && break; sleep 0.05; done",
        disturb="kill $(cat /var/tmp/sf/listener)",
        look=_ASK,
        answer="listening\n",
    ),
)


class Probing:
    """All probes in one environment. The name of their directory is random, since it may be on the host itself."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._directory = f"{_DIRECTORY}-{secrets.token_hex(8)}"

    def prepare(self) -> None:
        """Set everything up in the current branch."""
        made = self._env.run(f"mkdir -m 700 {self._directory}", timeout_s=_TIMEOUT_S)
        if made.exit_code != 0:
            raise BackendFailed(self._env.backend.name, "probe", made.output + made.errors)
        self._run("\n".join(probe.prepare for probe in PROBES))

    def disturb(self) -> None:
        """Change or end what was set up."""
        self._run("\n".join(probe.disturb for probe in PROBES))

    def found(self, branch_id: str | None = None) -> set[str]:
        """The capabilities whose probes find in a branch what they had set up."""
        text = "\n".join(f"{probe.look}\necho {_END}" for probe in PROBES)
        answers = self._run(text, branch_id).split(f"{_END}\n")
        return {
            probe.capability for probe, answer in zip(PROBES, answers, strict=False) if answer == probe.answer
        }

    def end(self) -> None:
        """Remove what is left on the host where the files of an environment are the host's own."""
        if not self._env.capabilities.files:
            self._run(f"cd / && rm -rf {_DIRECTORY}")

    def _run(self, command: str, branch_id: str | None = None) -> str:
        text = command.replace(_DIRECTORY, self._directory)
        return self._env.run(text, branch_id=branch_id, timeout_s=_TIMEOUT_S).output


def survivors(env: Environment) -> set[str]:
    """The capabilities whose probes survive a snapshot and a restore of the current branch."""
    probing = Probing(env)
    try:
        probing.prepare()
        saved = env.snapshot().snapshot_id
        probing.disturb()
        env.restore(saved)
        return probing.found()
    finally:
        probing.end()
