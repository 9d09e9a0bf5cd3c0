"""Events of a `RequestObserver` in a gateway that runs in this process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from uvicorn.loops.auto import auto_loop_factory

from svc import settings, telemetry
from svc.app.gateway import create_server
from svc.app.services import gateway_services
from svc.gateway.accounting.record import AttemptRecord, RequestRecord
from svc.gateway.observability.access_log import AccessLogEntry
from svc.gateway.observability.observer import RequestObserver, RequestStart
from svc.gateway.proxy.context import GatewayContext
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, environment, provider_environment, run
from tests.fakes import openai_wire
from tests.fakes.http_client import Got, RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, pause, reset, sse, stall

FALLBACK = f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
HEDGED = f'[routing]\nhedge_after = 0.1\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'


class Recording(RequestObserver):
    """Keeps every event. `on_end` also keeps what the client had received by then, if `peek` is set."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.request_ids: set[str] = set()
        self.times_ms: list[float] = []
        self.records: list[RequestRecord] = []
        self.ended = threading.Semaphore(0)
        self.peek: Callable[[], bytes] | None = None
        self.received_by_end = b""

    def on_start(self, request: RequestStart) -> None:
        self.request_ids.add(request.request_id)
        self.events.append(("start", request.endpoint))

    def on_attempt(self, attempt: AttemptRecord) -> None:
        self.request_ids.add(attempt.request_id)
        self.times_ms.append(attempt.duration_ms)
        where = (attempt.provider, attempt.model)
        self.events.append(("attempt", *where, attempt.outcome, attempt.code, attempt.http_status))

    def on_first_byte(self, request_id: str, elapsed_ms: float) -> None:
        self.request_ids.add(request_id)
        self.times_ms.append(elapsed_ms)
        self.events.append(("first byte",))

    def on_end(self, record: RequestRecord) -> None:
        self.request_ids.add(record.request_id)
        self.records.append(record)
        self.events.append(("end", record.status, record.http_status, record.code))
        if self.peek is not None:
            self.received_by_end = self.peek()
        self.ended.release()

    def on_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str) -> None:
        self.events.append(("other", entry.endpoint, entry.http_status, entry.code))
        self.ended.release()

    def wait_end(self) -> None:
        assert self.ended.acquire(timeout=5), self.events


class Faulty(RequestObserver):
    """Raises in every method."""

    def on_start(self, request: RequestStart) -> None:
        raise RuntimeError("start")

    def on_attempt(self, attempt: AttemptRecord) -> None:
        raise RuntimeError("attempt")

    def on_first_byte(self, request_id: str, elapsed_ms: float) -> None:
        raise RuntimeError("first byte")

    def on_refusal(self, record: RequestRecord) -> None:
        raise RuntimeError("refusal")

    def on_end(self, record: RequestRecord) -> None:
        raise RuntimeError("end")

    def on_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str) -> None:
        raise RuntimeError("other response")


class ObservedGateway:
    """A gateway in a thread of this process, with observers of the test."""

    def __init__(self, home: Path, env: Mapping[str, str], config: str, observers: list[RequestObserver]) -> None:
        (home / "svc.toml").write_text(config)
        self._settings = settings.load(environment(home, {"SVC_API_KEYS": KEY, **env}), config=str(home / "svc.toml"))
        self._observers = observers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway")
        self._stop: Callable[[], object] = lambda: None
        self.log_path = home / "access.log"
        self.context: GatewayContext | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            assert self._ready.wait(20)
            yield
        finally:
            self._stop()
            self._thread.join(20)
            assert not self._thread.is_alive()

    def _run(self) -> None:
        with self.log_path.open("wb") as out, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            writer = telemetry.LineWriter(out)
            try:
                runner.run(self._serve(writer))
            finally:
                writer.close()
                self._ready.set()

    async def _serve(self, writer: telemetry.LineWriter) -> None:
        async with gateway_services(self._settings, writer, observers=self._observers) as (context, speech, app):
            server = create_server(context, speech, app, self._ready.set)
            loop = asyncio.get_running_loop()
            self.context = context
            self._stop = lambda: loop.call_soon_threadsafe(server.stop, signal.SIGTERM)
            await server.serve([self._listener])

    def raw(self) -> RawClient:
        return RawClient(self.port)


Observe = Callable[..., ObservedGateway]


@pytest.fixture
def recording() -> Recording:
    return Recording()


@pytest.fixture
def observe(fakes: Mapping[str, FakeProvider], tmp_path: Path, recording: Recording) -> Iterator[Observe]:
    """`observe(TOML, observers)`: a gateway in this process, with the recording observer if no others are given."""
    with contextlib.ExitStack() as stack:

        def start(
            config: str = "", observers: list[RequestObserver] | None = None, env: Mapping[str, str] | None = None
        ) -> ObservedGateway:
            environ = {**provider_environment(fakes), **(env or {})}
            gateway = ObservedGateway(tmp_path, environ, config, [recording] if observers is None else observers)
            stack.enter_context(gateway.running())
            return gateway

        yield start


def chat(client: RawClient, model: str = GPT, *, stream: bool = False, key: str = KEY) -> Got:
    return client.request("POST", "/v1/chat/completions", body_of(model, stream), key=key)


def body_of(model: str, stream: bool) -> dict[str, Any]:
    return {"model": model, "messages": HI, "stream": stream}


START = ("start", "/v1/chat/completions")
FIRST_BYTE = ("first byte",)
GPT_OK = ("attempt", "openai", GPT, "ok", None, 200)
CLAUDE_OK = ("attempt", "anthropic", CLAUDE, "ok", None, 200)
OK = ("end", "ok", 200, None)


def test_observer_json_response_sees_every_event(observe: Observe, recording: Recording) -> None:
    with observe().raw() as client:
        got = chat(client)
    assert got.status == 200
    assert recording.events == [START, GPT_OK, FIRST_BYTE, OK]
    assert recording.request_ids == {got.headers["x-request-id"]}


def test_observer_stream_sees_first_byte_before_attempt_ends(
    observe: Observe, recording: Recording, provider_a: FakeProvider
) -> None:
    provider_a.plays(sse(openai_wire.stream(), every=0.1))
    with observe().raw() as client:
        assert chat(client, stream=True).whole
    assert recording.events == [START, FIRST_BYTE, GPT_OK, OK]
    first_byte_ms, attempt_ms = recording.times_ms
    assert 0 < first_byte_ms < attempt_ms
    assert attempt_ms >= 200


def test_observer_fallback_sees_failed_attempt(
    observe: Observe, recording: Recording, provider_a: FakeProvider
) -> None:
    provider_a.plays(pause(0.2) + answer(500, b"{}"))
    with observe(FALLBACK).raw() as client:
        got = chat(client)
    assert got.headers["x-svc-provider"] == "anthropic"
    failed = ("attempt", "openai", GPT, "failed", "provider_error", 500)
    assert recording.events == [START, failed, CLAUDE_OK, FIRST_BYTE, OK]
    assert recording.times_ms[0] >= 200
    assert recording.request_ids == {got.headers["x-request-id"]}


def test_observer_interrupted_stream_sees_failed_attempt(
    observe: Observe, recording: Recording, provider_a: FakeProvider
) -> None:
    provider_a.plays(sse(openai_wire.stream()[:3], end=reset()))
    with observe().raw() as client:
        chat(client, stream=True)
    failed = ("attempt", "openai", GPT, "failed", "provider_error", 200)
    assert recording.events == [START, FIRST_BYTE, failed, ("end", "cut", 200, "provider_error")]


@pytest.mark.parametrize("stream", [False, True])
def test_observer_client_disconnect_sees_abandoned_attempt(
    observe: Observe, recording: Recording, provider_a: FakeProvider, stream: bool
) -> None:
    provider_a.plays(sse(openai_wire.stream()[:3], end=stall()) if stream else stall())
    with observe().raw() as client:
        client.send(request_bytes("POST", "/v1/chat/completions", body_of(GPT, stream), key=KEY))
        provider_a.wait()
        if stream:
            client.read_until(b"data:")
    recording.wait_end()
    abandoned = ("attempt", "openai", GPT, "abandoned", None, 200 if stream else None)
    first_byte = [FIRST_BYTE] if stream else []
    assert recording.events == [START, *first_byte, abandoned, ("end", "client_closed", 499, None)]


def test_observer_hedge_sees_loss_before_response(
    observe: Observe, recording: Recording, provider_a: FakeProvider
) -> None:
    provider_a.plays(stall())
    with observe(HEDGED).raw() as client:
        assert chat(client).headers["x-svc-provider"] == "anthropic"
    loss = ("attempt", "openai", GPT, "hedge_loss", None, None)
    assert recording.events == [START, loss, CLAUDE_OK, FIRST_BYTE, OK]
    assert recording.times_ms[0] >= 100


def test_observer_disconnect_during_hedge_sees_both_attempts_abandoned(
    observe: Observe, recording: Recording, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(stall())
    provider_b.plays(stall())
    with observe(HEDGED).raw() as client:
        client.send(request_bytes("POST", "/v1/chat/completions", body_of(GPT, False), key=KEY))
        provider_b.wait()
    recording.wait_end()
    assert set(recording.events[1:-1]) == {
        ("attempt", "openai", GPT, "abandoned", None, None),
        ("attempt", "anthropic", CLAUDE, "abandoned", None, None),
    }
    assert recording.events[-1] == ("end", "client_closed", 499, None)


def test_observer_limit_reached_sees_no_attempt(observe: Observe, recording: Recording) -> None:
    with observe("[limits]\nrpm = 1\n").raw() as client:
        assert chat(client).status == 200
        recording.events.clear()
        assert chat(client).status == 429
    assert recording.events == [START, ("end", "error", 429, "rate_limit_exceeded")]
    assert recording.records[-1].limit_name == "rpm"


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [(("--models", CLAUDE), 404, "model_not_found"), (("--scope", "speech"), 403, "permission_denied")],
)
def test_observer_key_without_permission_sees_no_attempt(
    observe: Observe, recording: Recording, tmp_path: Path, options: tuple[str, str], status: int, code: str
) -> None:
    made = run("keys", "create", "--name", "one", *options, "--json", home=tmp_path)
    assert made.returncode == 0, made.stderr
    with observe().raw() as client:
        assert chat(client, key=json.loads(made.stdout)["key"]).status == status
    assert recording.events == [START, ("end", "error", status, code)]


def test_observer_unknown_key_sees_response_without_record(observe: Observe, recording: Recording) -> None:
    with observe().raw() as client:
        assert chat(client, key="nobody").status == 401
    assert recording.events == [("other", "/v1/chat/completions", 401, "authentication_error")]


@pytest.mark.parametrize("stream", [False, True])
def test_observer_on_end_is_called_before_last_byte(
    observe: Observe, recording: Recording, provider_a: FakeProvider, stream: bool
) -> None:
    if stream:
        provider_a.plays(sse(openai_wire.stream(), every=0.1))
    with observe().raw() as client:
        copy = socket.socket(fileno=os.dup(client.socket.fileno()))
        copy.setblocking(False)
        recording.peek = lambda: peek(copy)
        client.send(request_bytes("POST", "/v1/chat/completions", body_of(GPT, stream), key=KEY))
        recording.wait_end()
        got = client.read()
        copy.close()
    assert got.whole
    if stream:
        assert b"data:" in recording.received_by_end
        assert b"[DONE]" not in recording.received_by_end
    else:
        assert recording.received_by_end == b""


@pytest.mark.parametrize("stream", [False, True])
def test_observer_that_raises_does_not_affect_clients_or_observers(
    observe: Observe,
    recording: Recording,
    provider_a: FakeProvider,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
) -> None:
    if stream:
        provider_a.plays(sse(openai_wire.stream(), every=0.1))
    gateway = observe(FALLBACK, [Faulty(), recording])
    with gateway.raw() as client:
        assert chat(client, stream=stream).whole
        recording.wait_end()
        assert client.request("GET", "/health").status == 200
        recording.wait_end()
    assert recording.events[0] == START
    assert recording.events[3:] == [OK, ("other", "/health", 200, None)]
    faults = [
        one
        for one in caplog.records
        if one.getMessage().startswith("error in the observer's method <bound method Faulty.on_")
    ]
    assert [str(one.exc_info[1]) for one in faults if one.exc_info] == [
        "start",
        *(("first byte", "attempt") if stream else ("attempt", "first byte")),
        "end",
        "other response",
    ]
    assert faults[0].levelno == logging.ERROR


def test_context_is_immutable(observe: Observe) -> None:
    context = observe().context
    assert context is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.router = context.router  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.config.current.cache = None  # type: ignore[misc]


def peek(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 20, socket.MSG_PEEK)
    except BlockingIOError:
        return b""
