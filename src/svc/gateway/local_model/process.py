"""The child process of a local model: llama.cpp's server on a loopback port.

`python -m svc.gateway.local_model.process` reads one line of JSON (`supervisor.LocalServerOptions`) from stdin.
When the server is ready, it writes one line `{"address": "http://127.0.0.1:PORT"}` to stdout. It exits when stdin is
closed or its parent has exited, so that it never outlives the gateway. It also exits if the server
makes no progress, since some grammars keep llama.cpp busy without an end. The API key is passed on stdin, because other
users can read the process list.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

import xllamacpp  # type: ignore[import-untyped]

log = logging.getLogger("svc.local")

ERROR_VERBOSITY = 1
PROMPT_BATCH_TOKENS = 64
"""Prompt tokens per batch. Between batches the server checks for disconnected clients, so they cost little."""
EMBEDDING_BATCH_MARGIN_TOKENS = 64
"""A batch that is larger than the context, so that a too long input gets status 400. Otherwise it gets 500."""
MIN_REQUEST_MEMORY_BYTES, MAX_REQUEST_MEMORY_BYTES = 512 << 20, 4 << 30
"""Bounds of the memory that all requests together may allocate."""
PROGRESS_CHECK_SECONDS = 1.0
CONTEXT_CHECKPOINTS = 2
"""Copies of a slot's state that a model with a sliding window keeps. The default of 32 can be many gigabytes."""

_SHARD_NUMBER = re.compile(r"-\d{5}-of-(?=\d{5}\.gguf$)")


def main() -> None:
    """Serve until the parent process exits or closes stdin."""
    parent = os.getppid()
    options = json.loads(sys.stdin.buffer.readline())
    os.nice(options["nice"])  # inference must not delay the gateway's streams
    server = xllamacpp.Server(_server_parameters(options))
    _limit_request_memory(Path(options["model_path"]))
    sys.stdout.write(json.dumps({"address": server.listening_address}) + "\n")
    sys.stdout.flush()
    watchdog = _Watchdog(server, options["stall_seconds"]) if options["kind"] == "chat" else None
    _wait_for_exit(parent, watchdog)
    os._exit(0)  # skips the server's shutdown, which waits for responses that no client reads


class _Watchdog:
    """Asks the server for its metrics, which it returns between two batches."""

    def __init__(self, server: Any, stall_seconds: float) -> None:
        self._server = server
        self._stall_seconds = stall_seconds
        self._seconds = 0
        """Seconds since the last metrics in which this process ran."""
        self._has_failed = False
        self._thread = threading.Thread(target=self._poll_metrics, name="watchdog", daemon=True)
        self._thread.start()

    def count_second(self) -> None:
        self._seconds += 1

    @property
    def has_stalled(self) -> bool:
        return self._seconds > self._stall_seconds and self._thread.is_alive()

    def _poll_metrics(self) -> None:
        while True:
            try:
                self._server.handle_metrics()
                self._has_failed = False
            except Exception:  # boundary: a server that fails, for instance without memory, has not stalled
                if not self._has_failed:
                    self._has_failed = True
                    log.exception("the server has no metrics")
            time.sleep(PROGRESS_CHECK_SECONDS)
            self._seconds = 0


def _limit_request_memory(model_path: Path) -> None:
    """Let the requests allocate as much as the size of the model, within bounds. Beyond it, allocations fail.

    llama.cpp's grammar of a short JSON schema can need any amount, for example if `minLength` exceeds `maxLength`. The
    model and its context are allocated before the first request. Without Linux, there is no limit.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return
    data_size = re.search(r"^VmData:\s+(\d+) kB$", status, re.M)
    if data_size is None:
        return
    name = _SHARD_NUMBER.sub("", model_path.name)
    shards = [path for path in model_path.parent.iterdir() if _SHARD_NUMBER.sub("", path.name) == name]
    model_bytes = sum(shard.stat().st_size for shard in shards)
    allocated = int(data_size[1]) * 1024  # what RLIMIT_DATA counts: getrlimit(2), proc(5)
    limit = allocated + min(max(MIN_REQUEST_MEMORY_BYTES, model_bytes), MAX_REQUEST_MEMORY_BYTES)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _server_parameters(options: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options["model_path"]
    parameters.model_alias = {options["model"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [options["key"]]
    parameters.n_parallel = options["slots"]
    parameters.n_ctx = options["context"]
    parameters.kv_unified = True  # the slots share the context, so that one long conversation can use most of it
    if options["kind"] == "embedding":
        _set_embedding_parameters(parameters, options)
    else:
        parameters.n_batch = PROMPT_BATCH_TOKENS
    parameters.n_predict = options["max_tokens"]
    parameters.sampling.temp = options["sampling"]["temperature"]
    parameters.sampling.top_p = options["sampling"]["top_p"]
    parameters.sampling.penalty_repeat = options["sampling"]["repeat_penalty"]
    parameters.cpuparams.n_threads = options["threads"]
    parameters.cpuparams_batch.n_threads = options["threads"]
    if options["gpu_layers"] is not None:
        parameters.n_gpu_layers = options["gpu_layers"]
    # Choosing the layers for a GPU reads the model's vocabulary once more, a quarter of the load of a small model.
    parameters.fit_params = _has_accelerator() and options["gpu_layers"] is None
    parameters.use_jinja = True  # the chat template of the model itself, which has its form of tool calls
    parameters.cache_ram_mib = 0  # the default caches up to 8 GiB of prompts
    parameters.cache_idle_slots = False
    parameters.n_ctx_checkpoints = CONTEXT_CHECKPOINTS
    parameters.ui = False
    parameters.endpoint_slots = False  # the endpoint would expose prompts
    parameters.endpoint_metrics = True  # for _Watchdog
    parameters.cors_origins = ""
    parameters.verbosity = ERROR_VERBOSITY
    return parameters


def _has_accelerator() -> bool:
    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    return any(device["type"] != cpu for device in xllamacpp.get_device_info())


def _set_embedding_parameters(parameters: Any, options: dict[str, Any]) -> None:
    parameters.embedding = True
    # An encoder reads each input in one batch.
    parameters.n_batch = parameters.n_ubatch = options["context"] + EMBEDDING_BATCH_MARGIN_TOKENS
    if not options["has_pooling"]:
        parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN


def _wait_for_exit(parent: int, watchdog: _Watchdog | None) -> None:
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], 1.0)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            return
        if watchdog is None:
            continue
        watchdog.count_second()
        if watchdog.has_stalled:
            sys.stderr.write("The model has made no progress for too long. Its process exits.\n")
            sys.stderr.flush()
            os._exit(1)


if __name__ == "__main__":
    main()
