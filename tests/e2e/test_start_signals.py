"""Signals to a gateway, and loss of its supervisor, during the start."""

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

pytestmark = pytest.mark.slow

ENDED = (0, 143, -signal.SIGTERM)
"""Exit statuses: normal, during imports, and before Python has installed a handler."""


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_during_start_stops_gateway(tmp_path: Path, workers: int) -> None:
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


def test_worker_exits_when_supervisor_is_killed_before_ready(tmp_path: Path) -> None:
    supervisor_end, worker_end = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, worker_end:
        seat = f"{listener.fileno()},{worker_end.fileno()},0,3,{tmp_path / 'counters'}"
        process = subprocess.Popen(
            [SVC, "gateway", "--seat", seat],
            env=environment(tmp_path, {"SVC_API_KEYS": KEY}),
            cwd=tmp_path,
            pass_fds=[listener.fileno(), worker_end.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        worker_end.close()
        supervisor_end.close()
        try:
            _, stderr = process.communicate(timeout=20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    assert process.returncode in ENDED, stderr
    assert "Traceback" not in stderr
    assert "BrokenPipe" not in stderr


def test_supervisor_killed_during_start_loses_no_response(tmp_path: Path) -> None:
    """A short run of `make soak-starts`."""
    report = starts.die(tmp_path, deaths=4, workers=2, clients=6)
    assert (report.missing, report.doubled, report.blamed_disk, report.tracebacks) == (0, 0, 0, 0), str(report)
    assert set(report.statuses) <= {200, 503}, str(report)


def test_sigterm_inside_finalizer_at_start_stops_command() -> None:
    """Imports can run finalizers through weak reference callbacks."""
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
def test_sigterm_while_modules_are_compiled_stops_command(tmp_path: Path, delay: float) -> None:
    """Without cached bytecode, as in a read-only image: CPython's compiler may drop an exception."""
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


def test_sigterm_handler_is_installed_after_imports(tmp_path: Path) -> None:
    """Before that, the default action of SIGTERM ends the process, which has no state to lose."""
    gateway = Gateway(tmp_path, env={})
    gateway.launch()
    process = Path(f"/proc/{gateway.process.pid}")
    try:
        deadline = time.monotonic() + 20
        while not has_sigterm_handler(process):
            assert time.monotonic() < deadline, gateway.log
        assert "httptools" in (process / "maps").read_text()
    finally:
        assert gateway.stop() in ENDED


def has_sigterm_handler(process: Path) -> bool:
    """Return whether the process has a SIGTERM handler, according to /proc."""
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("delay", [0.3, 0.5, 0.7])
def test_sighup_during_start_does_not_stop_gateway(tmp_path: Path, delay: float) -> None:
    gateway = Gateway(tmp_path, env={})
    gateway.launch()
    time.sleep(delay)
    gateway.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while not gateway.printed_port():
        assert gateway.process.poll() is None, gateway.log
        assert time.monotonic() < deadline, gateway.log
        time.sleep(0.02)
    assert gateway.stop() == 0
