"""The sampler, with the traceparent values of W3C Trace Context."""

from __future__ import annotations

import pytest

from svc.tracing.sampler import Sampler

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def lines(parent: str, *states: str) -> bytes:
    return "".join([f"traceparent: {parent}\r\n", *[f"tracestate: {state}\r\n" for state in states]]).encode()


def test_sampler_client_trace_is_continued() -> None:
    trace = Sampler(0.0, uses_parent=True).sample(lines(f"00-{TRACE}-{PARENT}-01", "a=1", "b=2"))
    assert trace is not None
    assert (trace.trace_id.hex(), trace.parent_id.hex(), trace.trace_state) == (TRACE, PARENT, "a=1,b=2")


def test_sampler_state_before_parent_is_read() -> None:
    trace = Sampler(0.0, uses_parent=True).sample(b"tracestate: a=1\r\n" + lines(f"00-{TRACE}-{PARENT}-03"))
    assert trace is not None
    assert (trace.trace_id.hex(), trace.trace_state) == (TRACE, "a=1")


def test_sampler_client_decision_not_to_sample_has_precedence() -> None:
    unsampled = lines(f"00-{TRACE}-{PARENT}-00")
    assert Sampler(1.0, uses_parent=True).sample(unsampled) is None
    assert Sampler(1.0, uses_parent=False).sample(unsampled) is not None
    assert Sampler(0.0, uses_parent=False).sample(lines(f"00-{TRACE}-{PARENT}-01")) is None


def test_sampler_later_version_is_read() -> None:
    trace = Sampler(0.0, uses_parent=True).sample(lines(f"01-{TRACE}-{PARENT}-01-more"))
    assert trace is not None
    assert trace.parent_id.hex() == PARENT


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE[:-1]}-{PARENT}-01",
    ],
)
def test_sampler_invalid_parent_starts_a_new_trace(value: str) -> None:
    trace = Sampler(1.0, uses_parent=True).sample(lines(value, "a=1"))
    assert trace is not None
    assert trace.parent_id == b""
    assert trace.trace_state == ""
    assert trace.trace_id.hex() != TRACE


def test_sampler_share_is_kept_and_consistent_by_trace_id() -> None:
    sampler, wider = Sampler(0.1, uses_parent=True), Sampler(0.1, uses_parent=False)
    traces = [trace for _ in range(20_000) if (trace := sampler.sample(b"")) is not None]
    assert 1600 < len(traces) < 2400
    assert len({trace.trace_id for trace in traces}) == len(traces)
    for trace in traces:
        assert wider.sample(lines(f"00-{trace.trace_id.hex()}-{PARENT}-00")) is not None
    assert Sampler(0.0, uses_parent=True).sample(b"") is None
