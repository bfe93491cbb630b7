"""A stub of Firecracker, because the hosts of this project have neither its program nor a KVM that could run it.

It speaks Firecracker's API over a unix socket and is as strict: an unknown or missing field, a request at the wrong
time or a file that does not exist is answered with 400 and a ``fault_message``. Instead of a machine it runs our init
on the host, behind the same vsock handshake. It proves that the driver keeps to the API; only Firecracker itself can
prove that a machine can be restored from the files it wrote.

Run as ``firecracker --api-sock PATH``. Each request is added to the file ``requests`` in the current directory.
"""

import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import tty
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

__all__ = ["install_stub"]

VERSION = "Firecracker v1.12.0"
GUEST_PORT = 1024
BAD_REQUEST, NO_CONTENT, OK = 400, 204, 200

Schema = Mapping[str, tuple[type, bool]]
"""The fields of a request: their type, and whether they are required."""

SCHEMAS: Mapping[tuple[str, str], Schema] = {
    ("PUT", "/machine-config"): {
        "vcpu_count": (int, True),
        "mem_size_mib": (int, True),
        "smt": (bool, False),
        "track_dirty_pages": (bool, False),
    },
    ("PUT", "/boot-source"): {
        "kernel_image_path": (str, True),
        "initrd_path": (str, False),
        "boot_args": (str, False),
    },
    ("PUT", "/drives/"): {
        "drive_id": (str, True),
        "path_on_host": (str, True),
        "is_root_device": (bool, True),
        "is_read_only": (bool, False),
    },
    ("PUT", "/vsock"): {"guest_cid": (int, True), "uds_path": (str, True)},
    ("PUT", "/actions"): {"action_type": (str, True)},
    ("PATCH", "/vm"): {"state": (str, True)},
    ("PUT", "/snapshot/create"): {
        "snapshot_type": (str, False),
        "snapshot_path": (str, True),
        "mem_file_path": (str, True),
    },
    ("PUT", "/snapshot/load"): {
        "snapshot_path": (str, True),
        "mem_backend": (dict, True),
        "resume_vm": (bool, False),
        "track_dirty_pages": (bool, False),
    },
}


def install_stub(directory: Path) -> Path:
    """Install this stub as a program named ``firecracker`` in ``directory``."""
    program = directory / "firecracker"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
    program.chmod(0o755)
    return program


class Fault(Exception):
    """An error that Firecracker answers with 400."""


class Machine:
    """The state that decides which requests are allowed."""

    def __init__(self) -> None:
        self.state = "Not started"
        self.config: dict[str, Any] = {"drives": []}

    def handle(self, method: str, path: str, body: dict[str, Any]) -> Any:
        if (method, path) == ("GET", "/vm/config"):
            return self.config
        if (method, path) == ("GET", "/"):
            return {
                "app_name": "Firecracker",
                "id": "anonymous-instance",
                "state": self.state,
                "vmm_version": VERSION,
            }
        key = "/drives/" if path.startswith("/drives/") else path
        schema = SCHEMAS.get((method, key))
        if schema is None:
            raise Fault(f"Invalid request method and/or path: {method} {path}.")
        _check(body, schema)
        if key in ("/machine-config", "/boot-source", "/drives/", "/vsock"):
            self._configure(key, path, body)
        elif key == "/actions":
            self._start(body["action_type"])
        elif key == "/vm":
            self._change(body["state"])
        elif key == "/snapshot/create":
            self._save(body)
        else:
            self._load(body)
        return None

    def _configure(self, key: str, path: str, body: dict[str, Any]) -> None:
        if self.state != "Not started":
            raise Fault("The requested operation is not supported after starting the microVM.")
        for name in ("kernel_image_path", "initrd_path", "path_on_host"):
            if name in body:
                _require_file(body[name])
        if key == "/drives/":
            if path != f"/drives/{body['drive_id']}":
                raise Fault("The id from the path does not match the id from the body!")
            self.config["drives"].append({"is_read_only": False, **body})
        else:
            self.config[key.strip("/")] = body

    def _start(self, action: str) -> None:
        if action != "InstanceStart":
            raise Fault(f"unknown variant `{action}`")
        if self.state != "Not started":
            raise Fault("The microVM is already running.")
        if "boot-source" not in self.config:
            raise Fault("Cannot start microvm without kernel configuration.")
        self._run()

    def _run(self) -> None:
        self.state = "Running"
        if "vsock" in self.config:
            serve_vsock(self.config["vsock"]["uds_path"])

    def _change(self, state: str) -> None:
        if state not in ("Paused", "Resumed"):
            raise Fault(f"unknown variant `{state}`, expected `Paused` or `Resumed`")
        if self.state == "Not started":
            raise Fault("The requested operation is not supported before starting the microVM.")
        self.state = "Paused" if state == "Paused" else "Running"

    def _save(self, body: dict[str, Any]) -> None:
        if self.state != "Paused":
            raise Fault("save/restore unavailable while running")
        for name in ("snapshot_path", "mem_file_path"):
            if not Path(body[name]).parent.is_dir():
                raise Fault(f"Cannot open the file {body[name]}: No such file or directory")
        Path(body["mem_file_path"]).write_bytes(b"memory")
        Path(body["snapshot_path"]).write_text(json.dumps(self.config))

    def _load(self, body: dict[str, Any]) -> None:
        if self.state != "Not started" or self.config != {"drives": []}:
            raise Fault("Loading a microVM snapshot not allowed after configuring boot-specific resources.")
        _check(body["mem_backend"], {"backend_type": (str, True), "backend_path": (str, True)})
        _require_file(body["mem_backend"]["backend_path"])
        _require_file(body["snapshot_path"])
        saved = json.loads(Path(body["snapshot_path"]).read_text())
        for drive in saved["drives"]:
            _require_file(drive["path_on_host"])
        self.config = saved
        self.state = "Paused"
        if body.get("resume_vm"):
            self._run()


def _check(body: object, schema: Schema) -> None:
    if not isinstance(body, dict):
        raise Fault("expected a JSON object")
    for name, value in body.items():
        if name not in schema:
            raise Fault(f"unknown field `{name}`, expected one of {', '.join(sorted(schema))}")
        if type(value) is not schema[name][0]:
            raise Fault(f"invalid type of field `{name}`")
    for name, (_, is_required) in schema.items():
        if is_required and name not in body:
            raise Fault(f"missing field `{name}`")


def _require_file(path: str) -> None:
    if not Path(path).is_file():
        raise Fault(f"Cannot open {path}: No such file or directory (os error 2)")


def serve_vsock(path: str) -> None:
    """Run our init behind the unix socket by which Firecracker reaches a port of the machine."""
    from waypoint.session.context import launcher_path

    init = os.fspath(launcher_path())
    control = Path("guest").absolute()
    control.mkdir()
    ours, theirs = os.pipe()
    command = [init, "init", "--dir", os.fspath(control), "--any-peer", "--ready", str(theirs)]
    subprocess.Popen(command, pass_fds=(theirs,))
    os.close(theirs)
    os.read(ours, 1)  # it listens
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_accept, args=(listener, init, control), daemon=True).start()


def _accept(listener: socket.socket, init: str, control: Path) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_carry, args=(connection, init, control), daemon=True).start()


def _carry(connection: socket.socket, init: str, control: Path) -> None:
    if connection.makefile("rb", buffering=0).readline() != f"CONNECT {GUEST_PORT}\n".encode():
        connection.close()  # as Firecracker does for a port on which nobody listens
        return
    connection.sendall(b"OK 1073741824\n")
    master, slave = os.openpty()
    tty.setraw(slave)
    command = [init, "relay", "--dir", os.fspath(control), "--port", os.ttyname(slave)]
    relay = subprocess.Popen(command)

    def up() -> None:
        while data := connection.recv(4096):
            os.write(master, data)
        relay.kill()
        relay.wait()
        os.close(slave)  # the other thread's read then fails

    threading.Thread(target=up, daemon=True).start()
    try:
        while data := os.read(master, 4096):
            connection.sendall(data)
    except OSError:
        connection.close()


class Handler(BaseHTTPRequestHandler):
    machine: Machine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def _serve(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = NO_CONTENT, b""
        try:
            body = json.loads(text) if text else {}
            with open("requests", "a") as log:
                log.write(json.dumps([self.command, self.path, body]) + "\n")
            found = self.machine.handle(self.command, self.path, body)
            if found is not None:
                status, answer = OK, json.dumps(found).encode()
        except (Fault, ValueError) as fault:
            status, answer = BAD_REQUEST, json.dumps({"fault_message": str(fault)}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: text on standard error would count as a failure."""


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"{VERSION}\n")
        return
    if sys.argv[1:2] != ["--api-sock"]:
        sys.exit(f"unexpected arguments: {sys.argv[1:]}")
    Handler.machine = Machine()
    with Server(sys.argv[2], Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
