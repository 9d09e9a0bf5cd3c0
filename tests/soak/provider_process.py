"""A fake OpenAI provider in a process of its own, so that signals can freeze and continue it."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider


class ProviderProcess:
    """`address` is set once the context is entered."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.address = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.soak.provider_process", self.key]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the provider did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()  # also works on a frozen process
        self._process.communicate(timeout=10)

    def freeze(self) -> None:
        """Freeze the process: its sockets accept connections and bytes, and nothing responds."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def main() -> None:
    with FakeProvider(OpenAIWire(), key=sys.argv[1]) as fake:
        sys.stdout.write(f"{fake.address}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
