"""SIGUSR1 reopens the access log, as logrotate's `postrotate` sends it: under load no line and no request is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import SVC, Gateway, environment

ROTATIONS = 5
CLIENTS = 3


def find_processes(parent: int) -> list[int]:
    """Return a process and its children."""
    return [parent, *map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]


def holders(parent: int, path: Path) -> list[int]:
    """Return the processes of a gateway that have a file open."""
    found = []
    for pid in find_processes(parent):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since
                found += [pid] if os.readlink(link) == str(path) else []
    return found


def wait_until_released(gateway: Gateway, path: Path) -> None:
    deadline = time.monotonic() + 20
    while holders(gateway.process.pid, path):
        assert time.monotonic() < deadline, holders(gateway.process.pid, path)
        time.sleep(0.02)


def count_requests(gateway: Gateway) -> int:
    page = gateway.request("GET", "/metrics").body.decode()
    return sum(int(count) for count in re.findall(r"^svc_requests_total\{.*\} (\d+)$", page, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_sigusr1_under_load_loses_no_line_and_refuses_no_request(
    start_gateway: StartGateway, tmp_path: Path, workers: int
) -> None:
    path = tmp_path / "access.log"
    gateway = start_gateway(config=f'[gateway]\nworkers = {workers}\n[telemetry]\naccess_log_file = "{path}"\n')
    sent: list[str] = []
    failures: list[int] = []
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            got = gateway.chat()
            sent.append(got.headers["x-request-id"])
            failures.extend([] if got.status == 200 else [got.status])

    clients = [threading.Thread(target=send) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    rotated = []
    for number in range(ROTATIONS):
        count = len(sent)
        while len(sent) < count + 20:
            time.sleep(0.01)
        rotated.append(path.rename(tmp_path / f"access.log.{number}"))
        path.touch()
        os.kill(gateway.process.pid, signal.SIGUSR1)
        wait_until_released(gateway, rotated[-1])
    stop.set()
    for client in clients:
        client.join()
    counts = [count_requests(gateway) for _ in range(5 * workers)]
    assert counts == sorted(counts)  # counters never fall, whichever worker serves
    assert gateway.stop() == 0
    assert failures == []
    lines = [json.loads(line) for file in (*rotated, path) for line in file.read_text().splitlines()]
    chats = [line["request_id"] for line in lines if line["endpoint"] != "/metrics"]
    assert Counter(chats) == Counter(sent)


def test_sigusr1_reopens_without_a_request(start_gateway: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    gateway = start_gateway(config=f'[gateway]\nworkers = 2\n[telemetry]\naccess_log_file = "{path}"\n')
    rotated = path.rename(tmp_path / "access.log.1")
    assert len(holders(gateway.process.pid, rotated)) == 2
    os.kill(gateway.process.pid, signal.SIGUSR1)
    wait_until_released(gateway, rotated)
    assert path.exists()


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="needs logrotate")
def test_logrotate_with_postrotate_rotates(start_gateway: StartGateway, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir(mode=0o700)
    path = folder / "access.log"
    gateway = start_gateway(config=f'[telemetry]\naccess_log_file = "{path}"\n')
    first = gateway.chat().headers["x-request-id"]
    wait_for_text(path, first)
    configuration = tmp_path / "logrotate.conf"
    postrotate = f"postrotate\n kill -USR1 {gateway.process.pid}\n endscript"
    configuration.write_text(f"{path} {{\n rotate 2\n compress\n delaycompress\n {postrotate}\n}}\n")
    configuration.chmod(0o600)
    subprocess.run(["logrotate", "-f", "-s", tmp_path / "state", configuration], check=True, timeout=60)
    wait_until_released(gateway, folder / "access.log.1")
    second = gateway.chat().headers["x-request-id"]
    wait_for_text(path, second)
    assert first in (folder / "access.log.1").read_text()
    assert first not in path.read_text()


def wait_for_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


def test_sigusr1_does_not_end_the_registry_or_a_gateway_that_starts(tmp_path: Path) -> None:
    for command in (["registry", "serve", "--port", "0"], ["gateway", "--port", "0"]):
        with subprocess.Popen(
            [SVC, *command], env=environment(tmp_path, {}), cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(command[0])
            for _ in range(3):
                process.send_signal(signal.SIGUSR1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, 143)
