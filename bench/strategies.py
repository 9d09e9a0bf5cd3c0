"""Measures the routing strategies with two providers of one model: `python -m bench.strategies [--seconds 6]`.

outage   one of the providers fails half of its requests: errors that clients see, and attempts per request
slow     one of the providers takes twice as long: p50 and p95, compared with the faster provider alone

The providers answer after a fixed time and are idle otherwise, so the figures do not depend on the processor.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.harness import HI, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, pause

MODEL = "shared-model"
STRATEGIES = ("order", "weighted", "least_busy", "cheapest")
CLIENTS = 4
FAST_SECONDS = 0.2
OK = pause(FAST_SECONDS) + answer(200, openai_wire.chat())
SLOW = pause(2 * FAST_SECONDS) + answer(200, openai_wire.chat())
FAILURE = answer(500, openai_wire.error("down"))


@dataclass(frozen=True)
class Result:
    """The requests of one measurement. Durations are in seconds."""

    errors: int
    attempts: float
    durations: list[float]
    shares: dict[str, float]

    @property
    def p50(self) -> float:
        return statistics.median(self.durations)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.durations, n=20)[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.strategies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of each measurement")
    given = parser.parse_args()
    if not 0.5 <= given.seconds <= 60:
        parser.error("--seconds is from 0.5 to 60")
    print(f"outage: one of two providers fails half of its requests, {CLIENTS} clients")
    for strategy in STRATEGIES:
        with two_providers(strategy) as (gateway, east, _):
            east.plays(*itertools.islice(itertools.cycle((FAILURE, OK)), int(given.seconds * CLIENTS / FAST_SECONDS)))
            result = measure(gateway, given.seconds)
        print(
            f"  {strategy:<11} {result.errors} errors in {len(result.durations):,} requests, "
            f"{result.attempts:.2f} attempts each, shares {result.shares}"
        )
    print(f"slow: one of two providers takes {2 * FAST_SECONDS:g} s, the other {FAST_SECONDS:g} s")
    with two_providers("order") as (gateway, _, _):
        alone = measure(gateway, given.seconds)
    print(f"  faster alone          p50 {alone.p50 * 1000:.1f} ms, p95 {alone.p95 * 1000:.1f} ms")
    for strategy in STRATEGIES:
        with two_providers(strategy) as (gateway, east, _):
            east.always_plays(SLOW)
            result = measure(gateway, given.seconds)
        print(
            f"  {strategy:<11} {result.p50 / alone.p50:5.2f} times  p50 {result.p50 * 1000:.1f} ms, "
            f"p95 {result.p95 * 1000:.1f} ms, shares {result.shares}"
        )
    return 0


@contextmanager
def two_providers(strategy: str) -> Iterator[tuple[Gateway, FakeProvider, FakeProvider]]:
    """A gateway in front of `east`, the first in the file, and `west`. Both are fast."""
    with ExitStack() as stack:
        fakes = {
            name: stack.enter_context(FakeProvider(openai_wire.OpenAIWire(), key="k")) for name in ("east", "west")
        }
        entries = "".join(
            f'[[providers]]\nname = "{name}"\nbase_url = "{fake.address}/v1"\napi_key_env = "KEY"\n'
            f'models = [{{ id = "{MODEL}", input_price = 1, output_price = 1 }}]\n'
            for name, fake in fakes.items()
        )
        for fake in fakes.values():
            fake.always_plays(OK)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strategies-")))
        config = f'[gateway]\naccess_log = false\n[routing]\nstrategy = "{strategy}"\n{entries}'
        gateway = Gateway(folder, env={"KEY": "k"}, config=config).start()
        stack.callback(gateway.stop)
        yield gateway, fakes["east"], fakes["west"]


def measure(gateway: Gateway, seconds: float) -> Result:
    """Send requests from CLIENTS connections, each after the response to the one before."""
    end = time.monotonic() + seconds
    lock = threading.Lock()
    responses: list[tuple[Got, float]] = []

    def run(_: int) -> None:
        with gateway.raw() as raw:
            while (started := time.monotonic()) < end:
                got = raw.request("POST", "/v1/chat/completions", {"model": MODEL, "messages": HI}, key=gateway.key)
                with lock:
                    responses.append((got, time.monotonic() - started))

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(run, range(CLIENTS)))
    count = len(responses)
    providers = [got.headers.get("x-svc-provider", "none") for got, _ in responses]
    return Result(
        errors=sum(got.status != 200 for got, _ in responses),
        attempts=sum(int(got.headers.get("x-svc-attempts", "0")) for got, _ in responses) / count,
        durations=[duration for _, duration in responses],
        shares={name: round(providers.count(name) / count, 2) for name in sorted(set(providers))},
    )


if __name__ == "__main__":
    sys.exit(main())
