"""Starts `svc` in a fork of a process that has imported its modules. The imports take most of the CPU of a start.

    tests                                        python -m tests.fork_server FD
      start(arguments, environment, …) ────────>   fork ──> svc.cli.main(arguments)
      ForkedProcess.wait()             <────────   the exit status

The fork is a process like that of the command: with its own environment, folder, files and signals. Its environment and
its arguments in `/proc`, and its memory, are those of the server. Tests of these, and of the start, run the command.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from svc import plugins
from svc.cli import main

PRELOADED = (
    "encodings.idna",
    "importlib.resources.readers",
    "svc.app.gateway",
    "svc.app.supervisor",
    "svc.cli._admin_client",
    "svc.cli._local_gateway",
    "svc.cli.gateway",
    "svc.cli.keys",
    "svc.cli.usage",
    "svc.dialects.anthropic.request_decoder",
    "svc.dialects.openai.embeddings",
    "svc.dialects.openai.request_decoder",
    "svc.dialects.responses.native_schema",
    "svc.dialects.responses.request_decoder",
    "svc.stores.database.sql",
    "svc.stores.database.sqlite",
    "svc.telemetry",
    "uvicorn.lifespan.off",
    "uvicorn.loops.uvloop",
    "uvloop",
)
"""The modules that a gateway and common commands load at their start and for their first requests."""
PRELOADED_PLUGINS = ("dialects", "gateway.endpoints")
"""Kinds of plug-ins that a gateway loads at its start."""
ROOT = Path(__file__).parents[1]
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Beginnings of the names of variables that Python, the loader and malloc read when a process starts."""
MAX_REQUEST_BYTES = 1 << 20
_LOCK = threading.Lock()
"""Held during one request to the server."""
_SERVER_IS_GONE = b"-9"
"""The exit status of a process whose server was killed, which nobody knows."""
START_TIMEOUT_SECONDS = RUN_TIMEOUT_SECONDS = 60.0


class ForkedProcess:
    """A started process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        """The pipes of a process that `start_with_pipes` has started."""
        self._status = status

    def poll(self) -> int | None:
        """Return the exit status, or None for a running process. It is negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises TimeoutExpired."""
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
            with self._status:
                self.returncode = int(self._status.recv(16) or _SERVER_IS_GONE)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Return what it writes to its pipes until it exits. Raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        output: dict[IO[bytes], bytes] = {pipe: b"" for pipe in (self.stdout, self.stderr) if pipe is not None}
        unread = set(output)
        while unread:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(list(unread), [], [], remaining)
            if not ready:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
            for pipe in ready:
                chunk = os.read(pipe.fileno(), 65536)
                output[pipe] += chunk
                if not chunk:
                    unread.discard(pipe)
                    pipe.close()
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        out, err = output.values()
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, *, stdout: IO[Any], stderr: IO[Any]
) -> ForkedProcess:
    """Start `svc` with this environment and current folder. Its standard input is empty."""
    assert can_start(environment), "a fork ignores variables of Python, the loader and malloc"
    status, status_of_server = socket.socketpair()
    request = json.dumps([list(arguments), dict(environment), str(cwd)]).encode()
    with _LOCK, status_of_server:
        channel = _start_server()
        socket.send_fds(channel, [request], [stdout.fileno(), stderr.fileno(), status_of_server.fileno()])
        pid = channel.recv(16)
    assert pid, "the fork server has ended"
    return ForkedProcess(int(pid), status)


def start_with_pipes(arguments: Sequence[str], environment: Mapping[str, str], cwd: Path) -> ForkedProcess:
    """Start `svc`, as `start` does. `stdout` and `stderr` of the process are pipes."""
    pipes = [os.pipe() for _ in range(2)]
    with os.fdopen(pipes[0][1], "wb") as stdout, os.fdopen(pipes[1][1], "wb") as stderr:
        process = start(arguments, environment, cwd, stdout=stdout, stderr=stderr)
    process.stdout, process.stderr = (os.fdopen(reader, "rb", buffering=0) for reader, _ in pipes)
    return process


def run(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, *, timeout: float = RUN_TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run `svc` until it exits. Raises TimeoutExpired after `timeout` seconds."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        process = start(arguments, environment, cwd, stdout=out, stderr=err)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, out.read(), err.read())


def run_command(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, *, timeout: float = RUN_TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run `svc` until it exits: in a fork, or as a program if a fork cannot have this environment."""
    if can_start(environment):
        return run(arguments, environment, cwd, timeout=timeout)
    return subprocess.run(
        [sys.executable, "-m", "svc", *arguments],
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def can_start(environment: Mapping[str, str]) -> bool:
    """Return whether a fork can have this environment: what a process reads at its start is as in the server."""
    return all(
        _is_for_server(name) and os.environ.get(name) == value
        for name, value in environment.items()
        if name.startswith(READ_AT_START)
    )


def _is_for_server(name: str) -> bool:
    return not name.startswith("PYTHON") or name == "PYTHONPATH"


@functools.cache
def _start_server() -> socket.socket:
    """Start the server of this process. It exits when this process does."""
    channel, channel_of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.settimeout(START_TIMEOUT_SECONDS)
    number = channel_of_server.fileno()
    with channel_of_server:
        subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(number)],
            env={name: value for name, value in os.environ.items() if _is_for_server(name)} | {"LANG": "C.UTF-8"},
            cwd=ROOT,
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop what they have started
        )
    return channel


class _Server:
    """Forks a process for each request, and reports the exit status of each."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._status_by_pid: dict[int, socket.socket] = {}

    def serve(self) -> list[str] | None:
        """Serve until the channel is closed. Returns in each fork as well, with its arguments."""
        wakeup, wakeup_writer = socket.socketpair()
        wakeup_writer.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_writer.fileno())
        while True:
            ready, _, _ = select.select([self._channel, wakeup], [], [])
            if wakeup in ready:
                wakeup.recv(4096)
                self._report_exits()
            if self._channel in ready:
                request, files, _, _ = socket.recv_fds(self._channel, MAX_REQUEST_BYTES, 3)
                if not request:
                    return None
                stdout, stderr, status = files
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for sock in (wakeup, wakeup_writer, self._channel, *self._status_by_pid.values()):
                        sock.close()
                    os.close(status)
                    return _set_up_fork(request, stdout, stderr)
                os.close(stdout)
                os.close(stderr)
                self._status_by_pid[pid] = socket.socket(fileno=status)
                self._channel.send(str(pid).encode())

    def _report_exits(self) -> None:
        for pid in list(self._status_by_pid):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                with self._status_by_pid.pop(pid) as sock, contextlib.suppress(OSError):
                    sock.send(str(status).encode())
                os.waitpid(pid, 0)  # not before: another process could get the same id


def _set_up_fork(request: bytes, stdout: int, stderr: int) -> list[str]:
    """Give a fork its environment, folder and files. Return the arguments."""
    arguments, environment, cwd = json.loads(request)
    for source, target in ((stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    random.seed()
    sys.argv = ["svc", *arguments]
    return list(arguments)


def _serve() -> int:
    for name in PRELOADED:
        importlib.import_module(name)
    for kind in PRELOADED_PLUGINS:
        for name in plugins.names(kind):
            plugins.load(kind, name)
    assert threading.active_count() == 1, "a fork has only the thread that forks"
    gc.collect()
    gc.freeze()
    arguments = _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    if arguments is not None:
        _exit(_run_command(arguments))
    return 0


def _run_command(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else exit_request.code is not None


def _exit(status: int) -> None:
    """Exit as Python does, but leave the memory to the kernel: freeing all objects takes 0.1 s of CPU time."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(_serve())
