"""A pipeline over a real Ray cluster of two nodes on this machine: `svc run --ray`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.e2e.harness import SVC, environment
from tests.fakes import openai_wire
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold

pytestmark = pytest.mark.slow

ASK = "name: ask\nstages: [{id: ask, target: integration, model: m}]\n"
RAY = Path(sys.executable).with_name("ray")


class Cluster(msgspec.Struct):
    address: str
    environ: dict[str, str]
    worker: subprocess.Popen[bytes]
    """The second node, in a process group of its own."""


def node(environ: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    own = ["start", "--block", "--num-cpus=1", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
    quiet = subprocess.DEVNULL
    command = [str(RAY), *own, "--disable-usage-stats", *arguments]
    return subprocess.Popen(command, env=environ, stdout=quiet, stderr=quiet, stdin=quiet, start_new_session=True)


def actors(cluster: Cluster) -> list[int]:
    """The processes of the second node that run the pipeline: Ray names them after the class."""
    names: dict[int, bytes] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            names[int(path.name)] = (path / "cmdline").read_bytes()
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])

    def ours(pid: int) -> bool:
        return pid == cluster.worker.pid or (pid in parents and ours(parents[pid]))

    return [pid for pid, name in names.items() if name.startswith(b"ray::PipelineActor") and ours(pid)]


def wait_for(port: int) -> None:
    """Wait until the head node listens."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError("the cluster does not start")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tempfile.mkdtemp(prefix="svc-ray-", dir="/tmp")  # sockets are there: the path must be short
    environ = {**environment(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    port = closed_port()
    head = node(environ, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
    worker = node(environ, f"--address=127.0.0.1:{port}")
    try:
        wait_for(port)
        yield Cluster(f"127.0.0.1:{port}", environ, worker)
    finally:
        for process in (worker, head):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(300)
def test_ray_run_killed_node_actor_retries_lost_input(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "ask.yaml").write_text(ASK)
    (tmp_path / "list.txt").write_text("".join(f"input {number}\n" for number in range(8)))
    gates = Gate(), Gate()
    with FakeProvider(OpenAIWire(), key="sk-a") as fake:
        environ = {**cluster.environ, "SVC_GATEWAY_URL": f"{fake.address}/v1", "SVC_API_KEY": "sk-a"}
        fake.plays(*(hold(gate) + answer(400, openai_wire.error("held", "invalid_request_error")) for gate in gates))
        command = [SVC, "run", "ask.yaml", "--input-list", "list.txt", "-o", "out.jsonl", "--jobs", "2", "--ray"]
        with subprocess.Popen(
            [*command, cluster.address], env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as process:
            fake.until(lambda: len(fake.requests) == 2 or process.poll() is not None, 200)
            assert process.poll() is None, process.communicate()
            first, second = fake.requests
            assert first.connection != second.connection  # one actor per node, since each node has one CPU
            for gate in gates:
                gate.reached()
            (actor,) = actors(cluster)
            os.kill(actor, signal.SIGKILL)
            fake.until(lambda: first.left is not None or second.left is not None, 20)
            for gate in gates:
                gate.open()
            stderr = process.communicate(timeout=100)[1]
        assert process.returncode == 1, stderr
        assert "1 of 8 inputs failed" in stderr
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [line["input"] for line in lines] == [f"input {number}" for number in range(8)]
        failed = [line["error"] for line in lines if line["error"]]
        # Only the input with the error response failed, not the lost one.
        assert [error["message"] for error in failed] == ["held"]
        assert {line["output"]["text"] for line in lines if line["output"]} == {openai_wire.TEXT}
        assert len(fake.requests) == 9


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1"])
def test_ray_run_unreachable_cluster_exits_1(tmp_path: Path, address: str) -> None:
    (tmp_path / "ask.yaml").write_text(ASK)
    environ = {**environment(tmp_path), "RAY_TMPDIR": str(tmp_path)}
    began = time.monotonic()
    done = subprocess.run(
        [SVC, "run", "ask.yaml", "--input", "x", "--ray", address],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"svc: The Ray cluster {address!r} cannot be reached: ")
    assert "Errno" not in done.stderr
    assert time.monotonic() - began < 60
