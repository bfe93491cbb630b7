"""The kernel of the guests: Debian's kernel for clouds, from the host's own package mirror.

The package is downloaded by apt (which checks its signature) and unpacked, not installed. Kept are the kernel itself,
unpacked to what a monitor boots without firmware, and the few modules that our devices need. It is fetched once for a
state directory; removing the directory ``kernel`` there makes the next start fetch the newest.
"""

import gzip
import json
import lzma
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from statefork.backends.microvm.driver import Kernel
from statefork.errors import BackendFailed, BackendUnavailable
from waypoint.errors import HostError, ToolMissing
from waypoint.kernel.processes.programs import CLEAN_ENV, run_tool
from waypoint.store.lock import locked

__all__ = ["fetch_kernel", "make_initramfs"]

METAPACKAGE = "linux-image-cloud-amd64"
MODULES = ("virtio_mmio", "virtio_blk", "virtio_console", "vmw_vsock_virtio_transport", "vsock_loopback")
DOWNLOAD_TIMEOUT_S = 600.0
UNPACK_TIMEOUT_S = 120.0

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_NEEDED = re.compile(r"Depends: (linux-image-\S+)")
_MAGIC: Mapping[bytes, str] = {
    b"\x02\x21\x4c\x18": "lz4",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
}


def fetch_kernel(directory: Path, *, proxies: Mapping[str, str]) -> Kernel:
    """The kernel in ``directory``; downloaded if there is none yet. Raises BackendFailed, BackendUnavailable."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_name("kernel.lock"), what="the guest kernel"):
        if not directory.is_dir():
            draft = directory.with_name("kernel.new")
            shutil.rmtree(draft, ignore_errors=True)
            try:
                _make(draft, {**CLEAN_ENV, **proxies})
                draft.rename(directory)
            except ToolMissing as error:
                raise BackendUnavailable("microvm", str(error), remedy=error.hint) from error
            except HostError as error:
                raise BackendFailed(
                    "microvm",
                    "download of the guest kernel",
                    str(error),
                    hint="check it with: apt-get update",
                ) from error
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    version = json.loads((directory / "kernel.json").read_text())["version"]
    return Kernel(vmlinux=directory / "vmlinux", modules=directory / "modules", version=version)


def make_initramfs(target: Path, program: Path, kernel: Kernel, modules: Iterable[str]) -> None:
    """Write the kernel's first file system: our init, and the modules in the order in which they are loaded."""
    order = _in_order(kernel.modules, modules)
    with open(target, "xb") as archive:
        for name in ("dev", "root", "modules"):
            archive.write(_entry(name, stat.S_IFDIR | 0o755))
        archive.write(_entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)))
        archive.write(_entry("init", stat.S_IFREG | 0o755, program.read_bytes()))
        for name in order:
            archive.write(
                _entry(f"modules/{name}", stat.S_IFREG | 0o644, (kernel.modules / name).read_bytes())
            )
        archive.write(_entry("modules/order", stat.S_IFREG | 0o644, "\n".join(order).encode()))
        archive.write(_entry("TRAILER!!!", 0))


def _make(draft: Path, env: Mapping[str, str]) -> None:
    draft.mkdir()
    package = _package_name(env)
    run_tool(
        [*("env", f"--chdir={draft}"), "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package],
        timeout_s=DOWNLOAD_TIMEOUT_S,
        env=env,
    )
    [deb] = draft.glob("*.deb")
    root = draft / "package"
    run_tool(["dpkg-deb", "-x", os.fspath(deb), os.fspath(root)], timeout_s=UNPACK_TIMEOUT_S)
    [image] = root.glob("boot/vmlinuz-*")
    _unpack_image(image, draft / "vmlinux")
    (draft / "modules").mkdir()
    _keep_modules(root, draft / "modules")
    (draft / "kernel.json").write_text(json.dumps({"version": f"{package} {deb.name}"}))
    shutil.rmtree(root)
    deb.unlink()


def _package_name(env: Mapping[str, str]) -> str:
    """The package that the metapackage depends on now."""
    said = run_tool(["apt-cache", "depends", METAPACKAGE], timeout_s=UNPACK_TIMEOUT_S, env=env).stdout
    found = _NEEDED.search(said)
    if found is None:
        raise BackendFailed(
            "microvm", "search for a guest kernel", f"apt knows no {METAPACKAGE}", hint="apt-get update"
        )
    return found[1]


def _unpack_image(image: Path, target: Path) -> None:
    """Unpack the compressed kernel in a boot image; the image's header says where it is (boot.rst)."""
    data = image.read_bytes()
    sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    begin = (sectors + 1) * 512 + offset
    payload = data[begin : begin + length]
    kind = next((name for magic, name in _MAGIC.items() if payload.startswith(magic)), None)
    if kind == "gzip":
        target.write_bytes(gzip.decompress(payload))
    elif kind == "xz":
        target.write_bytes(lzma.LZMADecompressor().decompress(payload))
    elif kind in ("lz4", "zstd"):
        packed = target.with_suffix(".packed")
        packed.write_bytes(payload[:-4])  # its last four bytes are the size of the unpacked kernel
        words = ["-q", "-d", "-f", os.fspath(packed), *(["-o"] if kind == "zstd" else []), os.fspath(target)]
        try:
            run_tool([kind, *words], timeout_s=UNPACK_TIMEOUT_S)
        except ToolMissing as error:
            raise ToolMissing(kind, package=kind) from error
        packed.unlink()
    else:
        raise BackendFailed("microvm", "unpack the guest kernel", f"unknown format {payload[:4].hex()}")


def _keep_modules(root: Path, target: Path) -> None:
    """Copy our modules with all that they depend on; what is built into the kernel has no file."""
    files = {_module_name(path): path for path in root.glob("lib/modules/*/kernel/**/*.ko*")}
    files |= {_module_name(path): path for path in root.glob("usr/lib/modules/*/kernel/**/*.ko*")}
    wanted = list(MODULES)
    while wanted:
        name = wanted.pop()
        kept = target / f"{name}.ko"
        if name in files and not kept.exists():
            data = files[name].read_bytes()
            kept.write_bytes(lzma.decompress(data) if files[name].suffix == ".xz" else data)
            wanted += _needs(kept)


def _module_name(path: Path) -> str:
    return path.name.split(".", 1)[0].replace("-", "_")


def _needs(module: Path) -> list[str]:
    found = _DEPENDS.search(module.read_bytes())
    names = found[1].decode().split(",") if found else []
    return [name.replace("-", "_") for name in names if name]


def _in_order(directory: Path, names: Iterable[str]) -> list[str]:
    """The files of these modules, each after those that it depends on."""
    order: list[str] = []

    def add(name: str) -> None:
        path = directory / f"{name}.ko"
        if path.exists() and path.name not in order:
            for needed in _needs(path):
                add(needed)
            order.append(path.name)

    for name in names:
        add(name)
    return order


def _entry(name: str, mode: int, data: bytes = b"", device: Sequence[int] = (0, 0)) -> bytes:
    """One file in the format that the kernel unpacks: cpio with a header of hexadecimal numbers ("newc")."""
    path = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
