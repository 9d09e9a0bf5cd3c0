"""Starts the child process of a local model, and restarts it with exponential backoff when it exits.

start() ──> starting ── address ──> serving ── child exits ──> backoff (0.5 s to 30 s) ──> starting
                └── the first start fails: start() raises
stop() kills the child in any state. If this process is killed, the child exits by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from svc.distribution import install_command
from svc.errors import CommandFailed
from svc.gateway.local_model.cgroup_limits import read_cpu_limit
from svc.resilience import Backoff
from svc.subprocess_env import build_subprocess_env

LOCAL_MODEL_SLOTS = 4
DEFAULT_LOCAL_MAX_TOKENS = 2048
"""The limit for requests without one. Small models may otherwise generate until the context is full."""
MAX_LOCAL_MODEL_THREADS = 8
LOCAL_MODEL_NICENESS = 5
LOCAL_MODEL_START_TIMEOUT_SECONDS = 120.0
LOCAL_MODEL_STOP_TIMEOUT_SECONDS = 10.0
LOCAL_MODEL_RESTART_BACKOFF = Backoff(0.5, 30.0)
LOCAL_MODEL_STALL_SECONDS = 300.0
"""The child exits if the server has not finished a batch for so long. The largest models need a minute for one."""
STABLE_UPTIME_SECONDS = 60.0
"""After this uptime, a crash resets the backoff."""

log = logging.getLogger("svc.local")


class Sampling(msgspec.Struct, frozen=True):
    """Defaults for requests that do not set these values."""

    temperature: float = 0.8
    """The temperature."""
    top_p: float = 0.95
    """The probability mass of nucleus sampling."""
    repeat_penalty: float = 1.0
    """The penalty for repeated tokens. `1` is none. A very small model repeats itself without a penalty."""


class LocalServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that the child process reads from stdin."""

    model: str
    model_path: str
    key: str
    context: int
    slots: int = LOCAL_MODEL_SLOTS
    max_tokens: int = DEFAULT_LOCAL_MAX_TOKENS
    sampling: Sampling
    threads: int
    gpu_layers: int | None = None
    kind: Literal["chat", "embedding"] = "chat"
    has_pooling: bool = True
    """Whether an embedding model says how to combine the vectors of the tokens. Without it, their mean is used."""
    nice: int = LOCAL_MODEL_NICENESS
    stall_seconds: float = LOCAL_MODEL_STALL_SECONDS
    """Not used for embedding models, whose batch is a whole text."""


def is_installed() -> bool:
    """Return whether the extra `local` is installed."""
    return find_spec("xllamacpp") is not None


def inference_thread_count() -> int:
    """Return the number of inference threads: all cores but one, which is left to the gateway.

    A CPU quota counts as that many cores, because the kernel pauses all threads of the container when it is used up.
    More threads are much slower as soon as another process runs, because they wait for each other at every step.
    docs/reference/embedded-model.md has the figures.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if (quota := read_cpu_limit()) is not None:
        cores = min(cores, int(quota))
    return min(max(cores - 1, 1), MAX_LOCAL_MODEL_THREADS)


def _check_prerequisites(options: LocalServerOptions) -> None:
    if not is_installed():
        raise CommandFailed(f"Models on this machine need an extra; install it with: {install_command('local')}")
    if not Path(options.model_path).is_file():
        raise CommandFailed(f"{options.model} is not installed. Add it with: svc models add {options.model}")


class LocalModelSupervisor:
    """Runs a model in a child process. Each start calls `on_address` with the new base URL."""

    def __init__(
        self,
        options: LocalServerOptions,
        *,
        start_timeout: float = LOCAL_MODEL_START_TIMEOUT_SECONDS,
        on_address: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`start_timeout` is in seconds."""
        self.pid: int | None = None
        self.base_url: str | None = None
        """`http://127.0.0.1:PORT/v1`, or None while no child serves. It also serves `/v1/messages`."""
        self.restart_delay = 0.0
        """Seconds between the last exit of the child and its restart. More after repeated exits."""
        self._options = options
        self._start_timeout = start_timeout
        self._on_address = on_address
        self._is_serving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._log_tail: deque[str] = deque(maxlen=20)

    async def start(self) -> None:
        """Start the child, and wait until the model is ready. Raises CommandFailed if it does not start."""
        _check_prerequisites(self._options)
        started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._supervise(started), name="local model")
        try:
            await started
        except BaseException:
            await self.stop()
            raise

    async def wait_until_serving(self) -> str:
        """Return the base URL. Wait for it while the child restarts."""
        while self.base_url is None:  # it may exit again before this task runs
            await self._is_serving.wait()
        return self.base_url

    async def stop(self) -> None:
        """Kill the child, and wait for its exit. Does nothing if it is not running. May be called again."""
        task = self._task
        if task is None:
            return
        if not self._is_stopping:  # a second cancellation would interrupt the first
            self._is_stopping = True
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s did not stop: %r", self._options.model, error)

    async def _supervise(self, started: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        early_exits = 0
        while True:
            started_at = loop.time()
            try:
                status = await self._run_child(started)
            except (OSError, TimeoutError, ValueError) as error:
                status = f"{type(error).__name__}: {error}"
            if not started.done():
                reason = next((line for line in reversed(self._log_tail) if line.strip()), status)
                started.set_exception(
                    CommandFailed(f"{self._options.model} did not start: {reason[:300]}{_install_hint(reason)}")
                )
                return
            if loop.time() - started_at > STABLE_UPTIME_SECONDS:
                early_exits = 0
            delay = self.restart_delay = LOCAL_MODEL_RESTART_BACKOFF.exponential(early_exits)
            log.warning("%s exited (%s), and is restarted in %.1f s", self._options.model, status, delay)
            await asyncio.sleep(delay)
            early_exits += 1

    async def _run_child(self, started: asyncio.Future[None]) -> str:
        """Run the child until it exits. Return its exit status for the log."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "svc.gateway.local_model.process"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            # One heap for all threads: the limit of memory counts what one of several heaps keeps for its own threads.
            env=build_subprocess_env(MALLOC_ARENA_MAX="1"),
            start_new_session=True,  # Ctrl-C must not kill the child: the gateway completes its responses first
        )
        log_task = asyncio.create_task(self._read_log(process), name="local model log")
        try:
            base_url = await asyncio.wait_for(self._exchange_options(process), self._start_timeout)
            self.pid, self.base_url = process.pid, base_url
            self._is_serving.set()
            self._on_address(base_url)
            if not started.done():
                started.set_result(None)
            return f"status {await process.wait()}"
        finally:
            self.pid = self.base_url = None
            self._is_serving.clear()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            async with asyncio.timeout(LOCAL_MODEL_STOP_TIMEOUT_SECONDS):
                await process.wait()
                await log_task

    async def _exchange_options(self, process: Process) -> str:
        """Send the options to the child, and return its base URL. Raises OSError or ValueError if the child exits."""
        assert process.stdin is not None  # it is a pipe
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(self._options) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise OSError(f"its process exited with status {await process.wait()}")
        return f"{json.loads(line)['address']}/v1"

    async def _read_log(self, process: Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            for line in filter(None, chunk.decode("utf-8", "replace").splitlines()):
                self._log_tail.append(line[:500])
                log.info("%s: %s", self._options.model, line[:500])


def _install_hint(reason: str) -> str:
    """Return the command that solves the problem, or empty text."""
    if "libgomp" in reason:
        return "\nInstall GNU's OpenMP, for example with: apt-get install libgomp1"
    return ""
