"""The limits of a key, by this machine's counters alone and with a real Redis: who is let through, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest, RateLimited, SvcError
from svc.gateway.accounting.cost import PriceTable
from svc.gateway.limits.rate_limiter import ASSUMED_OUTPUT_TOKENS, RateLimiter, Reservation
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_providers
from svc.settings import LimitSettings, ModelSettings, ProviderSettings, Settings
from svc.stores.counters.base import KeyLimits, LimitUsage
from svc.stores.counters.redis import RedisCounters
from svc.stores.counters.shared_memory import SharedCounters
from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from svc.stores.redis.connection import RedisConnection
from svc.wire.key import ApiKey
from tests.fakes.redis_server import RedisServer

RAW = b"a" * 400
PROMPT = 100
"""Its tokens, by our estimate."""


def chain_of(*models: ModelSettings) -> tuple[Backend, ...]:
    """Each model at a provider of its own."""
    entries = tuple(
        ProviderSettings(name=f"p-{model.max_output_tokens}", base_url="http://127.0.0.1:1/v1", models=(model,))
        for model in models
    )
    found = {provider.name: provider for provider in build_providers(Settings(providers=entries))}
    return tuple(offer for entry in entries for offer in build_backends(found[entry.name]))


CHEAP = ModelSettings(id="m", max_output_tokens=1000, input_price=1.0, output_price=10.0)
DEAR = ModelSettings(id="m", max_output_tokens=2000, input_price=2.0, output_price=20.0)
FREE = ModelSettings(id="m", max_output_tokens=50)
OPEN = ModelSettings(id="m", input_price=1.0, output_price=10.0)


def head(max_tokens: int | None = None, *, answers: int = 1, least: int = 0, endless: str = "") -> RoutingInfo:
    return RoutingInfo(
        model="m",
        max_tokens=max_tokens,
        choice_count=answers,
        min_reserved_tokens=least,
        unbounded_field=endless,
    )


def an_entry(when: datetime, usd: float) -> LedgerEntry:
    """Of the key `k`."""
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


class Desk:
    """A gate with all that it needs, and what it says."""

    def __init__(
        self, settings: LimitSettings, books: DatabaseThread, redis: RedisConnection | None, chain: tuple[Backend, ...]
    ) -> None:
        self.books = books
        self.shared = RedisCounters(redis) if redis else None
        self.counters = SharedCounters()
        self.gate = RateLimiter(settings, self.counters, PriceTable(chain), books, self.shared)
        self.gate.start()

    async def ask(self, key: ApiKey, request: RoutingInfo, chain: tuple[Backend, ...]) -> Reservation | SvcError:
        """A lease, or the refusal."""
        said: asyncio.Future[Reservation | SvcError] = asyncio.get_running_loop().create_future()
        self.gate.admit(key, request, RequestBody(RAW), chain, said.set_result)
        return await asyncio.wait_for(said, 10)

    async def lease(self, key: ApiKey, request: RoutingInfo, chain: tuple[Backend, ...]) -> Reservation:
        found = await self.ask(key, request, chain)
        assert isinstance(found, Reservation), found
        return found

    async def denied(self, key: ApiKey, request: RoutingInfo, chain: tuple[Backend, ...]) -> RateLimited:
        found = await self.ask(key, request, chain)
        assert isinstance(found, RateLimited), found
        return found

    async def used(self, key: ApiKey) -> LimitUsage:
        (found,) = await self.gate.current_usage([KeyLimits(key_id=key.id, period=key.budget_period)])
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


@pytest_asyncio.fixture(params=["memory", "redis"])
async def redis(request: pytest.FixtureRequest) -> AsyncIterator[RedisConnection | None]:
    if request.param == "memory":
        yield None
        return
    server: RedisServer = request.getfixturevalue("server")
    server.tell("FLUSHALL")
    found = RedisConnection(server.url)
    await found.start()
    yield found
    await found.close()


@pytest_asyncio.fixture
async def desk(redis: RedisConnection | None, tmp_path: Path) -> AsyncIterator[Desk]:
    books = DatabaseThread(open_state_database({}, tmp_path), "books")
    found = Desk(LimitSettings(), books, redis, chain_of(CHEAP, DEAR, FREE, OPEN))
    yield found
    await found.gate.close()
    await books.close()


async def test_gate_requests_are_counted_and_refused_with_what_is_left(desk: Desk) -> None:
    key, chain = ApiKey("k", "shop", rpm=2), chain_of(CHEAP)
    first, second = [await desk.lease(key, head(), chain) for _ in range(2)]
    assert "x-ratelimit-limit-requests: 2\r\nx-ratelimit-remaining-requests: 1\r\n" in first.header_lines
    assert "x-ratelimit-remaining-requests: 0\r\n" in second.header_lines
    assert "tokens" not in first.header_lines
    error = await desk.denied(key, head(), chain)
    assert (error.limit, error.status) == ("rpm", 429)
    assert "2 requests per minute (rpm)" in error.message
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(error.headers["retry-after"]) <= 61
    await desk.lease(ApiKey("other", "other", rpm=2), head(), chain)


async def test_gate_tokens_are_prompt_and_longest_answer(desk: Desk) -> None:
    key = ApiKey("k", "shop", tpm=10_000)
    lease = await desk.lease(key, head(400), chain_of(CHEAP))
    assert "x-ratelimit-limit-tokens: 10000\r\nx-ratelimit-remaining-tokens: 9500\r\n" in lease.header_lines
    lease = await desk.lease(key, head(), chain_of(CHEAP, FREE))
    assert "remaining-tokens: 8400\r\n" in lease.header_lines
    lease = await desk.lease(key, head(200, answers=3), chain_of(CHEAP))
    assert "remaining-tokens: 7700\r\n" in lease.header_lines
    lease = await desk.lease(key, head(200, least=900), chain_of(CHEAP))
    assert "remaining-tokens: 6700\r\n" in lease.header_lines
    error = await desk.denied(key, head(6601), chain_of(CHEAP))
    assert error.limit == "tpm"
    assert "10000 tokens per minute (tpm)" in error.message
    await desk.lease(key, head(6600), chain_of(CHEAP))


async def test_gate_answer_of_unknown_length_reserves_little(desk: Desk) -> None:
    small, large = ApiKey("k", "shop", tpm=1000), ApiKey("l", "shop", tpm=100_000)
    lease = await desk.lease(small, head(), chain_of(OPEN))
    assert "remaining-tokens: 800\r\n" in lease.header_lines  # the prompt, and a tenth of the limit
    lease = await desk.lease(large, head(), chain_of(OPEN))
    assert f"remaining-tokens: {100_000 - PROMPT - ASSUMED_OUTPUT_TOKENS}\r\n" in lease.header_lines


async def test_gate_settled_tokens_take_the_reservations_place(desk: Desk) -> None:
    key, chain = ApiKey("k", "shop", tpm=1000), chain_of(CHEAP)
    lease = await desk.lease(key, head(900), chain)
    assert (await desk.denied(key, head(1), chain)).limit == "tpm"
    lease.commit(150, 0.0)
    lease.commit(900, 0.0)  # twice is the same as once
    lease = await desk.lease(key, head(100), chain)
    assert "remaining-tokens: 650\r\n" in lease.header_lines


async def test_gate_concurrency_ends_with_the_lease(desk: Desk) -> None:
    key, chain = ApiKey("k", "shop", concurrency=1), chain_of(CHEAP)
    lease = await desk.lease(key, head(), chain)
    error = await desk.denied(key, head(), chain)
    assert (error.limit, error.headers["retry-after"]) == ("concurrency", "1")
    lease.commit(0, 0.0)
    await desk.lease(key, head(), chain)


async def test_gate_budget_reserves_the_dearest_and_keeps_what_was_spent(desk: Desk) -> None:
    key = ApiKey("k", "shop", budget_usd=0.03)
    chain = chain_of(CHEAP, DEAR, FREE)
    lease = await desk.lease(key, head(1000), chain)  # at the dearest: 0.0202
    assert (await desk.used(key)).reserved_nano_usd == 20_200_000
    error = await desk.denied(key, head(1000), chain)
    assert error.limit == "budget"
    assert "reserved by running requests" in error.message
    assert error.headers["retry-after"] == "1"
    lease.commit(500, 0.012)
    lease = await desk.lease(key, head(800), chain)
    lease.commit(500, 0.018)
    assert (await desk.used(key)).spent_nano_usd == 30_000_000
    error = await desk.denied(key, head(1), chain)
    assert "$0.03, is spent or has too little left" in error.message
    assert (error.type, error.headers["x-should-retry"]) == ("insufficient_quota", "false")
    assert "retry-after" not in error.headers


async def test_gate_budget_with_too_little_left_fits_a_smaller_request(desk: Desk) -> None:
    key, chain = ApiKey("k", "shop", budget_usd=0.03), chain_of(CHEAP)
    (await desk.lease(key, head(1000), chain)).commit(500, 0.025)
    error = await desk.denied(key, head(1000), chain)  # 0.0101
    assert "has too little left for this request (budget). A smaller max_tokens may fit." in error.message
    await desk.lease(key, head(400), chain)


async def test_gate_without_a_completion_reserves_the_prompt_alone(desk: Desk) -> None:
    info, chain = RoutingInfo(model="m", has_completion=False), chain_of(CHEAP)
    key = ApiKey("k", "shop", tpm=PROMPT + 1, budget_usd=0.001)
    lease = await desk.lease(key, info, chain)
    assert "remaining-tokens: 1\r\n" in lease.header_lines
    assert (await desk.used(key)).reserved_nano_usd == PROMPT * 1000
    with pytest.raises(InvalidRequest, match="more than the 99 a minute of this key: send less") as caught:
        await desk.lease(ApiKey("l", "shop", tpm=PROMPT - 1), info, chain)
    assert caught.value.param is None


async def test_gate_budget_unknown_price_reserves_nothing(desk: Desk) -> None:
    key = ApiKey("k", "shop", budget_usd=0.001)
    lease = await desk.lease(key, head(50), chain_of(FREE))
    assert (await desk.used(key)).reserved_nano_usd <= 1
    lease.commit(50, 0.0)
    await desk.lease(key, head(50), chain_of(FREE))


async def test_gate_budget_answer_of_unknown_length_reserves_a_tenth(desk: Desk) -> None:
    key = ApiKey("k", "shop", budget_usd=0.01)
    await desk.lease(key, head(), chain_of(OPEN))
    assert (
        await desk.used(key)
    ).reserved_nano_usd == 100_000 + 1_000_000  # the prompt's price, and a tenth of the budget


async def test_gate_request_larger_than_the_limit_is_the_clients_fault(desk: Desk) -> None:
    chain = chain_of(CHEAP)
    with pytest.raises(InvalidRequest, match="may take 1100 tokens, more than the 1000 a minute"):
        desk.gate.admit(ApiKey("k", "shop", tpm=1000), head(1000), RequestBody(RAW), chain, lambda said: None)
    with pytest.raises(InvalidRequest, match=r"may cost \$0\.010100, more than the whole budget") as caught:
        desk.gate.admit(ApiKey("l", "shop", budget_usd=0.01), head(1000), RequestBody(RAW), chain, lambda said: None)
    assert caught.value.param == "max_tokens"


async def test_gate_answer_without_an_end_is_refused_where_tokens_are_limited(desk: Desk) -> None:
    endless = head(endless="n_predict")
    with pytest.raises(InvalidRequest) as caught:
        desk.gate.admit(ApiKey("k", "shop", tpm=1000), endless, RequestBody(RAW), chain_of(CHEAP), lambda said: None)
    assert caught.value.param == "n_predict"
    await desk.lease(ApiKey("l", "shop", rpm=10), endless, chain_of(CHEAP))


async def test_gate_free_request_counts_but_takes_no_tokens(desk: Desk) -> None:
    key = ApiKey("k", "shop", rpm=1, tpm=10, concurrency=1)
    said: asyncio.Future[Reservation | SvcError] = asyncio.get_running_loop().create_future()
    desk.gate.admit_unmetered(key, said.set_result)
    lease = await asyncio.wait_for(said, 10)
    assert isinstance(lease, Reservation)
    assert "limit-tokens" not in lease.header_lines
    found = await desk.used(key)
    assert (found.requests, found.tokens, found.running) == (1, 0, 1)
    lease.commit(0, 0.0)
    assert (await desk.used(key)).running == 0


async def test_gate_defaults_hold_for_keys_without_limits_of_their_own(
    redis: RedisConnection | None, tmp_path: Path
) -> None:
    books = DatabaseThread(open_state_database({}, tmp_path), "books")
    chain = chain_of(CHEAP)
    desk = Desk(LimitSettings(rpm=1, tpm=5000), books, redis, chain)
    plain, own = ApiKey("plain", "shop"), ApiKey("own", "shop", rpm=3, tpm=9000)
    assert desk.gate.has_limits(plain)
    lease = await desk.lease(plain, head(400), chain)
    assert "limit-requests: 1\r\n" in lease.header_lines
    assert "limit-tokens: 5000\r\n" in lease.header_lines
    lease = await desk.lease(own, head(400), chain)
    assert "limit-requests: 3\r\n" in lease.header_lines
    assert "limit-tokens: 9000\r\n" in lease.header_lines
    await desk.gate.close()
    await books.close()


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
async def test_gate_limited_is_whether_anything_counts(desk: Desk, key: ApiKey, limited: bool) -> None:
    assert desk.gate.has_limits(key) is limited


async def test_gate_two_gates_share_limits_through_redis_alone(redis: RedisConnection | None, tmp_path: Path) -> None:
    books, chain = DatabaseThread(open_state_database({}, tmp_path), "books"), chain_of(CHEAP)
    one, two = (Desk(LimitSettings(), books, redis, chain) for _ in range(2))
    key = ApiKey("k", "shop", rpm=1)
    await one.lease(key, head(), chain)
    found = await two.ask(key, head(), chain)
    assert isinstance(found, Reservation if redis is None else RateLimited)
    for desk in (one, two):
        await desk.gate.close()
    await books.close()


async def test_gate_redis_gone_counts_on_this_machine(server: RedisServer, tmp_path: Path) -> None:
    server.tell("FLUSHALL")
    redis = RedisConnection(server.url)
    await redis.start()
    books, chain = DatabaseThread(open_state_database({}, tmp_path), "books"), chain_of(CHEAP)
    desk = Desk(LimitSettings(), books, redis, chain)
    key = ApiKey("k", "shop", rpm=2, budget_usd=1.0)
    first = await desk.lease(key, head(10), chain)
    server.kill()
    second = await desk.lease(key, head(10), chain)
    assert (await desk.denied(key, head(10), chain)).limit == "rpm"
    second.commit(5, 0.25)
    first.commit(5, 0.25)
    assert (await desk.used(key)).spent_nano_usd == 500_000_000
    await desk.gate.close()
    await redis.close()
    await books.close()
    server.start()


async def test_gate_spent_before_is_asked_of_the_ledger(desk: Desk) -> None:
    key, chain = ApiKey("k", "shop", budget_usd=1.0), chain_of(CHEAP)
    await desk.books.run_query(lambda database: database.insert_entries([an_entry(datetime.now(UTC), 0.995)]))
    assert (await desk.denied(key, head(1000), chain)).limit == "budget"
    lease = await desk.lease(key, head(100), chain)
    assert (await desk.used(key)).spent_nano_usd == 995_000_000
    lease.commit(10, 0.001)
    assert (await desk.used(key)).spent_nano_usd == 996_000_000


async def test_gate_budget_of_a_day_leaves_out_what_was_spent_before_it(desk: Desk) -> None:
    chain = chain_of(CHEAP)
    await desk.books.run_query(
        lambda database: database.insert_entries([an_entry(datetime.now(UTC) - timedelta(days=2), 0.995)])
    )
    daily = ApiKey("k", "shop", budget_usd=1.0, budget_period="day")
    await desk.lease(daily, head(1000), chain)
    assert (await desk.used(daily)).spent_nano_usd == 0


async def test_gate_count_takes_a_request_and_nothing_else(desk: Desk) -> None:
    key = ApiKey("k", "shop", rpm=2, tpm=100_000, concurrency=1)
    said: asyncio.Future[Reservation | SvcError] = asyncio.get_running_loop().create_future()
    desk.gate.count_request(key, said.set_result)
    counted = await asyncio.wait_for(said, 10)
    assert isinstance(counted, Reservation)
    counted.commit(0, 0.0)
    lease = await desk.lease(key, head(10), chain_of(CHEAP))
    assert "remaining-requests: 0\r\n" in lease.header_lines
    assert f"remaining-tokens: {100_000 - PROMPT - 10}\r\n" in lease.header_lines
    lease.commit(0, 0.0)
    assert (await desk.denied(key, head(10), chain_of(CHEAP))).limit == "rpm"
    assert desk.gate.has_request_limit(key)
    assert not desk.gate.has_request_limit(ApiKey("l", "shop", tpm=1))


async def test_gate_check_refuses_a_key_without_a_request_left(desk: Desk) -> None:
    key = ApiKey("k", "shop", rpm=1)
    desk.gate.check_request_rate(key)
    desk.gate.check_request_rate(key)  # counts nothing
    await desk.lease(key, head(), chain_of(CHEAP))
    with pytest.raises(RateLimited) as caught:
        desk.gate.check_request_rate(key)
    assert caught.value.limit == "rpm"
    assert "1 requests per minute (rpm)" in caught.value.message
    desk.gate.check_request_rate(ApiKey("l", "shop"))


async def test_gate_database_that_is_down_counts_the_budget_from_nothing(
    redis: RedisConnection | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = "postgresql://127.0.0.1:1/none?connect_timeout=1"
    books, chain = DatabaseThread(open_state_database({"SVC_DATABASE_URL": url}, tmp_path), "books"), chain_of(CHEAP)
    desk = Desk(LimitSettings(), books, redis, chain)
    key = ApiKey("k", "shop", budget_usd=0.005)
    lease = await desk.lease(key, head(400), chain)
    assert (await desk.denied(key, head(400), chain)).limit == "budget"
    lease.commit(0, 0.0)
    await desk.lease(key, head(400), chain)
    assert caplog.text.count("the budget of key k is counted from 0") == 1
    await desk.gate.close()
    await books.close()
