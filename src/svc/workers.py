"""Several worker processes on one port, and the supervisor that starts, replaces and renews them. It serves nothing.

supervisor ── holds one listening socket a place (SO_REUSEPORT), for as long as it lives
  worker   inherits the socket of its place; says "ready" through a pipe; ends itself when that pipe breaks, which it
           watches from before it serves
  dies     another takes its place, and what waits in the socket's queue
  SIGHUP   the configuration is checked, then place by place: a new worker, and when it is ready SIGTERM to the old one
  SIGTERM, SIGINT   to all workers, which finish what runs
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from svc.errors import CommandFailed, SvcError, UsageError
from svc.hangup import Terminal
from svc.stores.shared import SharedCounters

log = logging.getLogger("svc.workers")

BACKLOG = 2048
READY_SECONDS = 60.0
PAUSE_FIRST, PAUSE_MOST = 0.1, 5.0
"""Seconds before a worker that died at once is replaced; doubled each time."""
YOUNG = 5.0
COUNTERS = "counters-"
"""Begins the name of their file, and the supervisor's number ends it."""
Begin = Callable[[SharedCounters], None]
Check = Callable[[], Sequence[str]]
"""Reads the configuration anew and returns the warnings about it. Raises SvcError for one that is broken."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Seat:
    """What a worker gets from its supervisor: `FD,FD,COLUMN,COLUMNS,PATH` on its command line."""

    def __init__(self, text: str) -> None:
        listener, pipe, column, columns, path = text.split(",", 4)
        self.listener = socket.socket(fileno=int(listener))
        self.listener.setblocking(False)
        self.column = int(column)
        self.columns = int(columns)
        self.counters = Path(path)
        self._pipe = int(pipe)
        os.set_inheritable(self.listener.fileno(), False)
        os.set_inheritable(self._pipe, False)

    def watch(self) -> None:
        """From now on this process gets SIGTERM when the supervisor is gone."""
        threading.Thread(target=self._watch, name="supervisor-watch", daemon=True).start()

    def ready(self) -> None:
        """Tells the supervisor. One that is gone is noticed by `watch`."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"r")

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._pipe, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)


class _Worker:
    def __init__(self, place: int, column: int, process: subprocess.Popen[bytes], pipe: socket.socket) -> None:
        self.place = place
        self.column = column
        self.process = process
        self.pipe = pipe
        self.began = time.monotonic()
        self.leaving = False

    def is_ready(self) -> bool:
        """Once its pipe is readable: it is at its end if the worker has died."""
        return self.pipe.recv(1) == b"r"

    def end(self) -> None:
        self.leaving = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)


class Supervisor:
    """`command` starts a worker, when `--seat TEXT` is added to it; `begin` is given the counters before any starts.

    `check` looks at the configuration before workers are renewed for it.
    """

    def __init__(
        self,
        command: Sequence[str],
        listeners: list[socket.socket],
        counters: Path,
        drain: float,
        begin: Begin,
        check: Check,
    ) -> None:
        self._command = command
        self._listeners = listeners
        self._counters = counters
        self._columns = 3 * len(listeners)
        self._drain = drain
        self._begin = begin
        self._check = check
        self._terminal = Terminal()
        self._workers: list[_Worker] = []
        self._pause = PAUSE_FIRST
        self._wake, self._waker = socket.socketpair()
        self._told: set[int] = set()

    def run(self, ready: Callable[[], None]) -> int:
        """Until SIGTERM or SIGINT; the exit status. `ready` is called when every worker answers."""
        self._counters.parent.mkdir(parents=True, exist_ok=True)
        counters = SharedCounters(self._counters, workers=self._columns)
        self._begin(counters)
        counters.close()
        try:
            with self._signals():
                for place in range(len(self._listeners)):
                    self._start(place)
                if all(self._wait_ready(worker) for worker in self._workers):
                    ready()
                    self._supervise()
                elif not self._is_stopping:
                    raise CommandFailed("A worker did not start; what it said is above.")
        finally:
            self._stop()
            self._counters.unlink(missing_ok=True)
            shutil.rmtree(self._counters.with_suffix(".metrics"), ignore_errors=True)
        return 0

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._take) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        hung_up = number == signal.SIGHUP and self._terminal.is_gone()
        self._told.add(signal.SIGTERM if hung_up else number)
        with contextlib.suppress(OSError):
            self._waker.send(b"s")

    @property
    def _is_stopping(self) -> bool:
        return bool(self._told & {signal.SIGTERM, signal.SIGINT})

    def _wait_ready(self, worker: _Worker) -> bool:
        """False when it does not become so in time, or when this is told to stop."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_stopping:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return False
            readable, _, _ = select.select([worker.pipe, self._wake], [], [], seconds)
            if worker.pipe in readable:
                return worker.is_ready()
            if readable:
                self._wake.recv(64)
        return False

    def _supervise(self) -> None:
        while not self._is_stopping:
            readable, _, _ = select.select([self._wake], [], [], 1.0)
            if readable:
                self._wake.recv(64)
            self._reap()
            if signal.SIGHUP in self._told and self._has_room():
                self._told.discard(signal.SIGHUP)
                self._renew()

    def _has_room(self) -> bool:
        """Whether each worker can get a successor. Workers of earlier reloads that still drain keep their columns."""
        return len(self._workers) + len(self._listeners) <= self._columns

    def _start(self, place: int) -> _Worker:
        used = {worker.column for worker in self._workers}
        column = next(number for number in range(self._columns) if number not in used)
        ours, theirs = socket.socketpair()
        listener = self._listeners[place]
        seat = f"{listener.fileno()},{theirs.fileno()},{column},{self._columns},{self._counters}"
        process = subprocess.Popen(
            [*self._command, "--seat", seat],
            pass_fds=[listener.fileno(), theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which passes it on
        )
        theirs.close()
        worker = _Worker(place, column, process, ours)
        self._workers.append(worker)
        return worker

    def _reap(self) -> None:
        """Notes who has died, and fills the places of those who were not told to."""
        for worker in list(self._workers):
            if worker.process.poll() is None:
                continue
            self._forget(worker)
            if not worker.leaving:
                log.error("worker %d ended with status %s, and is replaced", worker.place, worker.process.returncode)
                self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        if time.monotonic() - worker.began > YOUNG:
            self._pause = PAUSE_FIRST
        else:
            time.sleep(self._pause)
            self._pause = min(PAUSE_MOST, self._pause * 2)
        self._start(worker.place)

    def _forget(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()

    def _renew(self) -> None:
        """New workers in the place of the old ones, one after the other; the old stay if the new does not start."""
        try:
            warnings = self._check()
        except SvcError as error:
            log.error("not reloaded, the workers go on as they are: %s", error.message)
            return
        except Exception:  # the edge: whatever a file does, the workers go on
            log.exception("not reloaded, the workers go on as they are")
            return
        for old in [worker for worker in self._workers if not worker.leaving]:
            new = self._start(old.place)
            if not self._wait_ready(new):
                new.process.kill()
                new.process.wait()
                self._forget(new)
                if not self._is_stopping:
                    log.error("the new worker did not start: the old ones go on as they are")
                return
            old.end()
            if self._is_stopping:
                return
        log.warning("reloaded the configuration: every worker is a new one")
        for warning in warnings:
            log.warning("%s", warning)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.end()
        for listener in self._listeners:
            listener.close()  # at once: who comes now is refused, and goes elsewhere
        deadline = time.monotonic() + self._drain + 5.0
        for worker in self._workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.pipe.close()
        self._wake.close()
        self._waker.close()


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """So many listening sockets on one port; raises UsageError that names the port when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found: list[socket.socket] = []
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:  # without sharing: is it somebody else's?
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        for _ in range(count):
            listener = socket.socket(family, socket.SOCK_STREAM)
            found.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
            port = listener.getsockname()[1]
            listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        for listener in found:
            listener.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"Cannot listen on {host} port {port}: {reason}. Choose another with --port, or 0 for any that is free."
        ) from error
    return found


def sweep(folder: Path) -> None:
    """Removes the counters that supervisors have left which were killed."""
    for path in folder.glob(f"{COUNTERS}*"):
        pid = path.name.removeprefix(COUNTERS).removesuffix(".metrics")
        if pid.isdecimal() and not _runs(int(pid)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    """Another process of that number; in a container ours is the same each time."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def command_of(arguments: Sequence[str]) -> list[str]:
    """The command that starts a worker with the same options as this process."""
    return [sys.executable, "-m", "svc", "gateway", *arguments]
