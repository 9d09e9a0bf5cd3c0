"""The limit of login attempts for each address, which all workers of a machine share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from svc.console.login_limiter import LoginLimiter
from svc.errors import RateLimited
from svc.gateway.accounting.cost import PriceTable
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.settings import LimitSettings
from svc.stores.counters.shared_memory import SharedCounters
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def make_worker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Callable[[int], LoginLimiter]]:
    """Make the limiter of one of two workers."""
    database = DatabaseThread(open_state_database({}, tmp_path))

    def make(worker: int) -> LoginLimiter:
        counters = SharedCounters(tmp_path / "counters", worker=worker, workers=2, clock=clock.monotonic)
        return LoginLimiter(RateLimiter(LimitSettings(), counters, PriceTable(()), database).count_attempt)

    yield make
    await database.close()


@pytest.fixture
def limiter(make_worker: Callable[[int], LoginLimiter]) -> LoginLimiter:
    return make_worker(0)


async def attempt(limiter: LoginLimiter, address: str, count: int) -> None:
    for _ in range(count):
        await limiter.record_attempt(address)


async def test_eleventh_attempt_in_a_minute_is_rejected(limiter: LoginLimiter, clock: ManualClock) -> None:
    await attempt(limiter, "192.0.2.1", 10)
    clock.now += 59.5
    with pytest.raises(RateLimited, match=r"^Too many login attempts. Try again in \d s.$") as error:
        await limiter.record_attempt("192.0.2.1")
    assert 0 < error.value.retry_after <= 2
    assert error.value.headers == {"retry-after": "2"}
    clock.now += error.value.retry_after
    await limiter.record_attempt("192.0.2.1")


async def test_workers_share_the_limit_of_an_address(make_worker: Callable[[int], LoginLimiter]) -> None:
    workers = [make_worker(0), make_worker(1)]
    for _ in range(5):
        for worker in workers:
            await worker.record_attempt("192.0.2.1")
    for worker in workers:
        with pytest.raises(RateLimited):
            await worker.record_attempt("192.0.2.1")


async def test_addresses_are_limited_separately(limiter: LoginLimiter) -> None:
    await attempt(limiter, "192.0.2.1", 10)
    await limiter.record_attempt("192.0.2.2")


async def test_addresses_of_an_ipv6_network_share_a_limit(limiter: LoginLimiter) -> None:
    for number in range(10):
        await limiter.record_attempt(f"2001:db8::{number}")
    with pytest.raises(RateLimited):
        await limiter.record_attempt("2001:db8::ffff")
    await limiter.record_attempt("2001:db8:0:1::1")


async def test_texts_that_are_no_address_share_a_limit(limiter: LoginLimiter) -> None:
    for number in range(10):
        await limiter.record_attempt(f"spoofed-{number}")
    with pytest.raises(RateLimited):
        await limiter.record_attempt("another")


async def test_mapped_ipv4_addresses_are_limited_as_ipv4(limiter: LoginLimiter) -> None:
    await attempt(limiter, "::ffff:192.0.2.1", 10)
    await limiter.record_attempt("::ffff:192.0.2.2")
    with pytest.raises(RateLimited):
        await limiter.record_attempt("192.0.2.1")
