"""Runs the tests in several processes: `python -m pytest -p tests.parallel --processes 5`.

One process collects the tests, and then forks the others, so that no other process imports and collects them again:

    this process                                worker, for each file with tests
      index of a file           ────────>       runs its tests
      reports are logged        <────────       reports and warnings of each test

The tests of a file share servers, so one worker runs them all. A worker that dies fails its test, and another worker
continues with the rest of the file.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import random
import selectors
import shutil
import signal
import socket
import struct
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest
from _pytest._io import TerminalWriter

STOP_SECONDS: Final = 20.0
"""How long a worker may run its present test and stop its servers, before SIGINT and again before SIGKILL."""
_SIZE: Final = struct.Struct("!I")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="number of processes that run tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers, if there is more than one process."""
    config = session.config
    if config.option.processes < 2 or config.option.collectonly or not session.items:
        return None
    if session.testsfailed and not config.option.continue_on_collection_errors:
        return None  # pytest reports the error
    _Controller(session).run(config.option.processes)
    return True


def _send(channel: socket.socket, message: Any) -> None:
    data = pickle.dumps(message)
    channel.sendall(_SIZE.pack(len(data)) + data)


def _receive(channel: socket.socket) -> Any:
    """Return the next message. Raises EOFError when the other process has ended."""
    (size,) = _SIZE.unpack(_read(channel, _SIZE.size))
    return pickle.loads(_read(channel, size))


def _read(channel: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        try:
            chunk = channel.recv(size - len(chunks))
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            raise EOFError
        chunks += chunk
    return bytes(chunks)


def _by_file(items: list[pytest.Item], indexes: Iterable[int]) -> Iterator[list[int]]:
    """Yield the indexes of the tests of each file."""
    for _, group in itertools.groupby(indexes, lambda index: items[index].path):
        yield list(group)


class _WorkerProcess:
    """A worker, as the controller sees it."""

    def __init__(self, pid: int, number: int, channel: socket.socket) -> None:
        self.pid = pid
        self.number = number
        self.channel = channel
        self.remaining: list[int] = []
        """The indexes of the tests that it has got and not finished."""


class _Controller:
    """Gives files to workers, and logs their reports."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        self._files = deque(_by_file(session.items, range(len(session.items))))
        self._selector = selectors.DefaultSelector()
        self._workers: list[_WorkerProcess] = []
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, processes: int) -> None:
        """Run all tests. Raises Session.Failed or Session.Interrupted as pytest does."""
        try:
            for number in range(min(processes, len(self._files))):
                self._fork(number)
            while self._workers:
                for key, _ in self._selector.select():
                    self._handle_message(key.data)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            self._stop_workers()

    def _fork(self, number: int) -> None:
        channel, channel_of_worker = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            channel.close()
            for worker in self._workers:
                worker.channel.close()
            _run_worker(self._session, number, channel_of_worker)  # does not return
        channel_of_worker.close()
        worker = _WorkerProcess(pid, number, channel)
        self._workers.append(worker)
        self._selector.register(channel, selectors.EVENT_READ, worker)

    def _handle_message(self, worker: _WorkerProcess) -> None:
        try:
            name, value = _receive(worker.channel)
        except EOFError:
            self._handle_exit(worker)
            return
        if name == "file":
            indexes = self._files.popleft() if self._files else []
            worker.remaining += indexes
            with contextlib.suppress(ConnectionError):  # its end is handled next
                _send(worker.channel, indexes)
        elif name == "finished":
            worker.remaining.remove(value)
            item = self._session.items[value]
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif name == "report":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=value)
            self._hook.pytest_runtest_logreport(report=report)
        else:
            self._hook.pytest_warning_recorded.call_historic(kwargs=value)

    def _handle_exit(self, worker: _WorkerProcess) -> None:
        """Forget a worker. If it died in a test, that test has failed, and another worker continues."""
        self._selector.unregister(worker.channel)
        self._workers.remove(worker)
        worker.channel.close()
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if status == 0 and not worker.remaining:
            return
        if worker.remaining:
            item = self._session.items[worker.remaining.pop(0)]
            message = f"the process of this test ended with status {status}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")
            self._hook.pytest_runtest_logreport(report=report)
            self._files.extendleft(reversed(list(_by_file(self._session.items, worker.remaining))))
        else:
            raise RuntimeError(f"a process with tests ended with status {status}")
        self._fork(worker.number)

    def _stop_workers(self) -> None:
        """Stop workers that still run after an error or an interrupt. Ctrl-C has reached them as well."""
        self._selector.close()
        for worker in self._workers:
            worker.channel.close()  # each stops after its present test
        for number in (signal.SIGINT, signal.SIGKILL):
            deadline = time.monotonic() + STOP_SECONDS
            while self._workers and time.monotonic() < deadline:
                self._workers = [worker for worker in self._workers if not os.waitpid(worker.pid, os.WNOHANG)[0]]
                time.sleep(0.05)
            for worker in self._workers:
                os.kill(worker.pid, number)
        for worker in self._workers:
            os.waitpid(worker.pid, 0)


def _run_worker(session: pytest.Session, number: int, channel: socket.socket) -> None:
    """Run the tests of the files that the controller gives, and exit."""
    status = 1
    try:
        _set_up_worker(session, number)
        _Worker(session, channel).run()
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            session._setupstate.teardown_exact(None)
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(status)  # the rest of pytest's end is for the controller


def _set_up_worker(session: pytest.Session, number: int) -> None:
    """Give a fork its own captured output, terminal, folder and random numbers."""
    plugins = session.config.pluginmanager
    atexit._clear()  # the controller removes what it has made
    random.seed()
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    reporter = plugins.getplugin("terminalreporter")
    reporter._tw = TerminalWriter(open(os.devnull, "w"))  # noqa: SIM115
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"process{number}"
    factory._basetemp.mkdir(mode=0o700, exist_ok=True)


class _Worker:
    """Runs tests, and sends their reports."""

    def __init__(self, session: pytest.Session, channel: socket.socket) -> None:
        self._session = session
        self._channel = channel
        self._has_failed = False
        self._is_registered = False
        session.config.pluginmanager.register(self)  # this replays the warnings of the controller
        self._is_registered = True

    def run(self) -> None:
        """Run tests until no file is left, or until the controller stops."""
        with contextlib.suppress(EOFError, ConnectionError):
            indexes = self._next_file()
            while indexes:
                for index, following in itertools.pairwise(indexes):
                    self._run_test(index, following)
                next_indexes = self._next_file()  # fixtures of more than one file live on if a next test needs them
                self._run_test(indexes[-1], next_indexes[0] if next_indexes else None)
                indexes = next_indexes
        if not self._has_failed:
            shutil.rmtree(self._session.config._tmp_path_factory.getbasetemp(), ignore_errors=True)  # type: ignore[attr-defined]

    def _next_file(self) -> list[int]:
        """Return the indexes of the tests of another file, or none at the end."""
        _send(self._channel, ("file", None))
        indexes: list[int] = _receive(self._channel)
        return indexes

    def _run_test(self, index: int, following: int | None) -> None:
        items = self._session.items
        next_item = None if following is None else items[following]
        self._session.config.hook.pytest_runtest_protocol(item=items[index], nextitem=next_item)
        _send(self._channel, ("finished", index))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed |= report.failed
        config = self._session.config
        _send(self._channel, ("report", config.hook.pytest_report_to_serializable(config=config, report=report)))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        if not self._is_registered:
            return
        category, text = warning_message.category.__name__, str(warning_message.message)
        shown = UserWarning(text if category == "UserWarning" else f"{category}: {text}")
        message = warnings.WarningMessage(shown, UserWarning, warning_message.filename, warning_message.lineno)
        value = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        _send(self._channel, ("warning", value))
