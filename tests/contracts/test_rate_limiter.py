"""The limits of a key with local counters and with Redis: admission, rejection and remaining amounts."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import ASSUMED_OUTPUT_TOKENS
from svc.errors import InvalidRequest, RateLimited, SvcError
from svc.gateway.accounting.cost import PriceTable
from svc.gateway.limits import rate_limiter, spent_query
from svc.gateway.limits.budget_comparison import ROUNDING_NANO_USD
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.gateway.limits.reservation import Reservation
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_providers
from svc.settings import LimitSettings, ModelSettings, ProviderSettings, Settings
from svc.stores.counters.base import LimitUsage
from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.redis import RedisCounters
from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from svc.stores.redis.base import RedisClient
from svc.stores.redis.factory import open_redis
from svc.wire.key import ApiKey, EphemeralKey
from tests.fakes.redis_server import RedisServer

RAW = b"a" * 400
PROMPT = 100
"""Estimated tokens of RAW."""


EPHEMERAL_NUMBERS = itertools.count()


def backends_of(*models: ModelSettings) -> tuple[Backend, ...]:
    """Return backends, each with a provider of its own."""
    entries = tuple(
        ProviderSettings(name=f"p-{model.max_output_tokens}", base_url="http://127.0.0.1:1/v1", models=(model,))
        for model in models
    )
    found = {provider.name: provider for provider in build_providers(Settings(providers=entries))}
    return tuple(backend for entry in entries for backend in build_backends(found[entry.name]))


CHEAP = ModelSettings(id="m", max_output_tokens=1000, input_price=1.0, output_price=10.0)
EXPENSIVE = ModelSettings(id="m", max_output_tokens=2000, input_price=2.0, output_price=20.0)
FREE = ModelSettings(id="m", max_output_tokens=50)
OPEN = ModelSettings(id="m", input_price=1.0, output_price=10.0)


def routing_info(
    max_tokens: int | None = None, *, choice_count: int = 1, min_reserved_tokens: int = 0, unbounded_field: str = ""
) -> RoutingInfo:
    return RoutingInfo(
        model="m",
        max_tokens=max_tokens,
        choice_count=choice_count,
        min_reserved_tokens=min_reserved_tokens,
        unbounded_field=unbounded_field,
    )


def ephemeral_key(parent: ApiKey, *, rpm: int = 0, budget_usd: float | None = None, age: float = 0.0) -> EphemeralKey:
    return EphemeralKey(
        f"ek_{next(EPHEMERAL_NUMBERS)}",
        parent,
        b"",
        scopes=parent.scopes,
        models=None,
        own_rpm=rpm,
        own_budget_usd=budget_usd,
        tags={},
        issued_at=int(time.time() - age),
        expires=time.time() + 600,
    )


def make_entry(when: datetime, usd: float) -> LedgerEntry:
    """Return a ledger entry of the key `k`."""
    return LedgerEntry(
        time=when.isoformat(),
        request_id="req_1",
        key_id="k",
        key_name="shop",
        endpoint="/v1/chat/completions",
        attempts=1,
        status="ok",
        http_status=200,
        cost_usd=usd,
        latency_ms=1.0,
    )


class LimiterHarness:
    """A rate limiter with its dependencies."""

    def __init__(
        self,
        settings: LimitSettings,
        database_thread: DatabaseThread,
        redis: RedisClient | None,
        chain: tuple[Backend, ...],
    ) -> None:
        self.database_thread = database_thread
        self.shared = RedisCounters(redis) if redis else None
        self.counters = InProcessCounters()
        self.limiter = RateLimiter(settings, self.counters, PriceTable(chain), database_thread, self.shared)
        self.limiter.start()

    async def admit(self, key: ApiKey, request: RoutingInfo, chain: tuple[Backend, ...]) -> Reservation | SvcError:
        """Return a reservation or the error."""
        outcome: asyncio.Future[Reservation | SvcError] = asyncio.get_running_loop().create_future()
        self.limiter.admit(key, request, RequestBody(RAW), chain, outcome.set_result)
        return await asyncio.wait_for(outcome, 10)

    async def reserve(self, key: ApiKey, request: RoutingInfo, chain: tuple[Backend, ...]) -> Reservation:
        found = await self.admit(key, request, chain)
        assert isinstance(found, Reservation), found
        return found

    async def expect_rejection(self, key: ApiKey, request: RoutingInfo, chain: tuple[Backend, ...]) -> RateLimited:
        found = await self.admit(key, request, chain)
        assert isinstance(found, RateLimited), found
        return found

    async def usage(self, key: ApiKey) -> LimitUsage:
        (found,) = await self.limiter.current_usage([KeyLimits(key_id=key.id, period=key.budget_period)])
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


@pytest_asyncio.fixture(params=["memory", "redis"])
async def redis(request: pytest.FixtureRequest) -> AsyncIterator[RedisClient | None]:
    if request.param == "memory":
        yield None
        return
    server: RedisServer = request.getfixturevalue("server")
    server.tell("FLUSHALL")
    found = open_redis(server.url)
    await found.start()
    yield found
    await found.close()


@pytest_asyncio.fixture
async def harness(redis: RedisClient | None, tmp_path: Path) -> AsyncIterator[LimiterHarness]:
    database_thread = DatabaseThread(open_state_database({}, tmp_path), "books")
    found = LimiterHarness(LimitSettings(), database_thread, redis, backends_of(CHEAP, EXPENSIVE, FREE, OPEN))
    yield found
    await found.limiter.close()
    await database_thread.close()


async def test_rate_limiter_rpm_exceeded_is_rejected_with_headers(harness: LimiterHarness) -> None:
    key, chain = ApiKey("k", "shop", rpm=2), backends_of(CHEAP)
    first, second = [await harness.reserve(key, routing_info(), chain) for _ in range(2)]
    assert "x-ratelimit-limit-requests: 2\r\nx-ratelimit-remaining-requests: 1\r\n" in first.header_lines
    assert "x-ratelimit-remaining-requests: 0\r\n" in second.header_lines
    assert "tokens" not in first.header_lines
    error = await harness.expect_rejection(key, routing_info(), chain)
    assert (error.limit, error.status) == ("rpm", 429)
    assert "2 requests per minute (rpm)" in error.message
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(error.headers["retry-after"]) <= 61
    await harness.reserve(ApiKey("other", "other", rpm=2), routing_info(), chain)


async def test_rate_limiter_day_begins_while_limits_are_computed_ends_old_period(
    harness: LimiterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, midnight = ApiKey("k", "shop", budget_usd=1.0, budget_period="day"), 20_000 * 86_400
    times = itertools.chain([midnight - 0.001], itertools.repeat(midnight + 60.0))
    monkeypatch.setattr(time, "time", lambda: next(times))
    harness.limiter._limits_of(key)
    period_start = harness.limiter._limits_of(key).period_start
    monkeypatch.undo()
    assert period_start == midnight


async def test_rate_limiter_attempts_without_a_key_are_limited_by_name(harness: LimiterHarness) -> None:
    for _ in range(2):
        await harness.limiter.count_attempt("login:192.0.2.1", 2)
    with pytest.raises(RateLimited) as caught:
        await harness.limiter.count_attempt("login:192.0.2.1", 2)
    assert 1 <= caught.value.retry_after <= 61
    await harness.limiter.count_attempt("login:192.0.2.2", 2)
    (usage,) = await harness.limiter.current_usage([KeyLimits(key_id="login:192.0.2.1")])
    assert (usage.requests, usage.running) == (2, 0)


@pytest.mark.parametrize("redis", ["redis"], indirect=True)
async def test_rate_limiter_usage_with_a_damaged_key_is_local_for_this_key_only(
    harness: LimiterHarness, redis: RedisClient
) -> None:
    names = ("a", "b", "c")
    for name in names:
        await harness.reserve(ApiKey(name, name, rpm=9), routing_info(), backends_of(CHEAP))
    await redis.execute("HINCRBY", "svc:key:a", "requests", "5")
    await redis.execute("SET", "svc:key:b", "text")
    usages = await harness.limiter.current_usage([KeyLimits(key_id=name) for name in names])
    assert [usage.requests for usage in usages] == [6, 1, 1]


async def test_rate_limiter_tpm_reserves_prompt_and_longest_completion(harness: LimiterHarness) -> None:
    key = ApiKey("k", "shop", tpm=10_000)
    reservation = await harness.reserve(key, routing_info(400), backends_of(CHEAP))
    assert "x-ratelimit-limit-tokens: 10000\r\nx-ratelimit-remaining-tokens: 9500\r\n" in reservation.header_lines
    reservation = await harness.reserve(key, routing_info(), backends_of(CHEAP, FREE))
    assert "remaining-tokens: 8400\r\n" in reservation.header_lines
    reservation = await harness.reserve(key, routing_info(200, choice_count=3), backends_of(CHEAP))
    assert "remaining-tokens: 7700\r\n" in reservation.header_lines
    reservation = await harness.reserve(key, routing_info(200, min_reserved_tokens=900), backends_of(CHEAP))
    assert "remaining-tokens: 6700\r\n" in reservation.header_lines
    error = await harness.expect_rejection(key, routing_info(6601), backends_of(CHEAP))
    assert error.limit == "tpm"
    assert "10000 tokens per minute (tpm)" in error.message
    await harness.reserve(key, routing_info(6600), backends_of(CHEAP))


async def test_rate_limiter_tpm_unknown_completion_length_reserves_assumed_tokens(harness: LimiterHarness) -> None:
    small, large = ApiKey("k", "shop", tpm=1000), ApiKey("l", "shop", tpm=100_000)
    reservation = await harness.reserve(small, routing_info(), backends_of(OPEN))
    assert "remaining-tokens: 800\r\n" in reservation.header_lines  # the prompt and a tenth of the limit
    reservation = await harness.reserve(large, routing_info(), backends_of(OPEN))
    assert f"remaining-tokens: {100_000 - PROMPT - ASSUMED_OUTPUT_TOKENS}\r\n" in reservation.header_lines


async def test_rate_limiter_committed_tokens_replace_reservation(harness: LimiterHarness) -> None:
    key, chain = ApiKey("k", "shop", tpm=1000), backends_of(CHEAP)
    reservation = await harness.reserve(key, routing_info(900), chain)
    assert (await harness.expect_rejection(key, routing_info(1), chain)).limit == "tpm"
    reservation.commit(150, 0.0)
    reservation.commit(900, 0.0)  # a second commit does nothing
    reservation = await harness.reserve(key, routing_info(100), chain)
    assert "remaining-tokens: 650\r\n" in reservation.header_lines


async def test_rate_limiter_concurrency_is_freed_by_commit(harness: LimiterHarness) -> None:
    key, chain = ApiKey("k", "shop", concurrency=1), backends_of(CHEAP)
    reservation = await harness.reserve(key, routing_info(), chain)
    error = await harness.expect_rejection(key, routing_info(), chain)
    assert (error.limit, error.headers["retry-after"]) == ("concurrency", "1")
    reservation.commit(0, 0.0)
    await harness.reserve(key, routing_info(), chain)


async def test_rate_limiter_budget_reserves_highest_cost_and_commits_actual_cost(harness: LimiterHarness) -> None:
    key = ApiKey("k", "shop", budget_usd=0.03)
    chain = backends_of(CHEAP, EXPENSIVE, FREE)
    reservation = await harness.reserve(key, routing_info(1000), chain)  # at the highest price: 0.0202
    assert (await harness.usage(key)).reserved_nano_usd == 20_200_000
    error = await harness.expect_rejection(key, routing_info(1000), chain)
    assert error.limit == "budget"
    assert "reserved by running requests" in error.message
    assert error.headers["retry-after"] == "1"
    reservation.commit(500, 0.012)
    reservation = await harness.reserve(key, routing_info(800), chain)
    reservation.commit(500, 0.018)
    assert (await harness.usage(key)).spent_nano_usd == 30_000_000
    error = await harness.expect_rejection(key, routing_info(1), chain)
    assert "$0.03, is used up or too small" in error.message
    assert (error.type, error.headers["x-should-retry"]) == ("insufficient_quota", "false")
    assert "retry-after" not in error.headers


async def test_rate_limiter_budget_nearly_spent_admits_smaller_request(harness: LimiterHarness) -> None:
    key, chain = ApiKey("k", "shop", budget_usd=0.03), backends_of(CHEAP)
    (await harness.reserve(key, routing_info(1000), chain)).commit(500, 0.025)
    error = await harness.expect_rejection(key, routing_info(1000), chain)  # 0.0101
    assert "too small for this request (budget). A lower limit of output tokens may fit." in error.message
    await harness.reserve(key, routing_info(400), chain)


async def test_rate_limiter_request_without_completion_reserves_prompt_only(harness: LimiterHarness) -> None:
    info, chain = RoutingInfo(model="m", has_completion=False), backends_of(CHEAP)
    key = ApiKey("k", "shop", tpm=PROMPT + 1, budget_usd=0.001)
    reservation = await harness.reserve(key, info, chain)
    assert "remaining-tokens: 1\r\n" in reservation.header_lines
    assert (await harness.usage(key)).reserved_nano_usd == PROMPT * 1000
    with pytest.raises(InvalidRequest, match="more than the 99 tokens per minute of this key: send less") as caught:
        await harness.reserve(ApiKey("l", "shop", tpm=PROMPT - 1), info, chain)
    assert caught.value.param is None


async def test_rate_limiter_budget_unknown_price_reserves_nothing(harness: LimiterHarness) -> None:
    key = ApiKey("k", "shop", budget_usd=0.001)
    reservation = await harness.reserve(key, routing_info(50), backends_of(FREE))
    assert (await harness.usage(key)).reserved_nano_usd <= 1
    reservation.commit(50, 0.0)
    await harness.reserve(key, routing_info(50), backends_of(FREE))


async def test_rate_limiter_budget_unknown_completion_length_reserves_a_tenth(harness: LimiterHarness) -> None:
    key = ApiKey("k", "shop", budget_usd=0.01)
    await harness.reserve(key, routing_info(), backends_of(OPEN))
    # the prompt's price and a tenth of the budget
    assert (await harness.usage(key)).reserved_nano_usd == 100_000 + 1_000_000


async def test_rate_limiter_request_larger_than_limit_raises_invalid_request(harness: LimiterHarness) -> None:
    chain = backends_of(CHEAP)
    with pytest.raises(InvalidRequest, match="may use 1100 tokens, more than the 1000 tokens per minute"):
        harness.limiter.admit(
            ApiKey("k", "shop", tpm=1000), routing_info(1000), RequestBody(RAW), chain, lambda outcome: None
        )
    with pytest.raises(InvalidRequest, match=r"may cost \$0\.010100, more than the whole budget") as caught:
        harness.limiter.admit(
            ApiKey("l", "shop", budget_usd=0.01), routing_info(1000), RequestBody(RAW), chain, lambda outcome: None
        )
    assert caught.value.param == "max_tokens"


async def test_rate_limiter_unbounded_completion_with_token_limit_is_rejected(harness: LimiterHarness) -> None:
    unbounded_field = routing_info(unbounded_field="n_predict")
    with pytest.raises(InvalidRequest) as caught:
        harness.limiter.admit(
            ApiKey("k", "shop", tpm=1000), unbounded_field, RequestBody(RAW), backends_of(CHEAP), lambda outcome: None
        )
    assert caught.value.param == "n_predict"
    await harness.reserve(ApiKey("l", "shop", rpm=10), unbounded_field, backends_of(CHEAP))


async def test_rate_limiter_unmetered_request_counts_but_reserves_no_tokens(harness: LimiterHarness) -> None:
    key = ApiKey("k", "shop", rpm=1, tpm=10, concurrency=1)
    outcome: asyncio.Future[Reservation | SvcError] = asyncio.get_running_loop().create_future()
    harness.limiter.admit_unmetered(key, outcome.set_result)
    reservation = await asyncio.wait_for(outcome, 10)
    assert isinstance(reservation, Reservation)
    assert "limit-tokens" not in reservation.header_lines
    found = await harness.usage(key)
    assert (found.requests, found.tokens, found.running) == (1, 0, 1)
    reservation.commit(0, 0.0)
    assert (await harness.usage(key)).running == 0


async def test_rate_limiter_default_limits_apply_to_keys_without_own(redis: RedisClient | None, tmp_path: Path) -> None:
    database_thread = DatabaseThread(open_state_database({}, tmp_path), "books")
    chain = backends_of(CHEAP)
    harness = LimiterHarness(LimitSettings(rpm=1, tpm=5000), database_thread, redis, chain)
    plain, own = ApiKey("plain", "shop"), ApiKey("own", "shop", rpm=3, tpm=9000)
    assert harness.limiter.has_limits(plain)
    reservation = await harness.reserve(plain, routing_info(400), chain)
    assert "limit-requests: 1\r\n" in reservation.header_lines
    assert "limit-tokens: 5000\r\n" in reservation.header_lines
    reservation = await harness.reserve(own, routing_info(400), chain)
    assert "limit-requests: 3\r\n" in reservation.header_lines
    assert "limit-tokens: 9000\r\n" in reservation.header_lines
    await harness.limiter.close()
    await database_thread.close()


@pytest.mark.parametrize(
    ("key", "limited"),
    [
        (ApiKey("k", "shop"), False),
        (ApiKey("k", "shop", rpm=1), True),
        (ApiKey("k", "shop", tpm=1), True),
        (ApiKey("k", "shop", concurrency=1), True),
        (ApiKey("k", "shop", budget_usd=0.0), True),
    ],
)
async def test_rate_limiter_has_limits_is_true_with_any_limit(
    harness: LimiterHarness, key: ApiKey, limited: bool
) -> None:
    assert harness.limiter.has_limits(key) is limited


async def test_rate_limiter_two_instances_share_limits_only_through_redis(
    redis: RedisClient | None, tmp_path: Path
) -> None:
    database_thread, chain = DatabaseThread(open_state_database({}, tmp_path), "books"), backends_of(CHEAP)
    one, two = (LimiterHarness(LimitSettings(), database_thread, redis, chain) for _ in range(2))
    key = ApiKey("k", "shop", rpm=1)
    await one.reserve(key, routing_info(), chain)
    found = await two.admit(key, routing_info(), chain)
    assert isinstance(found, Reservation if redis is None else RateLimited)
    for harness in (one, two):
        await harness.limiter.close()
    await database_thread.close()


async def test_rate_limiter_redis_down_counts_locally(server: RedisServer, tmp_path: Path) -> None:
    server.tell("FLUSHALL")
    redis = open_redis(server.url)
    await redis.start()
    database_thread, chain = DatabaseThread(open_state_database({}, tmp_path), "books"), backends_of(CHEAP)
    harness = LimiterHarness(LimitSettings(), database_thread, redis, chain)
    key = ApiKey("k", "shop", rpm=2, budget_usd=1.0)
    first = await harness.reserve(key, routing_info(10), chain)
    server.kill()
    second = await harness.reserve(key, routing_info(10), chain)
    assert (await harness.expect_rejection(key, routing_info(10), chain)).limit == "rpm"
    second.commit(5, 0.25)
    first.commit(5, 0.25)
    assert (await harness.usage(key)).spent_nano_usd == 500_000_000
    await harness.limiter.close()
    await redis.close()
    await database_thread.close()
    server.start()


async def test_rate_limiter_earlier_spending_is_read_from_ledger(harness: LimiterHarness) -> None:
    key, chain = ApiKey("k", "shop", budget_usd=1.0), backends_of(CHEAP)
    await harness.database_thread.run_query(
        lambda database: database.insert_entries([make_entry(datetime.now(UTC), 0.995)])
    )
    assert (await harness.expect_rejection(key, routing_info(1000), chain)).limit == "budget"
    reservation = await harness.reserve(key, routing_info(100), chain)
    assert (await harness.usage(key)).spent_nano_usd == 995_000_000
    reservation.commit(10, 0.001)
    assert (await harness.usage(key)).spent_nano_usd == 996_000_000


@pytest.mark.parametrize("redis", ["redis"], indirect=True)
async def test_rate_limiter_budget_that_redis_has_lost_is_read_from_the_ledger_after_a_connect(
    harness: LimiterHarness, server: RedisServer
) -> None:
    key, chain, limits = ApiKey("k", "shop", budget_usd=1.0), backends_of(CHEAP), KeyLimits(key_id="k")
    (await harness.reserve(key, routing_info(100), chain)).commit(10, 0.001)
    await harness.database_thread.run_query(
        lambda database: database.insert_entries([make_entry(datetime.now(UTC), 0.9)])
    )
    server.tell("CLIENT KILL TYPE normal")
    deadline = time.monotonic() + 20
    spent = None
    while spent != 900_000_000 - ROUNDING_NANO_USD:
        assert time.monotonic() < deadline, spent
        await asyncio.sleep(0.1)
        (await harness.reserve(key, routing_info(1), chain)).commit(0, 0.0)
        (usage,) = await harness.limiter.current_usage([limits])
        spent = usage.spent_nano_usd


async def test_rate_limiter_daily_budget_excludes_earlier_days(harness: LimiterHarness) -> None:
    chain = backends_of(CHEAP)
    await harness.database_thread.run_query(
        lambda database: database.insert_entries([make_entry(datetime.now(UTC) - timedelta(days=2), 0.995)])
    )
    daily = ApiKey("k", "shop", budget_usd=1.0, budget_period="day")
    await harness.reserve(daily, routing_info(1000), chain)
    assert (await harness.usage(daily)).spent_nano_usd == 0


async def test_rate_limiter_count_request_counts_toward_rpm_only(harness: LimiterHarness) -> None:
    key = ApiKey("k", "shop", rpm=2, tpm=100_000, concurrency=1)
    outcome: asyncio.Future[Reservation | SvcError] = asyncio.get_running_loop().create_future()
    harness.limiter.count_request(key, outcome.set_result)
    counted = await asyncio.wait_for(outcome, 10)
    assert isinstance(counted, Reservation)
    counted.commit(0, 0.0)
    reservation = await harness.reserve(key, routing_info(10), backends_of(CHEAP))
    assert "remaining-requests: 0\r\n" in reservation.header_lines
    assert f"remaining-tokens: {100_000 - PROMPT - 10}\r\n" in reservation.header_lines
    reservation.commit(0, 0.0)
    assert (await harness.expect_rejection(key, routing_info(10), backends_of(CHEAP))).limit == "rpm"
    assert harness.limiter.has_request_limit(key)
    assert not harness.limiter.has_request_limit(ApiKey("l", "shop", tpm=1))


async def test_rate_limiter_check_request_rate_exhausted_key_raises_rate_limited(harness: LimiterHarness) -> None:
    key = ApiKey("k", "shop", rpm=1)
    harness.limiter.check_request_rate(key)
    harness.limiter.check_request_rate(key)  # counts nothing
    await harness.reserve(key, routing_info(), backends_of(CHEAP))
    with pytest.raises(RateLimited) as caught:
        harness.limiter.check_request_rate(key)
    assert caught.value.limit == "rpm"
    assert ": 1 request per minute (rpm)" in caught.value.message
    harness.limiter.check_request_rate(ApiKey("l", "shop"))


async def test_rate_limiter_database_down_counts_budget_from_zero(
    redis: RedisClient | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = "postgresql://127.0.0.1:1/none?connect_timeout=1"
    database_thread, chain = (
        DatabaseThread(open_state_database({"SVC_DATABASE_URL": url}, tmp_path), "books"),
        backends_of(CHEAP),
    )
    harness = LimiterHarness(LimitSettings(), database_thread, redis, chain)
    key = ApiKey("k", "shop", budget_usd=0.005)
    reservation = await harness.reserve(key, routing_info(400), chain)
    assert (await harness.expect_rejection(key, routing_info(400), chain)).limit == "budget"
    reservation.commit(0, 0.0)
    await harness.reserve(key, routing_info(400), chain)
    assert caplog.text.count("the budget of key k is counted from 0") == 1
    await harness.limiter.close()
    await database_thread.close()


async def test_rate_limiter_database_available_again_is_read_under_steady_traffic(
    redis: RedisClient | None, tmp_path: Path
) -> None:
    """Requests that skip the query of a database that has just failed do not extend the time of the next query."""
    folder, chain = tmp_path / "later", backends_of(CHEAP)
    folder.write_bytes(b"")
    database_thread = DatabaseThread(open_state_database({"SVC_DATABASE_URL": f"sqlite:///{folder}/b.db"}, tmp_path))
    harness = LimiterHarness(LimitSettings(), database_thread, redis, chain)
    key, limits = ApiKey("k", "shop", budget_usd=0.005), KeyLimits(key_id="k", budget_nano_usd=5_000_000)
    (await harness.reserve(key, routing_info(400), chain)).commit(0, 0.0)
    assert harness.limiter._counters.needs_spent(limits)
    folder.unlink()
    folder.mkdir()
    deadline = time.monotonic() + 4 * spent_query.DATABASE_RETRY_SECONDS
    while harness.limiter._counters.needs_spent(limits):
        assert time.monotonic() < deadline
        (await harness.reserve(key, routing_info(400), chain)).commit(0, 0.0)
        await asyncio.sleep(spent_query.DATABASE_RETRY_SECONDS / 5)
    await harness.limiter.close()
    await database_thread.close()


async def test_rate_limiter_ephemeral_key_counts_for_itself_and_its_parent(harness: LimiterHarness) -> None:
    parent, chain = ApiKey("k", "shop", rpm=3, tpm=10_000), backends_of(CHEAP)
    key, neighbour = ephemeral_key(parent, rpm=2), ephemeral_key(parent)
    reservation = await harness.reserve(key, routing_info(400), chain)
    assert "x-ratelimit-limit-requests: 2\r\nx-ratelimit-remaining-requests: 1\r\n" in reservation.header_lines
    assert reservation.header_lines.count("limit-requests") == 1
    assert "x-ratelimit-limit-tokens: 10000\r\nx-ratelimit-remaining-tokens: 9500\r\n" in reservation.header_lines
    await harness.reserve(key, routing_info(400), chain)
    for _ in range(3):  # the parent does not count these
        assert "2 requests per minute" in (await harness.expect_rejection(key, routing_info(1), chain)).message
    await harness.reserve(neighbour, routing_info(400), chain)
    assert "3 requests per minute" in (await harness.expect_rejection(neighbour, routing_info(1), chain)).message
    assert (await harness.usage(parent)).requests == 3
    assert (await harness.expect_rejection(parent, routing_info(1), chain)).limit == "rpm"


@pytest.mark.parametrize("is_ephemeral", [False, True])
@pytest.mark.skipif(not str(rate_limiter.__file__).endswith(".so"), reason="only mypyc makes cycles of functions")
async def test_rate_limiter_requests_leave_no_reference_cycles(harness: LimiterHarness, is_ephemeral: bool) -> None:
    key: ApiKey = ApiKey("k", "shop", rpm=1000, tpm=10**6, concurrency=10, budget_usd=100.0)
    key, chain, requests = ephemeral_key(key, rpm=1000) if is_ephemeral else key, backends_of(CHEAP), 50
    (await harness.reserve(key, routing_info(10), chain)).commit(10, 0.001)
    gc.collect()
    gc.disable()
    try:
        for _ in range(requests):
            (await harness.reserve(key, routing_info(10), chain)).commit(10, 0.001)
        assert gc.collect() < requests
    finally:
        gc.enable()


async def test_rate_limiter_ephemeral_key_rejected_by_its_parent_reserves_nothing(harness: LimiterHarness) -> None:
    parent, chain = ApiKey("k", "shop", concurrency=1), backends_of(CHEAP)
    key = ephemeral_key(parent, budget_usd=0.011)
    reservation = await harness.reserve(key, routing_info(1000), chain)  # costs 0.0101
    assert (await harness.expect_rejection(key, routing_info(50), chain)).limit == "concurrency"
    reservation.commit(0, 0.0)
    reservation = await harness.reserve(key, routing_info(1000), chain)
    reservation.commit(500, 0.005)
    assert (await harness.expect_rejection(key, routing_info(1000), chain)).limit == "budget"
    reservation = await harness.reserve(key, routing_info(500), chain)
    reservation.commit(500, 0.006)
    assert "$0.011" in (await harness.expect_rejection(key, routing_info(1), chain)).message
    await harness.reserve(parent, routing_info(1000), chain)


async def test_rate_limiter_ephemeral_key_spends_the_budget_of_its_parent(harness: LimiterHarness) -> None:
    parent, chain = ApiKey("k", "shop", budget_usd=0.011), backends_of(CHEAP)
    first, second = ephemeral_key(parent, budget_usd=0.01), ephemeral_key(parent)
    (await harness.reserve(first, routing_info(900), chain)).commit(500, 0.009)
    assert (await harness.usage(parent)).spent_nano_usd == 9_000_000
    (await harness.reserve(second, routing_info(50), chain)).commit(500, 0.002)
    for key in (first, second, parent):
        assert (await harness.expect_rejection(key, routing_info(1), chain)).limit == "budget"


async def test_rate_limiter_ephemeral_budget_includes_what_the_database_has(harness: LimiterHarness) -> None:
    parent, chain = ApiKey("k", "shop"), backends_of(CHEAP)
    key, neighbour = ephemeral_key(parent, budget_usd=0.01, age=100), ephemeral_key(parent, budget_usd=0.01, age=100)
    entry = msgspec.structs.replace(make_entry(datetime.now(UTC), 0.0095), ephemeral_id=key.ephemeral_id)
    await harness.database_thread.run_query(lambda database: (database.migrate(), database.insert_entries([entry])))
    assert (await harness.expect_rejection(key, routing_info(100), chain)).limit == "budget"
    await harness.reserve(neighbour, routing_info(100), chain)
    with pytest.raises(InvalidRequest, match="whole budget"):
        await harness.admit(key, routing_info(1000), backends_of(EXPENSIVE))


async def test_rate_limiter_ephemeral_key_without_own_limits_or_parent_limits_reserves(harness: LimiterHarness) -> None:
    key = ephemeral_key(ApiKey("k", "shop"))
    assert not harness.limiter.has_limits(key)
    assert not harness.limiter.has_request_limit(key)
    limited = ephemeral_key(ApiKey("k", "shop"), rpm=1)
    assert harness.limiter.has_limits(limited)
    assert harness.limiter.has_request_limit(limited)
    (await harness.reserve(limited, routing_info(), backends_of(CHEAP))).commit(5, 0.0)
    with pytest.raises(RateLimited):
        harness.limiter.check_request_rate(limited)
    harness.limiter.check_request_rate(key)


@pytest.mark.parametrize("count", ["count_request", "admit_unmetered"])
async def test_rate_limiter_ephemeral_request_without_tokens_counts_twice(harness: LimiterHarness, count: str) -> None:
    parent = ApiKey("k", "shop", rpm=3)
    key = ephemeral_key(parent, rpm=2)
    found: list[Reservation | SvcError] = []
    for number in range(1, 5):
        getattr(harness.limiter, count)(key if number < 4 else parent, found.append)
        while len(found) < number:
            await asyncio.sleep(0.01)
    assert [isinstance(each, SvcError) for each in found] == [False, False, True, False]
    assert (await harness.usage(parent)).requests == 3
