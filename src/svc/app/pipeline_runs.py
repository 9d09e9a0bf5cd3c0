"""Child processes that check and run pipelines for the gateway. Each does one task, and none outlives its request."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import msgspec

from svc.dialects.upstream_errors import redact_key, sanitize_message
from svc.errors import InternalError, PipelineFailed, RateLimited
from svc.subprocess_env import build_subprocess_env
from svc.wire.pipeline import ChildTask

log = logging.getLogger("svc.pipeline")
T = TypeVar("T")

MAX_CONCURRENT_TASKS = 2
"""Runs at the same time in one gateway process, and as many checks."""
RUN_TIMEOUT_SECONDS = 300.0
CHECK_TIMEOUT_SECONDS = 30.0
MAX_EVENT_LINE_BYTES = 32 << 20
CHILD_EXIT_TIMEOUT_SECONDS = 5.0
CHILD_COMMAND = (sys.executable, "-m", "svc.pipeline.child")

FINAL_EVENTS = frozenset({"check", "invalid", "run.completed"})
"""The last event of a process that did its task."""
LARGE_MESSAGE_BYTES = 64 << 10
"""A larger message is parsed or encoded in a thread, so that the event loop does not wait."""
STDERR_TAIL_BYTES = 4096
STDERR_TAIL_LINES = 3
MAX_STDERR_LINE_CHARACTERS = 200
STDERR_END_SECONDS = 1.0
"""How long to wait for the end of stderr, which children of the process may keep open."""


class ChildEvent(msgspec.Struct, frozen=True):
    """An event of a child process."""

    type: str
    line: msgspec.Raw
    """The JSON of the event, which includes `type`."""


class _EventHead(msgspec.Struct, frozen=True):
    type: str


class PipelineProcesses:
    """Starts the child processes, at most MAX_CONCURRENT_TASKS of each kind at a time."""

    def __init__(self, command: Sequence[str] = CHILD_COMMAND) -> None:
        self._command = command
        self._counts = {"check": 0, "run": 0}

    @contextlib.asynccontextmanager
    async def start(self, task: ChildTask) -> AsyncIterator[AsyncIterator[ChildEvent]]:
        """Start a task, and yield its events. The process is killed when the context ends.

        Raises RateLimited. The iterator raises PipelineFailed after a timeout, and InternalError if the process ends
        without the last event of its task.
        """
        kind = "check" if task.input is None else "run"
        if self._counts[kind] >= MAX_CONCURRENT_TASKS:
            raise RateLimited(
                f"This gateway does a {kind} of {MAX_CONCURRENT_TASKS} pipelines already. Try again later.",
                retry_after=5,
            )
        self._counts[kind] += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=build_subprocess_env(),
                limit=MAX_EVENT_LINE_BYTES,
                start_new_session=True,
            )
            tail = StderrTail(process, task)
            try:
                yield _read_events(process, task, tail)
            finally:
                await _kill(process)
                await tail.close()
        finally:
            self._counts[kind] -= 1


class StderrTail:
    """Reads the stderr of a process, and keeps its end, until `close`."""

    def __init__(self, process: asyncio.subprocess.Process, task: ChildTask) -> None:
        assert process.stderr is not None  # it is a pipe
        self._process = process
        self._stderr = process.stderr
        self._secrets = [task.api_key, *(value for name, value in task.environ.items() if name.endswith("_KEY"))]
        self._end = b""
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="pipeline-stderr")

    async def _read(self) -> None:
        while chunk := await self._stderr.read(STDERR_TAIL_BYTES):
            self._end = (self._end + chunk)[-STDERR_TAIL_BYTES:]

    async def describe_failure(self) -> str:
        """Return how the process ended, with its last lines, without secrets."""
        await asyncio.wait([self._reader], timeout=STDERR_END_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STDERR_END_SECONDS):
                await self._process.wait()
        status = self._process.returncode
        if status is None:
            reason = "stopped its output"
        else:
            reason = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
        lines = [line.strip() for line in self._end.decode("utf-8", "replace").splitlines() if line.strip()]
        said = " | ".join(self._redact(line)[:MAX_STDERR_LINE_CHARACTERS] for line in lines[-STDERR_TAIL_LINES:])
        return f"The process of the pipeline {reason}{f': {said}' if said else '.'}"

    def _redact(self, line: str) -> str:
        for secret in self._secrets:
            if secret:
                line = redact_key(line, secret)
        return sanitize_message("".join(letter for letter in line if letter.isprintable()))

    async def close(self) -> None:
        """Stop reading."""
        self._reader.cancel()
        await asyncio.wait([self._reader])


async def run_if_large(size: int, function: Callable[[], T]) -> T:
    """Call a function that parses or encodes `size` bytes, in a thread if they are many."""
    return await asyncio.to_thread(function) if size > LARGE_MESSAGE_BYTES else function()


async def _read_events(
    process: asyncio.subprocess.Process, task: ChildTask, tail: StderrTail
) -> AsyncIterator[ChildEvent]:
    assert process.stdin is not None  # both are pipes
    assert process.stdout is not None
    seconds = CHECK_TIMEOUT_SECONDS if task.input is None else RUN_TIMEOUT_SECONDS
    deadline = asyncio.get_running_loop().time() + seconds
    is_complete = False
    try:
        async with asyncio.timeout_at(deadline):
            process.stdin.write(await run_if_large(_task_size(task), lambda: msgspec.json.encode(task) + b"\n"))
            await process.stdin.drain()
        while True:
            async with asyncio.timeout_at(deadline):
                line = await process.stdout.readline()
            if not line:
                break
            event = await run_if_large(len(line), functools.partial(_parse_event, line))
            yield event
            is_complete = is_complete or event.type in FINAL_EVENTS
    except TimeoutError:
        raise PipelineFailed(f"The pipeline took longer than {seconds:g} seconds.") from None
    except (OSError, msgspec.MsgspecError):  # the process is gone, or its last event is cut off
        is_complete = False
    except ValueError:
        raise InternalError(f"An event of the pipeline is larger than {MAX_EVENT_LINE_BYTES >> 20} MiB.") from None
    if not is_complete:
        message = await tail.describe_failure()
        log.error("%s", message)
        raise InternalError(message)


def _task_size(task: ChildTask) -> int:
    given = task.input
    return len(task.yaml) + (len(given.audio or given.text or "") if given is not None else 0)


def _parse_event(line: bytes) -> ChildEvent:
    return ChildEvent(msgspec.json.decode(line, type=_EventHead).type, msgspec.Raw(line.strip()))


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and its children. It is a leader of their process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    async with asyncio.timeout(CHILD_EXIT_TIMEOUT_SECONDS):
        await asyncio.shield(process.wait())
