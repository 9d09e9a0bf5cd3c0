"""Fixtures for the real command and real servers."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests import fork_server

collect_ignore = [
    test
    for program, test in (("nginx", "test_nginx.py"), ("docker-registry", "test_docker_registry.py"))
    if shutil.which(program) is None
]
"""Tests with third-party servers run only where these are installed."""

SVC = [sys.executable, "-m", "svc"]


def make_bundle(path: Path, model_id="m", version="1.0", data=b"weights", **about) -> Path:
    metadata = {"model_id": model_id, "version": version, "execution_template": {"type": "X"}, "files": ["w.bin"]}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model_metadata.json", json.dumps(metadata | about))
        archive.writestr("w.bin", data)
    return path


class Machine:
    """One SVC_HOME, and commands run in it."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.home = home
        self.root = home / "registry"
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.environ = {**kept, "SVC_HOME": str(home), "HOME": str(home), **environ}
        self.processes: list[subprocess.Popen | fork_server.ForkedProcess] = []

    def run(self, *args, check=0, **environ):
        done = fork_server.run([*map(str, args)], {**self.environ, **environ}, Path.cwd())
        assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *args, **options) -> subprocess.Popen | fork_server.ForkedProcess:
        """Start a command: in a fork, or with options of Popen as a process of its own."""
        arguments = [*map(str, args)]
        if options or not fork_server.can_start(self.environ):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = subprocess.Popen([*SVC, *arguments], env=self.environ, **pipes, **options)
        else:
            process = fork_server.start_with_pipes(arguments, self.environ, Path.cwd())
        self.processes.append(process)
        return process

    def serve(self, *args, port=0) -> "Server":
        process = self.start("registry", "serve", "--port", port, *args)
        return Server(process)

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            if not process.stdout.closed:
                process.communicate(timeout=30)


class Server:
    def __init__(self, process: subprocess.Popen | fork_server.ForkedProcess) -> None:
        self.process = process
        ready, _, _ = select.select([process.stdout], [], [], 20)
        line = process.stdout.readline().decode() if ready else ""
        match = re.search(r"http://[^\s]+:(\d+)", line)
        assert match, (line, process.poll() is not None and process.stderr.read())
        self.url, self.port = match[0], int(match[1])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def machine(tmp_path):
    made = []

    def make(name="one", **environ):
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        made.append(Machine(home, **environ))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
