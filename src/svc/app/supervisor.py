"""Supervise worker processes that share one port: start, replace and reload them. The supervisor serves nothing.

supervisor ── holds one listening socket per worker (SO_REUSEPORT) for its whole life
  worker   inherits its socket; writes "ready" to a pipe; exits when the pipe breaks, which it watches from before it
           serves
  exit     a new worker takes over the socket, and the connections in its accept queue
  SIGHUP   check the configuration, then for each worker: start a new one, and when it is ready, send SIGUSR2 to the old
  SIGUSR1  forwarded to the workers that serve, which reopen their log files
  SIGTERM, SIGINT   all workers get SIGTERM, and finish in-flight requests. A further SIGINT makes them end at once
  SIGUSR2  ignored
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

from svc.app.listeners import describe_listen_error
from svc.app.reload_signal import ControllingTerminal
from svc.app.stop_signals import RETIRE_SIGNAL
from svc.errors import CommandFailed, SvcError, UsageError
from svc.resilience import Backoff
from svc.stores.counters.shared_memory import SharedCounters

log = logging.getLogger("svc.workers")

WORKER_LISTEN_BACKLOG = 2048
WORKER_READY_TIMEOUT_SECONDS = 60.0
WORKER_RESTART_BACKOFF = Backoff(0.1, 5.0)
"""Backoff before the restart of a worker that exited within MIN_STABLE_UPTIME_SECONDS."""
MIN_STABLE_UPTIME_SECONDS = 5.0
COUNTERS_FILE_PREFIX = "counters-"
"""Prefix of the name of the counters file. The supervisor's process id follows."""
InitCounters = Callable[[SharedCounters], None]
CheckConfig = Callable[[], Sequence[str]]
"""Read the new configuration and return warnings about it. Raises SvcError if it is invalid."""
SUPERVISOR_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)


class WorkerAssignment:
    """A worker's assignment from its supervisor, passed as `FD,FD,SLOT,SLOTS,PATH` on its command line."""

    def __init__(self, text: str) -> None:
        listener, supervisor_pipe, slot_index, slot_count, path = text.split(",", 4)
        self.listener = socket.socket(fileno=int(listener))
        self.listener.setblocking(False)
        self.slot_index = int(slot_index)
        self.slot_count = int(slot_count)
        self.counters_path = Path(path)
        self._supervisor_pipe = int(supervisor_pipe)
        os.set_inheritable(self.listener.fileno(), False)
        os.set_inheritable(self._supervisor_pipe, False)

    def watch_supervisor(self) -> None:
        """Send SIGTERM to this process when the supervisor exits."""
        threading.Thread(target=self._await_supervisor_exit, name="supervisor-watch", daemon=True).start()

    def notify_ready(self) -> None:
        """Notify the supervisor. `watch_supervisor` detects a supervisor that has exited."""
        with contextlib.suppress(OSError):
            os.write(self._supervisor_pipe, b"r")

    def _await_supervisor_exit(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._supervisor_pipe, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)


class _WorkerProcess:
    def __init__(
        self, listener_index: int, slot_index: int, process: subprocess.Popen[bytes], ready_pipe: socket.socket
    ) -> None:
        self.listener_index = listener_index
        self.slot_index = slot_index
        self.process = process
        self.ready_pipe = ready_pipe
        self.started_at = time.monotonic()
        self.is_stopping = False
        self._was_ready = False

    def is_ready(self) -> bool:
        """Return whether the pipe is readable. It is also readable, at its end, if the worker has exited."""
        self._was_ready = self.ready_pipe.recv(1) == b"r"
        return self._was_ready

    def reopen_logs(self) -> None:
        """Send SIGUSR1, unless the worker is starting: the signal would end it, and it opens its files anyway."""
        if self._was_ready or self._has_reported():
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGUSR1)

    def _has_reported(self) -> bool:
        """Return whether the worker serves, although nobody has waited for it."""
        try:
            return self.ready_pipe.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"r"
        except OSError:  # nothing to read yet
            return False

    def retire(self) -> None:
        """Let it end after its requests and live sessions, since its successor serves."""
        self._end(RETIRE_SIGNAL)

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def interrupt(self) -> None:
        """End it at once. It must have got SIGTERM before."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        self.is_stopping = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class Supervisor:
    """Runs workers with `command` and `--seat TEXT`.

    `init_counters` gets the counters before any worker starts. `check_config` checks the configuration before a reload.
    """

    def __init__(
        self,
        command: Sequence[str],
        listeners: list[socket.socket],
        counters_path: Path,
        drain_timeout: float,
        init_counters: InitCounters,
        check_config: CheckConfig,
    ) -> None:
        self._command = command
        self._listeners = listeners
        self._counters_path = counters_path
        self._slot_count = 3 * len(listeners)
        self._drain_timeout = drain_timeout
        self._init_counters = init_counters
        self._check_config = check_config
        self._terminal = ControllingTerminal()
        self._workers: list[_WorkerProcess] = []
        self._early_exits = 0
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._pending_signals: set[int] = set()

    def run(self, on_ready: Callable[[], None]) -> int:
        """Run until SIGTERM or SIGINT, and return the exit status. `on_ready` is called when all workers serve."""
        self._counters_path.parent.mkdir(parents=True, exist_ok=True)
        counters = SharedCounters(self._counters_path, workers=self._slot_count)
        self._init_counters(counters)
        counters.close()
        with self._signal_handlers():  # until the end, since workers without a supervisor may be killed by systemd
            try:
                for listener_index in range(len(self._listeners)):
                    self._start_worker(listener_index)
                if all(self._wait_until_ready(worker) for worker in self._workers):
                    on_ready()
                    self._supervise()
                elif not self._is_stopping:
                    raise CommandFailed("A worker did not start. Its log lines are above.")
            finally:
                self._stop_workers()
                self._counters_path.unlink(missing_ok=True)
                shutil.rmtree(self._counters_path.with_suffix(".metrics"), ignore_errors=True)
        return 0

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._on_signal) for number in SUPERVISOR_SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            for worker in self._workers:
                worker.reopen_logs()
            return
        if number == signal.SIGINT and self._is_stopping:
            for worker in self._workers:
                worker.interrupt()
            return
        is_hung_up = number == signal.SIGHUP and self._terminal.is_hung_up()
        self._pending_signals.add(signal.SIGTERM if is_hung_up else number)
        with contextlib.suppress(OSError):
            self._wakeup_writer.send(b"s")

    @property
    def _is_stopping(self) -> bool:
        return bool(self._pending_signals & {signal.SIGTERM, signal.SIGINT})

    def _wait_until_ready(self, worker: _WorkerProcess) -> bool:
        """Return False after a timeout or a stop request."""
        deadline = time.monotonic() + WORKER_READY_TIMEOUT_SECONDS
        while not self._is_stopping:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return False
            readable, _, _ = select.select([worker.ready_pipe, self._wakeup_reader], [], [], seconds)
            if worker.ready_pipe in readable:
                return worker.is_ready()
            if readable:
                self._wakeup_reader.recv(64)
        return False

    def _supervise(self) -> None:
        while not self._is_stopping:
            readable, _, _ = select.select([self._wakeup_reader], [], [], 1.0)
            if readable:
                self._wakeup_reader.recv(64)
            self._reap_workers()
            if signal.SIGHUP in self._pending_signals and self._has_free_slots():
                self._pending_signals.discard(signal.SIGHUP)
                self._reload_workers()

    def _has_free_slots(self) -> bool:
        """Return whether each worker can get a successor. Workers that drain keep their slots."""
        return len(self._workers) + len(self._listeners) <= self._slot_count

    def _start_worker(self, listener_index: int) -> _WorkerProcess:
        used_slots = {worker.slot_index for worker in self._workers}
        slot_index = next(number for number in range(self._slot_count) if number not in used_slots)
        parent_pipe, worker_pipe = socket.socketpair()
        listener = self._listeners[listener_index]
        assignment = f"{listener.fileno()},{worker_pipe.fileno()},{slot_index},{self._slot_count},{self._counters_path}"
        process = subprocess.Popen(
            [*self._command, "--seat", assignment],
            pass_fds=[listener.fileno(), worker_pipe.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # only the supervisor gets Ctrl-C, and forwards it
        )
        worker_pipe.close()
        worker = _WorkerProcess(listener_index, slot_index, process, parent_pipe)
        self._workers.append(worker)
        return worker

    def _reap_workers(self) -> None:
        """Remove workers that have exited, and replace those that were not stopped."""
        for worker in list(self._workers):
            if worker.process.poll() is None:
                continue
            self._remove_worker(worker)
            if not worker.is_stopping:
                log.error(
                    "worker %d exited with status %s, and is replaced", worker.listener_index, worker.process.returncode
                )
                self._restart_worker(worker)

    def _restart_worker(self, worker: _WorkerProcess) -> None:
        if time.monotonic() - worker.started_at > MIN_STABLE_UPTIME_SECONDS:
            self._early_exits = 0
        else:
            time.sleep(WORKER_RESTART_BACKOFF.exponential(self._early_exits))
            self._early_exits += 1
        self._start_worker(worker.listener_index)

    def _remove_worker(self, worker: _WorkerProcess) -> None:
        self._workers.remove(worker)
        worker.ready_pipe.close()

    def _reload_workers(self) -> None:
        """Replace the workers one after the other. If a new worker does not start, the old ones stay."""
        try:
            warnings = self._check_config()
        except SvcError as error:
            log.error("the configuration was not reloaded, the workers keep the previous one: %s", error.message)
            return
        except Exception:  # boundary: the workers must survive any file content
            log.exception("the configuration was not reloaded, the workers keep the previous one")
            return
        for old in [worker for worker in self._workers if not worker.is_stopping]:
            new = self._start_worker(old.listener_index)
            if not self._wait_until_ready(new):
                new.process.kill()
                new.process.wait()
                self._remove_worker(new)
                if not self._is_stopping:
                    log.error("a new worker did not start: the old workers stay")
                return
            old.retire()
            if self._is_stopping:
                return
        log.warning("reloaded the configuration: every worker was replaced")
        for warning in warnings:
            log.warning("%s", warning)

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for listener in self._listeners:
            listener.close()  # immediately, so that new connections are refused
        deadline = time.monotonic() + self._drain_timeout + 5.0
        for worker in self._workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.ready_pipe.close()
        self._wakeup_reader.close()
        self._wakeup_writer.close()


def listen_reuseport(host: str, port: int, count: int) -> list[socket.socket]:
    """Return `count` sockets that listen on one port. Raises UsageError that names the option to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listeners: list[socket.socket] = []
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:  # without SO_REUSEPORT, to detect other processes
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        for _ in range(count):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
            port = listener.getsockname()[1]
            listener.listen(WORKER_LISTEN_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        for listener in listeners:
            listener.close()
        raise UsageError(describe_listen_error(error, host, port)) from error
    return listeners


def remove_stale_counters(folder: Path) -> None:
    """Remove counters files of crashed supervisors."""
    for path in folder.glob(f"{COUNTERS_FILE_PREFIX}*"):
        pid = path.name.removeprefix(COUNTERS_FILE_PREFIX).removesuffix(".metrics")
        if pid.isdecimal() and not _is_running(int(pid)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    """Return whether another process has this id. In a container, our own id is the same at each start."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def worker_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that starts a worker with the options of this process."""
    return [sys.executable, "-m", "svc", "gateway", *arguments]
