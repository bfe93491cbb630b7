"""Programs to run inside an environment while it is saved and restored, and how to check that they survived.

Each has a state that a step changes, and that can be asked for: after a restore the answer must be that of the snapshot.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statefork.environment import Environment
from statefork.errors import BackendFailed, WrongUse

__all__ = ["WORKLOADS", "Workload", "make_workload"]

_APPS = Path(__file__).parent.parent / "apps"
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Workload:
    """``app`` is the program, if there is one; ``start`` runs it, ``step`` changes its state, ``ask`` prints the state.

    All its files are in ``home``, which has a random name: where files are the host's own, others may look for it.
    """

    name: str
    home: str
    app: str | None
    start: str
    step: Callable[[int], str]
    ask: str

    def begin(self, env: Environment) -> None:
        """Bring the program into the environment and start it; return when it is ready."""
        run(env, f"mkdir -p -m 700 {self.home}")
        if self.app is not None:
            env.copy_in(_APPS / self.app, f"{self.home}/{self.app}")
        run(env, self.start)

    def end(self, env: Environment) -> None:
        """Remove what is left on the host where the files of an environment are the host's own."""
        if not env.capabilities.files:
            run(env, f"cd / && rm -rf {self.home}")

    def state(self, env: Environment) -> str:
        return run(env, self.ask)


def run(env: Environment, command: str) -> str:
    result = env.run(command, timeout_s=_START_TIMEOUT_S)
    if result.exit_code != 0:
        raise BackendFailed(
            env.backend.name,
            "workload",
            f"{command!r} ended with {result.exit_code}: {result.output}{result.errors}",
        )
    return result.output


def _start_command(home: str, words: str, sign: str) -> str:
    """Shell text: start a program in the background and wait until it has made the file ``sign``. First end the one
    that runs already, if the noted pid is still that program's: a restore may have restored the note alone."""
    is_ours = f"grep -qsz ^{home}/ /proc/$p/cmdline"
    note = f"echo $$ > {home}/pid; exec python3 {home}/{words}"
    return (
        f'p=$(cat {home}/pid 2>/dev/null); while [ "$p" ] && {is_ours}; do kill -9 $p; sleep 0.05; done; rm -f {sign};'
        f" (setsid sh -c '{note}' </dev/null >/dev/null 2>&1 &);"
        f" for i in $(seq 2400); do [ -e {sign} ] && break; sleep 0.05; done; [ -e {sign} ]"
    )


def _fetch(port: int, path: str) -> str:
    return (
        "python3 -c 'import urllib.request as u;"
        f' print(u.urlopen("http://127.0.0.1:{port}/{path}").read().decode(), end="")\''
    )


def _bare(home: str, _size_mb: int) -> Workload:
    # Nothing but a file: runs everywhere, and shows what the mechanism alone costs.
    return Workload(
        "bare",
        home,
        None,
        start=f"echo 0 > {home}/state",
        step=lambda number: f"echo {number} > {home}/state",
        ask=f"cat {home}/state",
    )


def _kv(home: str, _size_mb: int) -> Workload:
    return Workload(
        "kv",
        home,
        "kv_server.py",
        start=_start_command(home, f"kv_server.py 8000 {home}/up", f"{home}/up"),
        step=lambda number: _fetch(8000, f"set/step/{number}"),
        ask=_fetch(8000, "all"),
    )


def _logger(home: str, _size_mb: int) -> Workload:
    # Its state changes by itself: all that can be asked is whether it continues from where it was.
    return Workload(
        "logger",
        home,
        "logger.py",
        start=_start_command(home, f"logger.py {home}/log", f"{home}/log"),
        step=lambda _number: "true",
        ask=f"last() {{ tail -n 1 {home}/log | grep . || echo 0; }}; n=$(last);"
        " for i in $(seq 200); do [ $(last) -gt $n ] && break; sleep 0.05; done; [ $(last) -gt $n ] && echo goes on",
    )


def _memhog(home: str, size_mb: int) -> Workload:
    ask = (
        "python3 -c 'import socket;"
        ' print(socket.create_connection(("127.0.0.1", 8016), 60).recv(99).decode())\''
    )
    return Workload(
        f"memhog {size_mb}",
        home,
        "memory_hog.py",
        start=_start_command(home, f"memory_hog.py {size_mb} 8016 {home}/up", f"{home}/up"),
        step=lambda _number: "true",
        ask=ask,
    )


def _fsgen(home: str, size_mb: int) -> Workload:
    make = f"python3 {home}/file_generator.py {home}/files"
    return Workload(
        f"fsgen {size_mb}",
        home,
        "file_generator.py",
        start=f"{make} {size_mb}",
        step=lambda _number: f"{make} 1",
        ask=f"cd {home}/files && cat * | sha256sum",
    )


def _db(home: str, _size_mb: int) -> Workload:
    return Workload(
        "db",
        home,
        "shop.py",
        start=f"{_start_command(home, f'shop.py {home} 8015', f'{home}/up')};"
        f" {_fetch(8015, 'price/book/1999')}; {_fetch(8015, 'add/book')}; {_fetch(8015, 'add/book')}",
        step=lambda number: (
            f"{_fetch(8015, f'discount/{number % 90}')}; {_fetch(8015, f'price/book/{1999 - 7 * number}')}"
        ),
        ask=_fetch(8015, "total"),
    )


WORKLOADS: dict[str, Callable[[str, int], Workload]] = {
    "bare": _bare,
    "kv": _kv,
    "memhog": _memhog,
    "fsgen": _fsgen,
    "logger": _logger,
    "db": _db,
}


def make_workload(text: str) -> Workload:
    """``kv``, ``logger``, ``db``, ``bare``, ``memhog MB`` or ``fsgen MB``."""
    name, _, size = text.partition(" ")
    if name not in WORKLOADS or (size and not size.isdecimal()):
        raise WrongUse(
            f"unknown workload {text!r}", hint=f"one of {', '.join(WORKLOADS)}; memhog and fsgen take MB"
        )
    return WORKLOADS[name](f"/var/tmp/sf-{secrets.token_hex(8)}", int(size or 100))
