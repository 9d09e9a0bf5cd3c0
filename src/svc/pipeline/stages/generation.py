"""Text generation from a GGUF bundle with llama.cpp, in a child process that starts at the first use."""

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

from svc.bundles.metadata import BundleMetadata
from svc.client.bundles import Bundle
from svc.client.client import Client
from svc.distribution import install_command
from svc.errors import PipelineFailed
from svc.gateway.local_model.supervisor import (
    LOCAL_MODEL_START_TIMEOUT_SECONDS,
    LOCAL_MODEL_STOP_TIMEOUT_SECONDS,
    LocalServerOptions,
    Sampling,
    inference_thread_count,
    is_installed,
)
from svc.pipeline.definition import Stage
from svc.pipeline.stages._language_model import stream_chat
from svc.pipeline.stages.base import StageChunk, StageKinds, StageRunInfo
from svc.subprocess_env import build_subprocess_env
from svc.wire.type_names import with_json_types

DEFAULT_CONTEXT_TOKENS = 8192


def fits(metadata: BundleMetadata) -> bool:
    """Return whether the bundle is a language model in llama.cpp's format (GGUF)."""
    return metadata.type == "Gguf"


def kinds(metadata: BundleMetadata) -> StageKinds:
    """Return text to text."""
    return "text", "text"


def make(stage: Stage, bundle: Bundle) -> GenerationRunner:
    """Create the runner. Raises PipelineFailed if the weights are missing or the extra is not installed."""
    template = bundle.metadata.execution_template
    name, context_tokens = template.get("model_file"), template.get("context_length", DEFAULT_CONTEXT_TOKENS)
    if not isinstance(name, str) or Path(name).name != name or not (bundle.path / name).is_file():
        raise PipelineFailed(f"The bundle {bundle.reference} has no file for its `model_file`.")
    if not isinstance(context_tokens, int) or not 128 <= context_tokens <= 1 << 20:
        raise PipelineFailed(f"The bundle {bundle.reference} has an invalid `context_length`.")
    try:
        sampling = msgspec.convert(template.get("sampling", {}), Sampling)
    except msgspec.ValidationError as error:
        raise PipelineFailed(
            f"The bundle {bundle.reference} has an invalid `sampling`: {with_json_types(str(error))}."
        ) from error
    if not is_installed():
        raise PipelineFailed(
            f"Text generation on this machine needs an extra. Install it with: {install_command('local')}"
        )
    return GenerationRunner(stage, bundle, bundle.path / name, context_tokens, sampling)


class GenerationRunner:
    """The runner of a GGUF bundle."""

    input_kind = output_kind = "text"
    route = "device"
    provider = None

    def __init__(
        self, stage: Stage, bundle: Bundle, weights_path: Path, context_tokens: int, sampling: Sampling
    ) -> None:
        self.model = bundle.reference
        self._stage = stage
        self._api_key = secrets.token_urlsafe(32)
        self._process_config = LocalServerOptions(
            model=bundle.metadata.model_id,
            model_path=str(weights_path),
            key=self._api_key,
            context=context_tokens,
            threads=inference_thread_count(),
            sampling=sampling,
        )
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        return stream_chat(self._get_client(), self._process_config.model, self._stage.options, input_chunks, run_info)

    def _get_client(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(gateway_url=self._start_process(), api_key=self._api_key, retries=0)
            return self._client

    def _start_process(self) -> str:
        """Start the child process and return its address. The child exits when its standard input is closed."""
        process = subprocess.Popen(
            [sys.executable, "-m", "svc.gateway.local_model.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=build_subprocess_env(),
        )
        self._process = process
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(self._process_config) + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], LOCAL_MODEL_START_TIMEOUT_SECONDS)
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
            process.wait(LOCAL_MODEL_STOP_TIMEOUT_SECONDS)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
