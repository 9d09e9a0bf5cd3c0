"""Text from a GGUF bundle, by the embedded llama.cpp in a process of its own, which is started at the first use."""

from __future__ import annotations

import json
import secrets
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from svc.bundles.metadata import Metadata
from svc.client.bundles import Bundle
from svc.client.client import Client
from svc.distribution import install_command
from svc.environment import child_environment
from svc.errors import PipelineFailed
from svc.gateway.local import START_TIMEOUT, STOP_TIMEOUT, Orders, Sampling, installed, threads
from svc.pipeline.definition import Stage
from svc.pipeline.stages._asking import ask
from svc.pipeline.stages.base import Item, Kinds, Told

CONTEXT = 8192


def fits(about: Metadata) -> bool:
    """A language model in llama.cpp's format."""
    return about.type == "Gguf"


def kinds(about: Metadata) -> Kinds:
    """Text is answered."""
    return "text", "text"


def make(stage: Stage, bundle: Bundle) -> Generation:
    """Raises PipelineFailed when the bundle lacks its weights, or the extra is not installed."""
    template = bundle.metadata.execution_template
    name, context = template.get("model_file"), template.get("context_length", CONTEXT)
    if not isinstance(name, str) or Path(name).name != name or not (bundle.path / name).is_file():
        raise PipelineFailed(f"The bundle {bundle.reference} has no file that its `model_file` names.")
    if not isinstance(context, int) or not 128 <= context <= 1 << 20:
        raise PipelineFailed(f"The bundle {bundle.reference} has a `context_length` that is none.")
    try:
        sampling = msgspec.convert(template.get("sampling", {}), Sampling)
    except msgspec.ValidationError as error:
        raise PipelineFailed(f"The bundle {bundle.reference} has a `sampling` that is none: {error}.") from error
    if not installed():
        raise PipelineFailed(f"Text generation on this machine needs an extra: {install_command('local')}")
    return Generation(stage, bundle, bundle.path / name, context, sampling)


class Generation:
    """A `Runner`."""

    takes = gives = "text"
    route = "device"
    provider = None

    def __init__(self, stage: Stage, bundle: Bundle, weights: Path, context: int, sampling: Sampling) -> None:
        self.model = bundle.reference
        self._stage = stage
        self._key = secrets.token_urlsafe(32)
        self._orders = Orders(
            model=bundle.metadata.model_id,
            model_path=str(weights),
            key=self._key,
            context=context,
            threads=threads(),
            sampling=sampling,
        )
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    def run(self, given: Iterator[Item], told: Told) -> Iterator[Item]:
        return ask(self._started(), self._orders.model, self._stage.options, given, told)

    def _started(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(gateway_url=self._start(), api_key=self._key, retries=0)
            return self._client

    def _start(self) -> str:
        """The child's address. It ends by itself when this process does, since its standard input does."""
        process = subprocess.Popen(
            [sys.executable, "-m", "svc.gateway.local_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )
        self._process = process
        assert process.stdin is not None  # they are pipes
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(self._orders) + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
        line = process.stdout.readline() if ready else b""
        if not line:
            self.close()
            raise PipelineFailed(f"The model {self.model} could not be loaded.")
        return f"{json.loads(line)['address']}/v1"

    def close(self) -> None:
        process, self._process = self._process, None
        if self._client is not None:
            self._client.close()
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
