"""Starts the process that speaks at its first connection or to load a voice, and again after it exits.

    idle ── connection, preload ──> running ── process exits ──> backoff (0.5 s to 30 s) ──> idle

The gateway owns the listening socket and the process inherits it. So the address never changes, and connections wait in
the socket's queue until the process accepts them. `stop` kills the process, and so does a lack of heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path

import msgspec

from svc.resilience import Backoff
from svc.speech.synthesis.options import VoiceServerOptions
from svc.speech.work import SpeechWork
from svc.speech.worker_process import compute_environment

log = logging.getLogger("svc.speech")

VOICE_PROCESS_NICENESS = 2
"""Gives the gateway priority when the CPU is busy."""
VOICE_RESTART_BACKOFF = Backoff(0.5, 30.0)
VOICE_STABLE_UPTIME_SECONDS = 60.0
"""After this uptime, a crash resets the backoff."""
VOICE_STOP_TIMEOUT_SECONDS = 5.0
VOICE_SILENCE_TIMEOUT_SECONDS = 20.0
"""A process without a heartbeat for twice this time is killed. The start of the process counts as well."""
_LISTEN_BACKLOG = 128
_work_decoder = msgspec.json.Decoder(SpeechWork)


class VoiceProcess:
    """The process that speaks. `base_url` and `key` are those of its server.

    `on_work` gets the work of each request that the process has spoken.
    """

    def __init__(
        self,
        registry_root: Path,
        max_requests: int,
        on_work: Callable[[SpeechWork], None],
        *,
        silence_timeout: float = VOICE_SILENCE_TIMEOUT_SECONDS,
    ) -> None:
        self.key = secrets.token_urlsafe(32)
        self.pid: int | None = None
        self._registry_root, self._max_requests, self._on_work = registry_root, max_requests, on_work
        self._silence_timeout = silence_timeout
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(_LISTEN_BACKLOG)
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._start_requested = asyncio.Event()
        self._preload_voice = ""

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def start(self) -> None:
        """Start the process at the first connection, or as soon as a voice is to be loaded."""
        self._task = asyncio.create_task(self._supervise(), name="voices")

    def preload(self, voice: str) -> None:
        """Load a voice before its first request. Starts the process unless it runs."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(f"{voice}\n".encode())
        else:
            self._preload_voice = voice
            self._start_requested.set()

    async def stop(self) -> None:
        """Kill the process and close the socket."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._listener.close()

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        early_exits = 0
        while True:
            await self._wait_for_start_request()
            started_at = loop.time()
            try:
                status = await self._run_process()
            except OSError as error:
                status = f"{type(error).__name__}: {error}"
            if loop.time() - started_at > VOICE_STABLE_UPTIME_SECONDS:
                early_exits = 0
            delay = VOICE_RESTART_BACKOFF.exponential(early_exits)
            log.warning("the process that speaks exited (%s). It starts again in %.1f s at the earliest", status, delay)
            await asyncio.sleep(delay)
            early_exits += 1

    async def _wait_for_start_request(self) -> None:
        """Wait for a connection, or for a voice to load."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._start_requested.set)
        try:
            await self._start_requested.wait()
        finally:
            loop.remove_reader(self._listener)

    async def _run_process(self) -> str:
        """Run the process until it exits. Return its exit status for the log."""
        descriptor = self._listener.fileno()
        work_socket, child_socket = socket.socketpair()
        with work_socket, child_socket:
            work_descriptor = child_socket.fileno()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "svc.speech.synthesis.server"),
                stdin=PIPE,
                pass_fds=(descriptor, work_descriptor),
                env=compute_environment(),
                start_new_session=True,  # Ctrl-C must not kill it: the gateway completes its responses first
            )
            work_task = asyncio.create_task(self._read_work(work_socket.dup(), process), name="voice work")
        self.pid, self._process = process.pid, process
        preload, self._preload_voice = self._preload_voice, ""
        self._start_requested.clear()
        options = VoiceServerOptions(
            descriptor=descriptor,
            work_descriptor=work_descriptor,
            key=self.key,
            registry_root=os.fspath(self._registry_root),
            max_requests=self._max_requests,
            nice=VOICE_PROCESS_NICENESS,
            preload=preload,
        )
        try:
            assert process.stdin is not None  # it is a pipe
            process.stdin.write(msgspec.json.encode(options) + b"\n")
            await process.stdin.drain()
            return f"status {await process.wait()}"
        finally:
            self.pid = self._process = None
            work_task.cancel()
            await asyncio.gather(work_task, return_exceptions=True)
            await _kill(process)

    async def _read_work(self, work_socket: socket.socket, process: Process) -> None:
        """Read the work and the heartbeats. Kill a process that hangs."""
        reader, writer = await asyncio.open_connection(sock=work_socket)
        try:
            while line := await self._read_line(reader):
                if line != b"\n":
                    self._on_work(_work_decoder.decode(line))
        except TimeoutError:
            log.error("the process that speaks hangs and is killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        except (OSError, ValueError) as error:  # msgspec's DecodeError is a ValueError
            log.error("the socket of the process that speaks failed: %s", error)
        finally:
            writer.close()

    async def _read_line(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next line. Raises TimeoutError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._silence_timeout):
                return await reader.readline()
        # A gateway that was suspended itself finds its first timeout expired, and the lines of the process.
        async with asyncio.timeout(self._silence_timeout):
            return await reader.readline()


async def _kill(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(VOICE_STOP_TIMEOUT_SECONDS):
                await process.wait()
