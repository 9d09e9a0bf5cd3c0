"""The child process of the embedded model: llama.cpp's server on a loopback port. It knows nothing of the gateway.

Started as `python -m svc.gateway.local_model.process`. It reads one line of JSON (`supervisor.LocalServerOptions`)
from standard input, writes one line of JSON `{"address": "http://127.0.0.1:PORT"}` to standard output once it answers,
and ends when standard input ends or its parent is gone: whatever happens to the gateway, no model outlives it.
The API key comes that way because a process list and an environment can be read by others.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

import xllamacpp  # type: ignore[import-untyped]

ERROR_VERBOSITY = 1
PROMPT_BATCH_TOKENS = 64
"""Tokens of a prompt between two looks at who is still there: a client that left stops costing within a second."""


def main() -> None:
    """Serves until nobody is left who wants it."""
    parent = os.getppid()
    options = json.loads(sys.stdin.buffer.readline())
    os.nice(options["nice"])  # the gateway comes first: a token a little later is better than a stalled stream
    server = xllamacpp.Server(_server_parameters(options))
    sys.stdout.write(json.dumps({"address": server.listening_address}) + "\n")
    sys.stdout.flush()
    _wait_for_parent_exit(parent)
    os._exit(0)  # not through the server's own end, which waits for answers that nobody will read


def _server_parameters(options: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options["model_path"]
    parameters.model_alias = {options["model"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [options["key"]]
    parameters.n_parallel = options["slots"]
    parameters.n_ctx = options["context"]
    parameters.kv_unified = True  # the slots share the context: one long conversation may have nearly all of it
    parameters.n_batch = PROMPT_BATCH_TOKENS
    parameters.n_predict = options["max_tokens"]
    parameters.sampling.temp = options["sampling"]["temperature"]
    parameters.sampling.top_p = options["sampling"]["top_p"]
    parameters.sampling.penalty_repeat = options["sampling"]["repeat_penalty"]
    parameters.cpuparams.n_threads = options["threads"]
    parameters.cpuparams_batch.n_threads = options["threads"]
    parameters.cache_ram_mib = 0  # its default keeps up to 8 GiB of old prompts
    parameters.cache_idle_slots = False
    parameters.ui = False
    parameters.endpoint_slots = False  # it shows prompts
    parameters.cors_origins = ""
    parameters.verbosity = ERROR_VERBOSITY
    return parameters


def _wait_for_parent_exit(parent: int) -> None:
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], 1.0)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            return


if __name__ == "__main__":
    main()
