"""Runs the real command as a separate process with a given environment and configuration. SIGTERM stops it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anthropic
import openai

from tests import fork_server
from tests.fakes.http_client import Got, RawClient
from tests.fakes.provider import FakeProvider
from tests.fork_server import ForkedProcess

KEY = "test-client-key-1"
SVC = str(Path(sys.executable).parent / "svc")
ADDRESS = re.compile(r"https?://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)")

GPT, CLAUDE, LLAMA = "gpt-4o-mini", "claude-3-5-sonnet-20241022", "llama-3.1-8b-instant"
HI = [{"role": "user", "content": "Hi"}]


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the command's environment: none of the machine's settings or keys.

    SVC_FASTPATH and PYTHONPATH are kept. The latter selects the source of a git worktree without its own `.venv`.
    """
    base = {"PATH": os.environ["PATH"], "HOME": str(home), "SVC_HOME": str(home / "svc"), "LANG": "C.UTF-8"}
    switch = {name: os.environ[name] for name in ("SVC_FASTPATH", "PYTHONPATH") if name in os.environ}
    return {**base, **switch, **(more or {})}


def provider_environment(fakes: Mapping[str, FakeProvider]) -> dict[str, str]:
    """Addresses and keys of providers A, B and C as environment variables."""
    named: dict[str, str] = {}
    for letter, fake in fakes.items():
        named[f"PROVIDER_{letter}_BASE_URL"] = fake.address if letter == "B" else f"{fake.address}/v1"
        named[f"PROVIDER_{letter}_API_KEY"] = fake.key
    return named


def run(*arguments: str, home: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to exit by itself."""
    return fork_server.run_command(arguments, environment(home, env), home)


class Gateway:
    """`svc gateway --port 0`. `start` returns when the process has printed its address.

    `is_forked` starts it quickly, for tests that do not look at the process itself. See `tests.fork_server`.
    """

    def __init__(
        self, home: Path, *, env: Mapping[str, str], config: str | None = None, is_forked: bool = False
    ) -> None:
        self.home = home
        self.log_path = home / "gateway.log"
        self.key = KEY
        self.port = 0
        self.process: subprocess.Popen[bytes] | ForkedProcess
        self._is_forked = is_forked
        self._env = environment(home, {"SVC_API_KEYS": KEY, **env})
        self.command = [SVC]
        self._arguments = ["gateway", "--port", "0"]
        if config is not None:
            (home / "given.toml").write_text(config, encoding="utf-8")
            self._arguments += ["--config", str(home / "given.toml")]

    def use_port_of_config(self) -> None:
        """Use the configured port instead of a free one."""
        del self._arguments[1:3]

    def keep_port(self) -> None:
        """Use the present port at the next start."""
        self._arguments[2] = str(self.port)

    def launch(self) -> None:
        """Start the process without waiting until it listens."""
        with self.log_path.open("wb") as log:
            if self._is_forked and self.command == [SVC] and fork_server.can_start(self._env):
                self.process = fork_server.start(self._arguments, self._env, self.home, stdout=log, stderr=log)
                return
            self.process = subprocess.Popen(
                [*self.command, *self._arguments],
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def printed_port(self) -> int:
        """Return the port in the printed address, or 0."""
        match = ADDRESS.search(self.log)
        return int(match.group(1)) if match else 0

    def start(self, timeout: float = 60.0) -> Gateway:
        self.launch()
        deadline = time.monotonic() + timeout
        while not (port := self.printed_port()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"the gateway did not start: {self.log}")
            time.sleep(0.01)
        self.port = port
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The content of standard output and standard error so far."""
        return self.log_path.read_text(encoding="utf-8") if self.log_path.exists() else ""

    def logged(self, text: str, timeout: float = 20.0) -> str:
        """Wait until a line holds `text` and return all complete lines. The last line may still be incomplete."""
        deadline = time.monotonic() + timeout
        while text not in (lines := self.log.rpartition("\n")[0]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text!r} is not in the log:\n{self.log}")
            time.sleep(0.01)
        return lines

    def send_sigterm(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout: float = 30.0) -> int:
        """Send SIGTERM and return the exit status."""
        if self.process.poll() is None:
            self.send_sigterm()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            raise AssertionError(f"the gateway did not stop: {self.log}") from None

    # clients

    def raw(self, *, timeout: float = 30.0, source: str = "127.0.0.1") -> RawClient:
        return RawClient(self.port, timeout=timeout, source=source)

    def request(self, method: str, path: str, body: Any = None, *, key: str | None = KEY, **more: Any) -> Got:
        """Send one request on a new connection."""
        with self.raw() as raw:
            return raw.request(method, path, body, key=key, **more)

    def chat(self, model: str = GPT, *, headers: dict[str, str] | None = None, **fields: Any) -> Got:
        return self.request("POST", "/v1/chat/completions", {"model": model, "messages": HI, **fields}, headers=headers)

    def message(self, model: str = CLAUDE, *, headers: dict[str, str] | None = None, **fields: Any) -> Got:
        return self.request(
            "POST", "/v1/messages", {"model": model, "messages": HI, "max_tokens": 50, **fields}, headers=headers
        )

    def openai(self, **more: Any) -> openai.OpenAI:
        """Return an SDK client that loads no certificates: loading takes longer than most tests."""
        plain = openai.DefaultHttpxClient(verify=False)
        base = {"base_url": f"{self.url}/v1", "api_key": KEY, "max_retries": 0, "timeout": 30, "http_client": plain}
        return openai.OpenAI(**{**base, **more})

    def anthropic(self, **more: Any) -> anthropic.Anthropic:
        """Return an SDK client that loads no certificates."""
        plain = anthropic.DefaultHttpxClient(verify=False)
        base = {"base_url": self.url, "api_key": KEY, "max_retries": 0, "timeout": 30, "http_client": plain}
        return anthropic.Anthropic(**{**base, **more})
