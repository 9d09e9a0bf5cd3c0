"""The supervisor with workers that only drain."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WORKER = """
import os, signal, sys, time
signals = []
def stop(*_):
    signals.append(1)
    open(sys.argv[1] + "-stopping", "w").close()
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *_: os._exit(0))
os.write(int(sys.argv[-1].split(",")[1]), b"r")
while not (signals and os.path.exists(sys.argv[1])) and os.getppid() > 1:
    time.sleep(0.02)
"""
SUPERVISOR = f"""
import logging, sys
from pathlib import Path
from svc.app.supervisor import Supervisor, listen_reuseport
logging.basicConfig()
home = Path(sys.argv[1])
command = [sys.executable, "-c", {WORKER!r}, str(home / "drained")]
listeners = listen_reuseport("127.0.0.1", 0, 2)
def check():
    if (home / "broken").exists():
        raise RuntimeError("unexpected failure")
    return []
supervisor = Supervisor(command, listeners, home / "counters", 1.0, lambda counters: None, check)
sys.exit(supervisor.run(lambda: print("ready", flush=True)))
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(tmp_path)], stdout=subprocess.PIPE, stderr=log
        )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_supervisor_third_reload_during_drain_waits_for_workers(
    supervisor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    for reloads in (1, 2):
        supervisor.send_signal(signal.SIGHUP)
        wait_for_log(tmp_path, "reloaded the configuration", reloads)
    supervisor.send_signal(signal.SIGHUP)
    time.sleep(1.5)  # the supervisor polls once a second
    assert supervisor.poll() is None, (tmp_path / "log").read_text()
    (tmp_path / "drained").touch()
    wait_for_log(tmp_path, "reloaded the configuration", 3)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(20) == 0


def test_supervisor_configuration_check_raises_keeps_workers(
    supervisor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "drained").touch()
    (tmp_path / "broken").touch()
    supervisor.send_signal(signal.SIGHUP)
    wait_for_log(tmp_path, "unexpected failure", 1)
    (tmp_path / "broken").unlink()
    supervisor.send_signal(signal.SIGHUP)
    wait_for_log(tmp_path, "reloaded the configuration", 1)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(20) == 0


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_supervisor_signals_during_the_drain_do_not_end_it_before_its_workers(
    supervisor: subprocess.Popen[bytes], tmp_path: Path, is_interrupted: bool
) -> None:
    supervisor.send_signal(signal.SIGUSR2)
    supervisor.send_signal(signal.SIGTERM)
    wait_until(lambda: (tmp_path / "drained-stopping").exists())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        supervisor.send_signal(number)
    if is_interrupted:  # the workers end at once
        supervisor.send_signal(signal.SIGINT)
    else:
        (tmp_path / "drained").touch()
    assert supervisor.wait(20) == 0
    assert not (tmp_path / "counters").exists()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_log(home: Path, text: str, count: int) -> None:
    deadline = time.monotonic() + 20
    while (log := (home / "log").read_text()).count(text) < count:
        assert time.monotonic() < deadline, log
        time.sleep(0.05)
