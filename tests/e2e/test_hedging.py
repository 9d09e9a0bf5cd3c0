"""`routing.hedge_after`: a second attempt starts if the first has sent no byte in time."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, Gateway
from tests.e2e.reading import complete_chunks, text_of
from tests.e2e.test_partial_outages import CHAIN, DOWN, chat_request, logged, providers, send_many
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, body, head, pause, reset, sse, stall

HEDGED = f"[routing]\nretries = 0\nhedge_after = 0.2\n{CHAIN}"


@pytest.fixture
def hedged(start_gateway: StartGateway) -> Gateway:
    return start_gateway(config=HEDGED)


@pytest.mark.parametrize("stream", [False, True])
def test_hedge_answers_first_cancels_slow_attempt(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, stream: bool
) -> None:
    provider_a.plays(stall())
    began = time.monotonic()
    got = hedged.chat(stream=stream)
    assert 0.2 <= time.monotonic() - began < 10
    assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "anthropic", "2")
    ended = time.monotonic()
    assert provider_a.wait().wait_left(2.0) < ended + 0.1
    if stream:
        assert text_of(complete_chunks(got.body)) == anthropic_wire.TEXT
    lost, won = logged(hedged, got)["attempts_detail"]
    assert (lost["provider"], lost["outcome"], lost["code"]) == ("openai", "cancelled", None)
    assert (won["provider"], won["outcome"], won["code"]) == ("anthropic", "ok", None)
    assert won["ms"] + 200 < lost["ms"] + 1, "the hedge started after `hedge_after`"
    assert billed(hedged, got) == billed(hedged, hedged.chat(CLAUDE)), "an attempt without a byte costs nothing"


def billed(gateway: Gateway, got: Got) -> tuple[int, int, float, bool]:
    """Return prompt tokens, completion tokens, cost in US dollars, and whether it is estimated."""
    entry = logged(gateway, got)
    return entry["prompt_tokens"], entry["completion_tokens"], entry["cost_usd"], entry["estimated"]


def test_hedge_cancelled_attempt_is_billed_for_received_bytes(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    """Provider A has sent half a response when provider B answers."""
    provider_a.plays(head() + body(b"x" * 4000) + stall())
    got = hedged.chat()
    ended = time.monotonic()
    assert provider_a.wait().wait_left(2.0) < ended + 0.1
    both, alone = billed(hedged, got), billed(hedged, hedged.chat(CLAUDE))
    prompt, completion = both[0] - alone[0], both[1] - alone[1]
    assert (completion, both[3], alone[3]) == (1000, True, False)
    assert 0 < prompt < 40
    assert both[2] - alone[2] == pytest.approx((prompt * 0.15 + completion * 0.6) / 1e6)


@pytest.mark.parametrize("stream", [False, True])
def test_hedge_first_attempt_answers_first_cancels_hedge(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, stream: bool
) -> None:
    late = sse(openai_wire.stream("first")) if stream else answer(200, openai_wire.chat("first"))
    provider_a.plays(pause(0.5) + late)
    provider_b.plays(stall())
    got = hedged.chat(stream=stream)
    assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "openai", "2")
    ended = time.monotonic()
    assert provider_b.wait().wait_left(2.0) < ended + 0.1
    assert hedged.chat().headers["x-svc-attempts"] == "1"


def test_hedge_is_not_sent_after_first_byte(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(sse(openai_wire.stream("a b c d e"), every=0.1))
    got = hedged.chat(stream=True)
    assert got.headers["x-svc-attempts"] == "1"
    assert text_of(complete_chunks(got.body)) == "a b c d e"
    assert not provider_b.requests


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.05), (0.35, 0.5)])
def test_hedge_one_attempt_fails_other_answers(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider, a: float, b: float
) -> None:
    """First the hedge fails and the first attempt answers, then the reverse."""
    first_wins = a > b
    provider_a.plays(pause(a) + (answer(200, openai_wire.chat("A")) if first_wins else reset()))
    provider_b.plays(pause(b) + (reset() if first_wins else answer(200, anthropic_wire.message("B"))))
    got = hedged.chat()
    assert (got.status, got.headers["x-svc-attempts"]) == (200, "2")
    assert got.json["choices"][0]["message"]["content"] == ("A" if first_wins else "B")
    assert not provider_c.requests


def test_hedge_both_attempts_fail_third_target_answers(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    provider_a.plays(pause(0.4) + reset())
    provider_b.plays(pause(0.3) + reset())
    got = hedged.chat()
    assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "groq", "3")


def test_hedge_client_disconnect_cancels_and_bills_both_attempts(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    """Neither attempt lost the race, so both are billed."""
    provider_a.plays(stall())
    provider_b.plays(head(content_type="text/event-stream") + stall())
    with hedged.raw() as raw:
        raw.send(chat_request(hedged))
        provider_b.wait()
    left = time.monotonic()
    assert provider_a.wait().wait_left(2.0) < left + 0.1
    assert provider_b.wait().wait_left(2.0) < left + 0.1
    hedged.logged("client_closed")
    (line,) = [json.loads(line) for line in hedged.log.splitlines() if '"client_closed"' in line]
    assert (line["attempts"], line["estimated"]) == (2, True)
    attempts = [(each["provider"], each["outcome"], each["code"]) for each in line["attempts_detail"]]
    assert attempts == [("openai", "cancelled", None), ("anthropic", "cancelled", None)]
    one, rest = divmod(line["prompt_tokens"], 2)
    assert (one > 0, rest) == (True, 0)
    assert line["cost_usd"] == pytest.approx(one * (0.15 + 3) / 1e6)


@pytest.mark.parametrize(
    "fault",
    [
        answer(404, anthropic_wire.error("not_found_error")),
        answer(400, anthropic_wire.error("invalid_request_error")),
    ],
    ids=["404", "400"],
)
def test_hedge_client_error_waits_for_first_attempt(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, fault: Script
) -> None:
    """The first target is only slow. It may have the model or accept the request."""
    provider_a.plays(pause(0.5) + answer(200, openai_wire.chat("A")))
    provider_b.plays(fault)
    got = hedged.chat()
    assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "openai", "2")


def test_hedge_client_error_of_first_attempt_is_returned(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.plays(pause(0.4) + answer(400, openai_wire.error("no")))
    provider_b.plays(stall())
    got = hedged.chat()
    ended = time.monotonic()
    assert (got.status, got.code) == (400, "invalid_request")
    assert provider_b.wait().wait_left(2.0) < ended + 0.1


def test_hedge_silent_target_opens_breaker(hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider) -> None:
    assert providers(send_many(hedged, 10)) == {"openai"}
    provider_a.always_plays(stall())
    assert providers(send_many(hedged, 20)) == {"anthropic"}
    assert "closed -> open" in hedged.logged("closed -> open")
    assert {got.headers["x-svc-attempts"] for got in send_many(hedged, 5)} == {"1"}


def test_hedge_losses_of_slow_target_do_not_open_breaker(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    slow = pause(0.3) + answer(200, openai_wire.chat("A"))
    provider_a.always_plays(slow)
    provider_b.always_plays(stall())
    assert providers(send_many(hedged, 3)) == {"openai"}
    provider_b.always_plays(None)
    assert providers(send_many(hedged, 30)) == {"anthropic"}
    assert "->" not in hedged.log


def test_hedge_cancelled_probe_does_not_close_breaker(
    hedged: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    provider_a.always_plays(DOWN)
    send_many(hedged, 20)
    hedged.logged("closed -> open")
    provider_a.always_plays(stall())
    deadline = time.monotonic() + 10
    while (got := hedged.chat()).headers["x-svc-attempts"] == "1":  # no probe yet
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for each in (got, hedged.chat()):  # the second request finds the probe slot free
        assert (each.headers["x-svc-provider"], each.headers["x-svc-attempts"]) == ("anthropic", "2")
    assert "half-open -> closed" not in hedged.log
