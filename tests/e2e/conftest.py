"""A gateway with three fake providers behind it for the ordinary tests, and a factory for those that need settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import anthropic
import openai
import pytest

from tests.e2e.harness import Gateway, provider_environment
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.openai_wire import GROQ_REJECTS, OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.redis_server import RedisServer

StartGateway = Callable[..., Gateway]
Nodes = Callable[..., Gateway]


@pytest.fixture(scope="session")
def all_fakes() -> Iterator[Mapping[str, FakeProvider]]:
    """Providers A, B and C, by letter. Tests use `provider_a` and so on, which are reset for every test."""
    with contextlib.ExitStack() as stack:
        yield {
            "A": stack.enter_context(FakeProvider(OpenAIWire(), key="sk-upstream-a-secret")),
            "B": stack.enter_context(FakeProvider(AnthropicWire(), key="sk-ant-upstream-b-secret")),
            "C": stack.enter_context(FakeProvider(OpenAIWire(rejects=GROQ_REJECTS), key="gsk_upstream_c_secret")),
        }


@pytest.fixture
def fakes(all_fakes: Mapping[str, FakeProvider]) -> Iterator[Mapping[str, FakeProvider]]:
    """Reset fakes. No fake may have rejected a request: a test that expects a rejection clears `complaints`."""
    for fake in all_fakes.values():
        fake.forget()
    yield all_fakes
    complaints = {letter: list(fake.complaints) for letter, fake in all_fakes.items() if fake.complaints}
    for fake in all_fakes.values():
        fake.forget()
    assert complaints == {}, "a fake upstream rejected a request of the gateway"


@pytest.fixture
def provider_a(fakes: Mapping[str, FakeProvider]) -> FakeProvider:
    return fakes["A"]


@pytest.fixture
def provider_b(fakes: Mapping[str, FakeProvider]) -> FakeProvider:
    return fakes["B"]


@pytest.fixture
def provider_c(fakes: Mapping[str, FakeProvider]) -> FakeProvider:
    return fakes["C"]


def serve(fakes: Mapping[str, FakeProvider], home: Path, config: str | None = None) -> Iterator[Gateway]:
    """Run one process for many tests. It must exit with 0, and its log must hold no secret and no traceback."""
    one = Gateway(home, env=provider_environment(fakes), config=config, is_forked=True).start()
    yield one
    assert one.stop() == 0, one.log
    written = one.log
    assert not [fake.key for fake in fakes.values() if fake.key in written]
    assert one.key not in written
    assert "Traceback" not in written


@pytest.fixture(scope="session")
def shared_gateway(
    all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with default settings, without a configuration file."""
    yield from serve(all_fakes, tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="session")
def session_without_retries(
    all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    yield from serve(all_fakes, tmp_path_factory.mktemp("gateway"), "[routing]\nretries = 0\nbreaker = false\n")


@pytest.fixture
def gateway_without_retries(session_without_retries: Gateway, fakes: Mapping[str, FakeProvider]) -> Gateway:
    """A gateway without retries and circuit breaker: faults are visible immediately."""
    return session_without_retries


@pytest.fixture
def gateway(shared_gateway: Gateway, fakes: Mapping[str, FakeProvider]) -> Gateway:
    """The shared gateway, with reset fake providers."""
    return shared_gateway


@pytest.fixture
def start_gateway(fakes: Mapping[str, FakeProvider], tmp_path: Path) -> Iterator[StartGateway]:
    """`start_gateway(config=TOML, env={…})` starts another gateway in front of the same fakes."""
    running: list[Gateway] = []

    def start(*, config: str | None = None, env: Mapping[str, str] | None = None) -> Gateway:
        home = tmp_path / f"gateway{len(running)}"
        home.mkdir()
        running.append(Gateway(home, env={**provider_environment(fakes), **(env or {})}, config=config, is_forked=True))
        return running[-1].start()

    yield start
    for fake in fakes.values():
        complaints = list(fake.complaints)
        fake.forget()
        fake.complaints.extend(complaints)
    statuses = [one.stop() for one in running]
    assert statuses == [0] * len(running), "\n".join(one.log for one in running)
    assert not [one for one in running if "Traceback" in one.log]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def nodes(fakes: Mapping[str, FakeProvider], tmp_path: Path, redis: RedisServer) -> Iterator[Nodes]:
    """`nodes(TOML)` starts gateways that share only Redis."""
    started: list[Gateway] = []

    def start(config: str | None = None) -> Gateway:
        home = tmp_path / f"node{len(started)}"
        home.mkdir()
        env = {**provider_environment(fakes), "SVC_REDIS_URL": redis.url}
        started.append(Gateway(home, env=env, config=config, is_forked=True).start())
        return started[-1]

    yield start
    for one in started:
        assert one.stop() == 0
        assert "Traceback" not in one.log


@pytest.fixture
def openai_client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with gateway.openai() as client:
        yield client


@pytest.fixture
def anthropic_client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with gateway.anthropic() as client:
        yield client
