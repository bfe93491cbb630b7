"""An environment inside this process, for unit tests of programs that use StateFork.

It has files and variables and a tiny shell that knows ``echo``, ``cat``, ``cd``, ``pwd``, ``export``, ``rm``, ``true``,
``false``, ``. FILE`` and ``exit N``, joined by ``&&`` and ``;``, with quotes, ``> FILE``, ``>> FILE`` and ``$NAME``. No program is started.
"""

import copy
import itertools
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from statefork.backend import Availability, Backend, Capabilities, Command, CommandResult, Image, Instance
from statefork.errors import BackendFailed

__all__ = ["MemoryBackend"]

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_IN_QUOTES = re.compile(_VARIABLE.pattern + r'|\\([\\"$`])')
_PIECE = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|&&|>>|[;>\n]|[^\S\n]+|[^\s'"\\;&>]+|.""", re.DOTALL)
_ENDS_STEP = (";", "\n", "&&")
_OVER, _AFTER = "\0>", "\0>>"  # no word can look like these
_ARROWS = {">": _OVER, ">>": _AFTER}


@dataclass
class _World:
    """All that an environment is: what a snapshot copies."""

    files: dict[str, bytes] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"


class MemoryBackend(Backend):
    name = "memory"
    capabilities = Capabilities(files=True, shell=True, live_fork=True, concurrent_branches=True)
    runs_programs = False

    def __init__(self, home: Path, tag: str) -> None:
        super().__init__(home, tag)
        self._worlds: dict[str, _World] = {}
        self._images: dict[str, _World] = {}
        self._numbers = itertools.count(1)

    @classmethod
    def probe(cls) -> Availability:
        return Availability(is_available=True, detail="in this process")

    def start(self, branch_id: str) -> Instance:
        self._worlds[branch_id] = _World()
        return Instance(id=branch_id)

    def snapshot(self, instance: Instance, snapshot_id: str) -> Image:
        self._images[snapshot_id] = copy.deepcopy(self._world(instance))
        return Image(id=snapshot_id, sizes={"files": sum(map(len, self._world(instance).files.values()))})

    def spawn(self, image: Image, branch_id: str) -> Instance:
        instance = Instance(id=f"{branch_id}#{next(self._numbers)}")
        self._worlds[instance.id] = copy.deepcopy(self._images[image.id])
        return instance

    def replace(self, instance: Instance, image: Image, branch_id: str) -> Instance:
        self._worlds[instance.id] = copy.deepcopy(self._images[image.id])
        return instance

    def run(self, instance: Instance, command: Command, timeout_s: float | None) -> CommandResult:
        line = command if isinstance(command, str) else shlex.join(command)
        return _Shell(self._world(instance)).run(line)

    def copy_in(self, instance: Instance, source: Path, path: str) -> None:
        files = self._world(instance).files
        try:
            if source.is_dir():
                for entry in sorted(source.rglob("*")):
                    if entry.is_file():
                        files[posixpath.join(_plain(path), entry.relative_to(source))] = entry.read_bytes()
            elif source.exists() and not source.is_file():
                raise BackendFailed(self.name, "copy_in", f"{source} is neither a file nor a directory")
            else:
                is_inside = path.endswith("/") or _below(files, path)
                files[_plain(f"{path}/{source.name}" if is_inside else path)] = source.read_bytes()
        except OSError as error:
            raise BackendFailed(self.name, "copy_in", str(error)) from error

    def copy_out(self, instance: Instance, path: str, target: Path) -> None:
        files = self._world(instance).files
        content = files.get(_plain(path))
        chosen = _below(files, path)
        try:
            if content is not None:
                _write(target / posixpath.basename(path) if target.is_dir() else target, content)
            elif not chosen:
                raise BackendFailed(self.name, "copy_out", f"no file {path}")
            for name, data in chosen.items():
                _write(target / name, data)
        except OSError as error:
            raise BackendFailed(self.name, "copy_out", str(error)) from error

    def discard(self, instance: Instance) -> None:
        self._worlds.pop(instance.id, None)

    def delete(self, image: Image) -> None:
        self._images.pop(image.id, None)

    def close(self) -> None:
        self._worlds.clear()
        self._images.clear()

    def is_alive(self, instance: Instance) -> bool:
        return instance.id in self._worlds

    def _world(self, instance: Instance) -> _World:
        try:
            return self._worlds[instance.id]
        except KeyError as error:
            raise BackendFailed(
                self.name,
                "find",
                f"{instance.id} has ended",
                hint="what is in memory ends with the process that made it",
            ) from error


def _plain(path: str) -> str:
    return posixpath.normpath(path)


def _below(files: Mapping[str, bytes], path: str) -> dict[str, bytes]:
    """The files of a directory, by their names in it."""
    start = f"{_plain(path)}/"
    return {name.removeprefix(start): content for name, content in files.items() if name.startswith(start)}


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


class _Shell:
    def __init__(self, world: _World) -> None:
        self._world = world
        self._output: list[str] = []

    def run(self, line: str) -> CommandResult:
        code = self._lines(line)
        return CommandResult(exit_code=code, output="".join(self._output))

    def _lines(self, text: str) -> int:
        code, is_skipped = 0, False
        step: list[str] = []
        for piece in (*_PIECE.findall(text), ";"):
            if piece not in _ENDS_STEP:
                step.append(piece)
                continue
            if not is_skipped and any(not part.isspace() for part in step):
                code = self._step(step)
            is_skipped = piece == "&&" and code != 0
            step = []
        return code

    def _step(self, pieces: list[str]) -> int:
        words = self._words(pieces)
        if words is None:
            self._output.append("syntax error\n")
            return 2
        target, kept = None, b""
        for arrow in (_OVER, _AFTER):
            if arrow in words:
                at = words.index(arrow)
                target, words = self._path(words[at + 1]), words[:at]
                kept = self._world.files.get(target, b"") if arrow is _AFTER else b""
        before = len(self._output)
        code = self._builtin(words)
        if target is not None:
            self._world.files[target] = kept + "".join(self._output[before:]).encode(errors="replace")
            del self._output[before:]
        return code

    def _words(self, pieces: list[str]) -> list[str] | None:
        """The words that the pieces of a step make; None if a quote has no end or an arrow no target."""
        words: list[str] = []
        is_open = False  # whether the next piece belongs to the last word
        for piece in pieces:
            if piece in "'\"\\":
                return None
            if piece in _ARROWS or piece.isspace():
                words += [_ARROWS[piece]] if piece in _ARROWS else []
                is_open = False
                continue
            is_quoted = piece[0] in "'\"\\"
            parts = [self._unquoted(piece)] if is_quoted else self._expanded(piece).split()
            if is_open and parts:
                words[-1] += parts.pop(0)
            words += parts
            is_open = is_open or bool(parts)
        return None if words and words[-1] in _ARROWS.values() else words

    def _unquoted(self, piece: str) -> str:
        if piece[0] == "'":
            return piece[1:-1]
        if piece[0] == "\\":
            return "" if piece[1] == "\n" else piece[1]
        return _IN_QUOTES.sub(lambda found: found[3] or self._value(found[1] or found[2]), piece[1:-1])

    def _expanded(self, text: str) -> str:
        return _VARIABLE.sub(lambda found: self._value(found[1] or found[2]), text)

    def _builtin(self, words: list[str]) -> int:
        if not words:
            return 0
        name, *arguments = words
        if name == "echo":
            self._output.append(" ".join(arguments) + "\n")
        elif name == "cat":
            return self._cat(arguments)
        elif name == "cd":
            self._world.cwd = self._path(arguments[0] if arguments else "/")
        elif name == "pwd":
            self._output.append(f"{self._world.cwd}\n")
        elif name == "export":
            for argument in arguments:
                key, _, value = argument.partition("=")
                self._world.variables[key] = value
        elif name == "rm":
            for argument in arguments:
                self._world.files.pop(self._path(argument), None)
        elif name == "." and arguments:
            return self._source(arguments[0])
        elif name == "exit":
            return int(arguments[0]) % 256 if arguments and arguments[0].isdecimal() else 2 * bool(arguments)
        elif name not in ("true", "false", "mkdir"):  # directories need not be made
            self._output.append(f"{name}: command not found\n")
            return 127
        return 1 if name == "false" else 0

    def _cat(self, names: list[str]) -> int:
        for name in names:
            content = self._world.files.get(self._path(name))
            if content is None:
                self._output.append(f"cat: {name}: No such file or directory\n")
                return 1
            self._output.append(content.decode(errors="replace"))
        return 0

    def _source(self, name: str) -> int:
        before = len(self._output)
        code = self._cat([name])
        if code == 0:
            text = "".join(self._output[before:])
            del self._output[before:]
            code = self._lines(text)
        return code

    def _path(self, name: str) -> str:
        return posixpath.normpath(posixpath.join(self._world.cwd, name))

    def _value(self, name: str) -> str:
        return self._world.cwd if name == "PWD" else self._world.variables.get(name, "")
