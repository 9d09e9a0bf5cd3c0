"""The child process of the embedded model: llama.cpp's server on a loopback port. It knows nothing of the gateway.

Started as `python -m svc.gateway.local_server`. It reads one line of JSON (svc.gateway.local.Orders) from standard
input, writes one line of JSON `{"address": "http://127.0.0.1:PORT"}` to standard output once it answers, and ends
when standard input ends or its parent is gone: whatever happens to the gateway, no model outlives it.
The API key comes that way because a process list and an environment can be read by others.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

import xllamacpp  # type: ignore[import-untyped]

ERRORS = 1
BATCH = 64
"""Tokens of a prompt between two looks at who is still there: a client that left stops costing within a second."""


def main() -> None:
    """Serves until nobody is left who wants it."""
    parent = os.getppid()
    orders = json.loads(sys.stdin.buffer.readline())
    os.nice(orders["nice"])  # the gateway comes first: a token a little later is better than a stalled stream
    server = xllamacpp.Server(_parameters(orders))
    sys.stdout.write(json.dumps({"address": server.listening_address}) + "\n")
    sys.stdout.flush()
    _wait(parent)
    os._exit(0)  # not through the server's own end, which waits for answers that nobody will read


def _parameters(orders: dict[str, Any]) -> Any:
    made = xllamacpp.CommonParams()
    made.model.path = orders["model_path"]
    made.model_alias = {orders["model"]}
    made.hostnames = ["127.0.0.1"]
    made.port = 0
    made.api_keys = [orders["key"]]
    made.n_parallel = orders["slots"]
    made.n_ctx = orders["context"]
    made.kv_unified = True  # the slots share the context: one long conversation may have nearly all of it
    made.n_batch = BATCH
    made.n_predict = orders["max_tokens"]
    made.sampling.temp = orders["sampling"]["temperature"]
    made.sampling.top_p = orders["sampling"]["top_p"]
    made.sampling.penalty_repeat = orders["sampling"]["repeat_penalty"]
    made.cpuparams.n_threads = orders["threads"]
    made.cpuparams_batch.n_threads = orders["threads"]
    made.cache_ram_mib = 0  # its default keeps up to 8 GiB of old prompts
    made.cache_idle_slots = False
    made.ui = False
    made.endpoint_slots = False  # it shows prompts
    made.cors_origins = ""
    made.verbosity = ERRORS
    return made


def _wait(parent: int) -> None:
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], 1.0)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            return


if __name__ == "__main__":
    main()
