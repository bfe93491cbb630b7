"""Images: built, pulled and exported by buildah, without a daemon, in a store of our own.

The store and every setting are private: nothing of the host's container tools is needed or changed. In a pool
on btrfs each layer of an image is a subvolume, so that the export of an image into a base is a snapshot: no
copy, and the space is shared. buildah runs in namespaces that end with us
(:mod:`waypoint.kernel.processes.private_namespaces`); its mounts are never seen outside.

``RUN`` steps run under runc with its usual walls, in a network of their own that reaches the outside through
slirp4netns: the host's loopback cannot be reached from there.
"""

import json
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waypoint.errors import BuildFailed, PoolFull, ToolFailed, ToolMissing
from waypoint.kernel.bases.build_cgroup import network_cgroup
from waypoint.kernel.bases.build_scripts import (
    COMMIT,
    EMPTY,
    ENTER_CELL,
    ENTER_NETWORK,
    ENTER_STORE,
    EXPORT,
    RUN,
)
from waypoint.kernel.bases.image_index import ImageIndex, read_index
from waypoint.kernel.cgroup.group import Cgroup, find_cgroup2
from waypoint.kernel.network.egress import Rule, confine, require_confinement
from waypoint.kernel.network.slirp import NAME_SERVER
from waypoint.kernel.processes.private_namespaces import run_private
from waypoint.kernel.processes.programs import CLEAN_ENV
from waypoint.model import ImageConfig

__all__ = ["Buildah", "Output", "WithoutNoise", "parse_config"]

Output = Callable[[bytes], None]

BUILD_TIMEOUT_S = 4 * 3600.0
PULL_TIMEOUT_S = 3600.0
COPY_TIMEOUT_S = 3600.0
ASK_TIMEOUT_S = 120.0

_CALL_FILTER = Path("/usr/share/containers/seccomp.json")  # the filter that buildah itself uses
_SYNC_CALLS = frozenset("fsync fdatasync sync syncfs sync_file_range msync".split())
_POLICY_OF_HOST = Path("/etc/containers/policy.json")
_LOG_LINE = b'time="'
_NOISE = (b"Failed to delete btrfs qgroup", b"Failed to remove cgroup", b"Failed to remove paths")
_GO_VALUE = re.compile(r" &[a-z]+\.[A-Za-z]+\{.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildah:
    """buildah on one store, for one piece of work.

    ``scratch`` is for temporary files of this work alone, ``hold`` are locks that buildah keeps until it ends, and
    ``env`` are variables of the caller that it needs: proxies, and where the registry logins are.
    """

    store: Path
    scratch: Path
    pool: Path
    driver: str
    cgroup: str
    env: Mapping[str, str]
    hold: tuple[int, ...] = ()

    def require_tools(self) -> None:
        """Raise ToolMissing for a program that is not installed."""
        _require("buildah")
        _require("slirp4netns")
        _runtime()

    def build(
        self,
        context: Path,
        *,
        dockerfile: Path | None,
        arguments: Sequence[str],
        rules: Sequence[Rule],
        on_output: Output | None,
    ) -> str:
        """Build a Dockerfile; return the id of the image, which has no name. Steps done before come from the cache.

        ``rules`` decide what RUN steps may send; packets that match no rule may leave.
        """
        id_file = self.scratch / "image-id"
        words = (
            *("build", "--layers", "--force-rm", "--format", "docker", "--iidfile", os.fspath(id_file)),
            *("--isolation", "oci", "--runtime", _runtime(), "--cgroup-parent", self.cgroup),
            *("--runtime-flag", f"root={self._run_dir / 'runtime'}", "--signature-policy", self._policy()),
            *("--network", f"ns:{self._run_dir / 'net'}", "--dns", NAME_SERVER, *self._call_filter()),
            *(word for argument in arguments for word in ("--build-arg", argument)),
            *(() if dockerfile is None else ("--file", os.fspath(dockerfile))),
            os.fspath(context),
        )
        network = Cgroup(find_cgroup2() / network_cgroup(self.cgroup.lstrip("/")))
        named = {
            "WAYPOINT_STORE": self.store,
            "WAYPOINT_CONTEXT": context,
            "WAYPOINT_FILE": dockerfile or "",
            "WAYPOINT_CGROUP": self.cgroup,
            "WAYPOINT_NETWORK_CGROUP": network.path,
        }
        variables = {name: os.fspath(value) for name, value in named.items()}
        require_confinement()
        network.create()
        try:
            confine(network.path, rules, otherwise=True)
            before = ENTER_NETWORK + ENTER_CELL
            self._call(words, BUILD_TIMEOUT_S, before=before, variables=variables, on_output=on_output)
        finally:
            network.remove()
        return id_file.read_text().strip().removeprefix("sha256:")

    def pull(self, source: str, *, on_output: Output | None) -> str:
        """Fetch an image (``docker://…``, ``oci:…``, ``docker-archive:…``) into the store; return its id."""
        words = ("pull", "--signature-policy", self._policy(), "--policy", "always", source)
        return self._call(words, PULL_TIMEOUT_S, on_output=on_output, collect=True).split()[-1]

    def commit(self, source: Path, name: str) -> str:
        """Make an image of one layer from a tree of files; return its id."""
        policy = self._policy()
        answer = self._script(
            COMMIT, COPY_TIMEOUT_S, WAYPOINT_SOURCE=source, WAYPOINT_NAME=name, WAYPOINT_POLICY=policy
        )
        return answer.split()[-1]

    def export(self, image: str, target: Path) -> None:
        """Make ``target`` the files of an image: a writable subvolume, or a directory."""
        layers = self.index().layers
        if image not in layers:
            raise BuildFailed(f"image {image[:12]} was removed meanwhile", hint="try again")
        layer = layers[image]
        if layer is None:  # an image without files
            self._script(EMPTY, COPY_TIMEOUT_S, WAYPOINT_TARGET=target)
            return
        store = self.store / "layers"
        self._script(
            EXPORT, COPY_TIMEOUT_S, WAYPOINT_STORE=store, WAYPOINT_LAYER=layer, WAYPOINT_TARGET=target
        )

    def index(self) -> ImageIndex:
        return read_index(self.store / "layers", self.driver)

    def config(self, image: str) -> ImageConfig:
        """The image's configuration."""
        document = json.loads(self._call(("inspect", "--type", "image", image), ASK_TIMEOUT_S, collect=True))
        return parse_config(document["Docker"]["config"])

    def tag(self, image: str, names: Sequence[str]) -> None:
        if names:
            self._call(("tag", image, *names), ASK_TIMEOUT_S)

    def untag(self, name: str) -> None:
        """Remove a name, and with its last name the image; layers that other images need stay."""
        self._call_tolerating("image not known", ("rmi", "--force", name))

    def remove(self, image: str) -> None:
        """Remove an image and its names, if it still exists."""
        self._call_tolerating("image not known", ("rmi", "--force", image))

    def prune(self, images: Collection[str]) -> None:
        """Remove what none of these images needs: steps of failed or changed builds, fetched images."""
        index = self.index()
        needed = index.needed(images)
        for name, image in index.names.items():
            if image not in needed:
                self.untag(name)
        self._call(("rmi", "--prune"), ASK_TIMEOUT_S)

    def remove_leftovers(self) -> None:
        """Remove what an interrupted build has left; nothing else may use the store meanwhile."""
        self._call(("rm", "--all"), ASK_TIMEOUT_S)
        for work in self.scratch.parent.iterdir():
            shutil.rmtree(work)

    # -- how it is called

    @property
    def _run_dir(self) -> Path:
        return self.store / "run"

    def _words(self) -> tuple[str, ...]:
        return (
            *("buildah", "--root", os.fspath(self.store / "layers"), "--runroot", os.fspath(self._run_dir)),
            *("--storage-driver", self.driver),
        )

    def _call(
        self,
        words: Sequence[str],
        timeout_s: float,
        *,
        before: str = "",
        variables: Mapping[str, str] | None = None,
        on_output: Output | None = None,
        collect: bool = False,
    ) -> str:
        words = (*self._words(), *words)
        return self._enter(before + RUN, words, timeout_s, variables or {}, on_output, collect)

    def _script(self, script: str, timeout_s: float, **variables: str | Path) -> str:
        named = {name: os.fspath(value) for name, value in variables.items()}
        return self._enter(script, self._words(), timeout_s, named, None, True)

    def _call_tolerating(self, complaint: str, words: Sequence[str]) -> None:
        try:
            self._call(words, ASK_TIMEOUT_S)
        except BuildFailed as error:
            if complaint not in str(error):
                raise

    def _enter(
        self,
        script: str,
        words: Sequence[str],
        timeout_s: float,
        variables: Mapping[str, str],
        on_output: Output | None,
        collect: bool,
    ) -> str:
        for directory in (self.store / "layers", self._run_dir, self.store / "etc", self.scratch):
            directory.mkdir(parents=True, exist_ok=True)
        try:
            return run_private(
                ENTER_STORE + script,
                (words[0], os.fspath(self.pool), os.fspath(self._run_dir), *words),
                timeout_s=timeout_s,
                env={**CLEAN_ENV, **self.env, **self._settings(), **variables},
                hold=self.hold,
                on_output=None if on_output is None else WithoutNoise(on_output),
                collect=collect,
            ).stdout
        except ToolFailed as error:
            raise _build_failure(error.stderr) from error

    def _settings(self) -> dict[str, str]:
        """Write buildah's configuration files; return the environment variables that name them."""
        files = {
            "CONTAINERS_CONF": ("containers.conf", _containers_conf(self.store / "etc")),
            "CONTAINERS_STORAGE_CONF": ("storage.conf", f'[storage]\ndriver = "{self.driver}"\n'),
            "CONTAINERS_REGISTRIES_CONF": (
                "registries.conf",
                'unqualified-search-registries = ["docker.io"]\nshort-name-mode = "disabled"\n',
            ),
        }
        for name, text in files.values():
            _put_text(self.store / "etc" / name, text)
        variables = {variable: os.fspath(self.store / "etc" / name) for variable, (name, _) in files.items()}
        return {**variables, "WAYPOINT_DRIVER": self.driver, "TMPDIR": os.fspath(self.scratch)}

    def _call_filter(self) -> tuple[str, ...]:
        """Options for the usual system call filter, changed so that calls that wait for the disk succeed at once.

        dpkg waits after every file, which takes most of the time of an installation; what a build has made is
        written out once, when it becomes a base.
        """
        if not _CALL_FILTER.exists():
            return ()
        profile = json.loads(_CALL_FILTER.read_bytes())
        for rule in profile["syscalls"]:
            rule["names"] = [name for name in rule["names"] if name not in _SYNC_CALLS]
        rules = [rule for rule in profile["syscalls"] if rule["names"]]
        done = {"names": sorted(_SYNC_CALLS), "action": "SCMP_ACT_ERRNO", "errnoRet": 0, "args": []}
        path = self.scratch / "seccomp.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**profile, "syscalls": [*rules, done]}))
        return ("--security-opt", f"seccomp={path}")

    def _policy(self) -> str:
        """The file that says which signatures are required: the host's own, or one that requires none, as usual."""
        if _POLICY_OF_HOST.exists():
            return os.fspath(_POLICY_OF_HOST)
        path = self.store / "etc" / "policy.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        _put_text(path, '{"default": [{"type": "insecureAcceptAnything"}]}\n')
        return os.fspath(path)


def _put_text(path: Path, text: str) -> None:
    """Make a file hold this text, in one step: other builds may be reading it."""
    if path.exists() and path.read_text() == text:
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f"{path.name}.", delete=False) as draft:
        draft.write(text)
    os.replace(draft.name, path)


class WithoutNoise:
    """Passes output on as it comes, except what buildah and its runtime log about what we remove ourselves.

    Where a session has had a disk limit, btrfs keeps an account for each layer, also for a while after that. The
    runtime sees the cgroup of a build read-only, so it fails to remove it after a RUN step.
    """

    def __init__(self, on_output: Output) -> None:
        self._on_output = on_output
        self._held = b""
        self._is_at_start = True

    def __call__(self, data: bytes) -> None:
        passed, pieces = b"", (self._held + data).splitlines(keepends=True)
        self._held = b""
        for piece in pieces:
            is_log = self._is_at_start and piece.startswith(_LOG_LINE)
            if is_log and not piece.endswith(b"\n"):
                self._held = piece
            elif not (is_log and any(noise in piece for noise in _NOISE)):
                passed += piece
                self._is_at_start = piece.endswith(b"\n")
        if passed:
            self._on_output(passed)


def parse_config(fields: Mapping[str, object]) -> ImageConfig:
    """An image's configuration as Docker writes it; each field may be missing or null."""

    def words(name: str) -> tuple[str, ...]:
        value = fields.get(name) or ()
        return tuple(map(str, value)) if isinstance(value, (list, dict)) else ()

    labels = fields.get("Labels")
    env = dict(word.partition("=")[::2] for word in words("Env"))
    return ImageConfig(
        env=env,
        workdir=str(fields.get("WorkingDir") or "") or None,
        user=str(fields.get("User") or "") or None,
        shell=words("Shell"),
        ports=tuple(sorted(words("ExposedPorts"))),
        volumes=tuple(sorted(words("Volumes"))),
        entrypoint=words("Entrypoint"),
        cmd=words("Cmd"),
        labels={str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {},
    )


def _containers_conf(directory: Path) -> str:
    """The settings. Limits are our own: raising one takes a capability that root may lack on a virtual machine."""
    limits = ", ".join(
        f'"{name}={hard}:{hard}"'
        for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))
        for hard in (resource.getrlimit(number)[1],)
    )
    return (
        f"[containers]\ndefault_ulimits = [{limits}]\n"
        f'[network]\nnetwork_config_dir = "{directory}/networks"\n'
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nruntime = "{_runtime()}"\n'
    )


def _runtime() -> str:
    """The program that runs RUN steps. crun refuses hosts with both versions of cgroups, runc accepts all hosts."""
    for name in ("runc", "crun"):
        if shutil.which(name, path=CLEAN_ENV["PATH"]):
            return name
    raise ToolMissing("runc", package="runc")


def _require(tool: str) -> None:
    if shutil.which(tool, path=CLEAN_ENV["PATH"]) is None:
        raise ToolMissing(tool, package=tool)


def _build_failure(output: str) -> BuildFailed:
    """The error for what buildah printed last, with a hint where we know one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("Error:", "error ", "Error "))]
    listed = [line.removeprefix("* ") for line in lines if line.startswith("* ")]
    last = (errors or lines or ["no message"])[-1].removeprefix("Error: ")
    if last.endswith(("error occurred:", "errors occurred:")) and listed:
        last = "; ".join(listed)
    last = _GO_VALUE.sub("", last)
    if "no space left on device" in output:
        return BuildFailed(f"{last} (the pool is full)", hint=PoolFull.hint)
    return BuildFailed(last)
