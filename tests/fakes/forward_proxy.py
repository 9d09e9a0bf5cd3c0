"""A real HTTP proxy, Tinyproxy, that a test can kill, and a TLS front for it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.fakes.ports import closed_port

START_SECONDS = 10.0


class ForwardProxy:
    """Tinyproxy on a free port. With `credentials` (`user:password`), it requires Basic authentication."""

    def __init__(self, folder: Path, credentials: str = "") -> None:
        self.port = closed_port()
        self.credentials = credentials
        self._log = folder / f"tinyproxy-{self.port}.log"
        self._config = folder / f"tinyproxy-{self.port}.conf"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address, with the credentials."""
        return f"http://{self.credentials}{'@' if self.credentials else ''}127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[str]:
        """The request lines so far, such as `CONNECT localhost:443 HTTP/1.1`."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.partition("): ")[2] for line in lines if "Request (file descriptor" in line]

    def __enter__(self) -> Self:
        program = shutil.which("tinyproxy")
        if program is None:
            pytest.skip("Tinyproxy is missing: apt-get install tinyproxy")
        lines = [f"Port {self.port}", "Listen 127.0.0.1", "Allow 127.0.0.1", f'LogFile "{self._log}"', "LogLevel Info"]
        if self.credentials:
            lines.append(f"BasicAuth {self.credentials.replace(':', ' ')}")
        self._config.write_text("\n".join([*lines, "MaxClients 100", "Timeout 60"]) + "\n")
        self._process = subprocess.Popen(
            [program, "-d", "-c", str(self._config)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Tinyproxy did not start on port {self.port}") from None
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the proxy, with all connections through it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(5)


class TlsFront:
    """Accepts TLS and forwards the plaintext to a port: a proxy with an `https://` address."""

    def __init__(self, target_port: int, tls: ssl.SSLContext) -> None:
        self.port = closed_port()
        self._target_port = target_port
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        server = asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        asyncio.run_coroutine_threadsafe(server, self._loop).result(5)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy_reader, proxy_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        await asyncio.gather(_copy(reader, proxy_writer), _copy(proxy_reader, writer), return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
