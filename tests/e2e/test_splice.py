"""Chunks that are forwarded unchanged between connections, and bytes that only resemble such chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.harness import CLAUDE, GPT, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, finish_of, text_of
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, end, fin, head, pause, raw, reset

WORDS = [f" word{n}" for n in range(12)]
TEXT = "".join(WORDS)
TEXTS = [openai_wire.chunk({"content": word}) for word in WORDS]
FIRST, LAST = openai_wire.role(), openai_wire.chunk({}, "stop") + openai_wire.DONE


def chunked(data: bytes, form: str = "%x") -> bytes:
    return (form % len(data)).encode() + b"\r\n" + data + b"\r\n"


def script_of(parts: Iterable[bytes], *, ending: Script | None = None) -> Script:
    """Send each part so that the gateway normally reads it separately."""
    script = head(content_type="text/event-stream")
    for part in parts:
        script += raw(part) + pause(0.004)
    return script + (ending or end())


def stream_result(gateway: Gateway) -> tuple[str, str | None]:
    chunks = complete_chunks(gateway.chat(GPT, stream=True).body)
    return text_of(chunks), finish_of(chunks)


@pytest.mark.parametrize("form", ["%x", "%X", "%08x", "%x;name=value"])
def test_splice_chunk_size_formats_are_accepted(gateway: Gateway, provider_a: FakeProvider, form: str) -> None:
    provider_a.plays(script_of([chunked(event, form) for event in (FIRST, *TEXTS, LAST)]))
    assert stream_result(gateway) == (TEXT, "stop")


@pytest.mark.parametrize("seed", range(8))
def test_splice_reads_split_anywhere_lose_no_text(gateway: Gateway, provider_a: FakeProvider, seed: int) -> None:
    rng = random.Random(seed)
    stream = b"".join(map(chunked, (FIRST, *TEXTS, LAST)))
    size = len(chunked(TEXTS[0]))
    cuts = sorted({rng.choice([rng.randrange(len(stream)), rng.randrange(20) * size]) for _ in range(40)} | {0})
    parts = [stream[one:other] for one, other in zip(cuts, [*cuts[1:], len(stream)], strict=True)]
    provider_a.plays(script_of(part for part in parts if part))
    assert stream_result(gateway) == (TEXT, "stop")


@pytest.mark.parametrize("together", [2, 3, 12])
@pytest.mark.parametrize("odd_index", [None, 4, 5, 6, 11])
def test_splice_several_chunks_in_one_read_lose_no_text(
    gateway: Gateway, provider_a: FakeProvider, together: int, odd_index: int | None
) -> None:
    """One chunk needs the general path, and another has a different size format."""
    texts = [chunked(text) for text in TEXTS]
    if odd_index is not None:
        texts[odd_index] = chunked(openai_wire.chunk({"content": f"\n{WORDS[odd_index][1:]}"}))
        texts[odd_index - 2] = chunked(TEXTS[odd_index - 2], "%X;a=b")
    parts = [b"".join(texts[at : at + together]) for at in range(2, len(texts), together)]
    provider_a.plays(script_of([chunked(FIRST), *texts[:2], *parts, chunked(LAST)]))
    expected = TEXT if odd_index is None else TEXT.replace(WORDS[odd_index], f"\n{WORDS[odd_index][1:]}")
    assert stream_result(gateway) == (expected, "stop")


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 30, -1, -2, -3, -4, -5, -6])
def test_splice_chunks_split_at_same_offset_lose_no_text(gateway: Gateway, provider_a: FakeProvider, at: int) -> None:
    framed_chunk = [chunked(event) for event in (FIRST, *TEXTS, LAST)]
    rest = b""
    parts = []
    for one in framed_chunk:
        parts.append(rest + one[:at])
        rest = one[at:]
    provider_a.plays(script_of([*parts, rest]))
    assert stream_result(gateway) == (TEXT, "stop")


def test_splice_events_not_aligned_with_chunks_lose_no_text(gateway: Gateway, provider_a: FakeProvider) -> None:
    one, other = TEXTS[4][:50], TEXTS[4][50:]
    parts = [FIRST, *TEXTS[:2], TEXTS[2] + TEXTS[3], one, other, *TEXTS[5:], LAST]
    provider_a.plays(script_of(map(chunked, parts)))
    assert stream_result(gateway) == (TEXT, "stop")


def test_splice_escaped_and_long_events_between_plain_ones_lose_no_text(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
    odd_events = [openai_wire.chunk({"content": text}) for text in ('"quoted"\n', "ünïcode 🦙", "", "x" * 5000)]
    parts = [
        FIRST,
        *TEXTS[:3],
        odd_events[0],
        *TEXTS[3:6],
        odd_events[1],
        TEXTS[6],
        odd_events[2],
        odd_events[3],
        *TEXTS[7:],
        LAST,
    ]
    provider_a.plays(script_of(map(chunked, parts)))
    expected = "".join(WORDS[:3]) + '"quoted"\n' + "".join(WORDS[3:6]) + "ünïcode 🦙" + WORDS[6] + "x" * 5000
    assert stream_result(gateway) == (expected + "".join(WORDS[7:]), "stop")


def test_splice_chunk_inside_larger_chunk_is_not_taken_as_chunk(gateway: Gateway, provider_a: FakeProvider) -> None:
    """The bytes are inside a larger chunk: what looks like a size line is part of an event."""
    inside = chunked(TEXTS[2])
    large = TEXTS[1] + inside + b"\n" + TEXTS[3]
    size = b"%x\r\n" % len(large)
    cut = len(size + TEXTS[1])
    framed = chunked(large)
    parts = [*map(chunked, (FIRST, TEXTS[0], TEXTS[0])), framed[:cut], inside, framed[cut + len(inside) :]]
    provider_a.plays(script_of([*parts, chunked(LAST)]))
    assert stream_result(gateway) == (WORDS[0] * 2 + "".join(WORDS[1:4]), "stop")


def test_splice_chunk_after_separate_size_line_is_not_taken_as_chunk(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
    inside = chunked(TEXTS[1])
    large = inside + b"\n" + TEXTS[2]
    parts = [*map(chunked, (FIRST, TEXTS[0])), chunked(TEXTS[0]) + b"%x\r\n" % len(large), inside]
    rest = b"\n" + TEXTS[2] + b"\r\n"
    provider_a.plays(script_of([*parts, rest, chunked(LAST)]))
    assert stream_result(gateway) == (WORDS[0] * 2 + WORDS[1] + WORDS[2], "stop")


def test_splice_anthropic_stream_is_complete(gateway: Gateway, provider_b: FakeProvider) -> None:
    events = anthropic_wire.stream(TEXT)
    provider_b.plays(script_of(map(chunked, events)))
    got = gateway.message(CLAUDE, stream=True, max_tokens=99)
    assert got.body.count(b"event: content_block_delta") == sum(
        b"event: content_block_delta" in each for each in events
    )
    assert got.body.endswith(events[-1])


@pytest.mark.parametrize("ending", [fin(), reset(), raw(b"zz\r\n") + pause(3)])
def test_splice_interrupted_stream_ends_with_error(gateway: Gateway, provider_a: FakeProvider, ending: Script) -> None:
    provider_a.plays(script_of(map(chunked, (FIRST, *TEXTS)), ending=ending))
    chunks, error = broken_stream(gateway.chat(GPT, stream=True).body)
    assert text_of(chunks) == TEXT
    assert error["code"] == "provider_error"


def test_splice_interrupted_stream_is_billed_for_forwarded_tokens(gateway: Gateway, provider_a: FakeProvider) -> None:
    many = [openai_wire.chunk({"content": " twelve bytes"})] * 50
    parts = [b"".join(map(chunked, many[at : at + 5])) for at in range(5, 50, 5)]
    provider_a.plays(script_of([*map(chunked, (FIRST, *many[:5])), *parts], ending=fin()))
    got = gateway.chat(GPT, stream=True)
    assert got.body.count(b"twelve") == 50
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["estimated"], entry["completion_tokens"]) == ("cut", True, 50 * 3)
