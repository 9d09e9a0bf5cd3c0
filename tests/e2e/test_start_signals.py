"""A gateway that is told to stop, or loses its supervisor, while it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.e2e.harness import KEY, SVC, Gateway, environment
from tests.soak import starts

ENDED = (0, 143, -signal.SIGTERM)
"""Exit statuses: in order, in the imports before that, and before Python knows of the signal."""


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_during_the_start_ends_the_gateway(tmp_path: Path, workers: int) -> None:
    gateway = Gateway(tmp_path, env={}, config=f"[gateway]\nworkers = {workers}\ndrain_timeout = 2\n")
    began = time.monotonic()
    gateway.start()
    took = time.monotonic() - began
    assert gateway.stop(15) == 0
    for share in (0.5, 0.7, 0.85, 0.95, 1.0):
        gateway.launch()
        time.sleep(took * share)
        assert gateway.stop(15) in ENDED, share
        assert "Traceback" not in gateway.log


def test_worker_whose_supervisor_dies_before_it_is_ready_ends_in_order(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, theirs:
        seat = f"{listener.fileno()},{theirs.fileno()},0,3,{tmp_path / 'counters'}"
        process = subprocess.Popen(
            [SVC, "gateway", "--seat", seat],
            env=environment(tmp_path, {"SVC_API_KEYS": KEY}),
            cwd=tmp_path,
            pass_fds=[listener.fileno(), theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        ours.close()
        try:
            _, said = process.communicate(timeout=20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    assert process.returncode in ENDED, said
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


def test_supervisor_that_dies_during_its_start_loses_no_answer(tmp_path: Path) -> None:
    """Short form of `make soak-starts`."""
    report = starts.die(tmp_path, deaths=4, workers=2, clients=6)
    assert (report.missing, report.doubled, report.blamed_disk, report.tracebacks) == (0, 0, 0, 0), str(report)
    assert set(report.statuses) <= {200, 503}, str(report)


def test_sigterm_inside_a_finalizer_of_the_start_ends_the_command() -> None:
    """As in imports, which run the callbacks of weak references."""
    program = """
        import os, signal
        from svc import cli

        class Dying:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                list(range(100))

        cli.main(["--version"])
        Dying()
        print("serves on")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=20)
    assert done.returncode in ENDED
    assert "serves on" not in done.stdout


@pytest.mark.parametrize("delay", [0.02, 0.2, 0.4, 0.7])
def test_sigterm_while_modules_are_compiled_ends_the_command(tmp_path: Path, delay: float) -> None:
    """Without cached bytecode, as in a read-only image: CPython may drop an exception within its compiler."""
    without_cache = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "none")}
    env = environment(tmp_path, {"SVC_API_KEYS": KEY, **without_cache})
    process = subprocess.Popen([SVC, "gateway", "--port", "0"], env=env, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in ENDED
    finally:
        process.kill()
        process.wait(5)


def test_start_of_a_server_takes_sigterm_only_when_its_modules_are_imported(tmp_path: Path) -> None:
    """Until then the system ends the process, which nothing can lose."""
    gateway = Gateway(tmp_path, env={})
    gateway.launch()
    process = Path(f"/proc/{gateway.process.pid}")
    try:
        deadline = time.monotonic() + 20
        while not takes_sigterm(process):
            assert time.monotonic() < deadline, gateway.log
        assert "httptools" in (process / "maps").read_text()
    finally:
        assert gateway.stop() in ENDED


def takes_sigterm(process: Path) -> bool:
    """Whether the process has a handler for it, as /proc shows it."""
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("delay", [0.3, 0.5, 0.7])
def test_sighup_during_the_start_does_not_end_the_gateway(tmp_path: Path, delay: float) -> None:
    gateway = Gateway(tmp_path, env={})
    gateway.launch()
    time.sleep(delay)
    gateway.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while not gateway.said_address():
        assert gateway.process.poll() is None, gateway.log
        assert time.monotonic() < deadline, gateway.log
        time.sleep(0.02)
    assert gateway.stop() == 0
