"""A machine on which the commands of a page run: a home folder, files, a `svc` on the path, and fake providers.

Pages name the default ports, 3000 and 8080. The runner replaces them with free ones. A wrapper named `svc` on the path
adds these ports to the commands that start a server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.documentation.pages import ROOT
from tests.e2e.harness import SVC
from tests.fakes.ports import closed_port

BLOCK_SECONDS = 60
START_SECONDS = 40
WRAPPER = """#!/bin/sh
case "$1 ${{2:-}}" in
    "up "*) shift; exec {svc} up --port "$DOC_GATEWAY_PORT" --registry-port "$DOC_REGISTRY_PORT" "$@" ;;
    "gateway "*) shift; exec {svc} gateway --port "$DOC_GATEWAY_PORT" "$@" ;;
    "registry serve") shift 2; exec {svc} registry serve --port "$DOC_REGISTRY_PORT" "$@" ;;
esac
exec {svc} "$@"
"""
MAKE = """#!/bin/sh
[ "$*" = run ] || {{ echo "make $*: on a page only 'make run' is executed" >&2; exit 2; }}
exec {bin}/svc up
"""
DRIVER = """
import sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        with open(line.strip(), encoding="utf-8") as file:
            exec(compile(file.read(), line.strip(), "exec"), space)
        print("\\0ok", flush=True)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        print("\\0failed", flush=True)
"""


class Machine:
    """A home folder with the cached models in its registry. `stop` ends all processes that were started here."""

    def __init__(self, home: Path, registries: Sequence[Path], providers: Mapping[str, str]) -> None:
        self.home = home
        self.gateway_port = closed_port()
        self.registry_port = closed_port()
        self._groups: list[subprocess.Popen[bytes]] = []
        self._count = 0
        home.mkdir(parents=True)
        state = home / ".svc"
        state.mkdir(mode=0o700)
        own = shutil.ignore_patterns(".registry", ".staging", "index.json")
        for registry in registries:
            shutil.copytree(registry, state / "registry", copy_function=os.link, ignore=own, dirs_exist_ok=True)
        tools = home / "bin"
        tools.mkdir()
        _program(tools / "svc", WRAPPER.format(svc=SVC))
        _program(tools / "make", MAKE.format(bin=tools))
        self.environ = {
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PIP_NO_INDEX": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "DOC_GATEWAY_PORT": str(self.gateway_port),
            "DOC_REGISTRY_PORT": str(self.registry_port),
            **providers,
        }
        # The copied bundles have no records yet: this writes them.
        self.shell("svc registry verify --repair || true", home)

    def start(self) -> None:
        """Start `svc up`, and create the keys that a page may use: `$KEY`, and `$ADMIN_KEY` with the scope `admin`."""
        self.serve("svc up", self.home)
        self.environ["KEY"] = (self.home / ".svc" / "api_key").read_text().strip()
        status, output = self.shell("svc keys create --name admin --scope admin --json", self.home)
        assert status == 0, output
        self.environ["ADMIN_KEY"] = json.loads(output)["key"]

    def with_own_ports(self, text: str) -> str:
        """Return the text of a block with this machine's ports."""
        for name in ("127.0.0.1", "localhost"):
            text = text.replace(f"{name}:3000", f"{name}:{self.gateway_port}")
            text = text.replace(f"{name}:8080", f"{name}:{self.registry_port}")
        return text

    def folder(self, name: str, files: Mapping[str, Path]) -> Path:
        """Return the working folder of a page, with the files that pages use."""
        folder = self.home / name
        folder.mkdir()
        (folder / ".venv").mkdir()
        (folder / ".venv" / "bin").symlink_to(self.home / "bin")
        for file, source in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / file)
        shutil.copytree(ROOT / "examples", folder / "examples")
        return folder

    def shell(self, block: str, folder: Path) -> tuple[int, str]:
        """Run a block with bash. Its exports and working folder apply to the next block of the page."""
        state = folder / ".exported"
        before = f"[ ! -e {state} ] || . {state}\nset -euo pipefail\n"
        after = f"\n{{ export -p; echo cd \"'$PWD'\"; }} > {state}\n"
        process, log = self._launch(before + self.with_own_ports(block) + after, folder)
        try:
            status = process.wait(BLOCK_SECONDS)
        except subprocess.TimeoutExpired:
            self._end(process)
            return 124, f"{_text(log)}\nnot finished within {BLOCK_SECONDS} s"
        return status, _text(log)

    def serve(self, block: str, folder: Path) -> str:
        """Run a block that starts a server, and return once it answers. Of `svc up`, that is the gateway."""
        process, log = self._launch(self.with_own_ports(block), folder)
        deadline = time.monotonic() + START_SECONDS
        port = self.registry_port if "registry serve" in block else self.gateway_port
        while not _answers(port):
            if process.poll() not in (None, 0) or time.monotonic() > deadline:
                raise AssertionError(f"no server answers:\n{_text(log)}")
            time.sleep(0.05)
        return _text(log)

    def stop(self) -> None:
        for process in self._groups:
            self._end(process)
        self._groups.clear()

    def _launch(self, script: str, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
        """Run in a process group of its own. Output goes to a file, which a background server may keep open."""
        self._count += 1
        log = self.home / f"output-{self._count}"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._groups.append(process)
        return process, log

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """Send SIGTERM to the whole group, then SIGKILL to the remaining processes."""
        for number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and _group_exists(process):
                time.sleep(0.02)
        process.wait(5)


class PythonSession:
    """One interpreter for the Python blocks of a page. Names of one block are defined in the next."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine = machine
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            ["bash", "-c", '[ ! -e .exported ] || . ./.exported; exec "$0" -c "$1"', sys.executable, DRIVER],
            cwd=folder,
            env=machine.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, block: str) -> tuple[int, str]:
        """Run a block, and return 0 or 1 and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._count += 1
        path = self._folder / f"block-{self._count}.py"
        path.write_text(self._machine.with_own_ports(block), encoding="utf-8")
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        output = ""
        limit = threading.Timer(BLOCK_SECONDS, self._process.kill)
        limit.start()
        try:
            for line in self._process.stdout:
                text, found, outcome = line.partition("\0")
                output += text
                if found:
                    return int(outcome.strip() != "ok"), output
        finally:
            limit.cancel()
        return 1, f"{output}\nthe interpreter exited, or did not finish within {BLOCK_SECONDS} s"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _answers(port: int) -> bool:
    """Return whether a server is healthy, with TLS or without."""
    for scheme in ("http", "https"):
        with contextlib.suppress(OSError, http.client.HTTPException):
            address = f"{scheme}://127.0.0.1:{port}/health"
            context = ssl._create_unverified_context()
            with urllib.request.urlopen(address, timeout=5, context=context) as response:
                return bool(response.status == 200)
    return False


def _group_exists(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
