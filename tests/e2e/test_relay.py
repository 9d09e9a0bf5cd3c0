"""Chunks that go from the provider's connection to the client's as they are, and what must not be taken for one."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from svc.gateway.upstream.splice import FRAMED_CHUNK_SIZE_LINES
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.harness import CLAUDE, GPT, Gateway
from tests.e2e.reading import broken_stream, finish_of, text_of, whole_chunks
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, end, fin, head, pause, raw, reset

WORDS = [f" word{n}" for n in range(12)]
SAID = "".join(WORDS)
TEXTS = [openai_wire.chunk({"content": word}) for word in WORDS]
FIRST, LAST = openai_wire.role(), openai_wire.chunk({}, "stop") + openai_wire.DONE


def chunked(data: bytes, form: str = "%x") -> bytes:
    return (form % len(data)).encode() + b"\r\n" + data + b"\r\n"


def played(parts: Iterable[bytes], *, ending: Script | None = None) -> Script:
    """Each part is a read of its own, nearly always."""
    script = head(content_type="text/event-stream")
    for part in parts:
        script += raw(part) + pause(0.004)
    return script + (ending or end())


def heard(gateway: Gateway) -> tuple[str, str | None]:
    chunks = whole_chunks(gateway.chat(GPT, stream=True).body)
    return text_of(chunks), finish_of(chunks)


def test_the_size_lines_are_those_of_chunks() -> None:
    for size in range(1, 2000):
        whole = chunked(b"x" * size)
        if len(whole) < len(FRAMED_CHUNK_SIZE_LINES):
            assert whole.startswith(FRAMED_CHUNK_SIZE_LINES[len(whole)] + b"x")
    assert FRAMED_CHUNK_SIZE_LINES[:6] == (b"", b"", b"", b"", b"", b"")
    assert FRAMED_CHUNK_SIZE_LINES[21] == b""  # 15 bytes take 20 with their framing, 16 take 22


@pytest.mark.parametrize("form", ["%x", "%X", "%08x", "%x;name=value"])
def test_chunks_however_their_size_is_written(gateway: Gateway, provider_a: FakeProvider, form: str) -> None:
    provider_a.plays(played([chunked(event, form) for event in (FIRST, *TEXTS, LAST)]))
    assert heard(gateway) == (SAID, "stop")


@pytest.mark.parametrize("seed", range(8))
def test_reads_that_end_anywhere(gateway: Gateway, provider_a: FakeProvider, seed: int) -> None:
    dice = random.Random(seed)
    stream = b"".join(map(chunked, (FIRST, *TEXTS, LAST)))
    size = len(chunked(TEXTS[0]))
    cuts = sorted({dice.choice([dice.randrange(len(stream)), dice.randrange(20) * size]) for _ in range(40)} | {0})
    parts = [stream[one:other] for one, other in zip(cuts, [*cuts[1:], len(stream)], strict=True)]
    provider_a.plays(played(part for part in parts if part))
    assert heard(gateway) == (SAID, "stop")


@pytest.mark.parametrize("together", [2, 3, 12])
@pytest.mark.parametrize("odd", [None, 4, 5, 6, 11])
def test_several_in_a_read(gateway: Gateway, provider_a: FakeProvider, together: int, odd: int | None) -> None:
    """One of them is not plain, another has its size written in another way."""
    texts = [chunked(text) for text in TEXTS]
    if odd is not None:
        texts[odd] = chunked(openai_wire.chunk({"content": f"\n{WORDS[odd][1:]}"}))
        texts[odd - 2] = chunked(TEXTS[odd - 2], "%X;a=b")
    parts = [b"".join(texts[at : at + together]) for at in range(2, len(texts), together)]
    provider_a.plays(played([chunked(FIRST), *texts[:2], *parts, chunked(LAST)]))
    expected = SAID if odd is None else SAID.replace(WORDS[odd], f"\n{WORDS[odd][1:]}")
    assert heard(gateway) == (expected, "stop")


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 30, -1, -2, -3, -4, -5, -6])
def test_every_chunk_cut_at_the_same_place(gateway: Gateway, provider_a: FakeProvider, at: int) -> None:
    whole = [chunked(event) for event in (FIRST, *TEXTS, LAST)]
    rest = b""
    parts = []
    for one in whole:
        parts.append(rest + one[:at])
        rest = one[at:]
    provider_a.plays(played([*parts, rest]))
    assert heard(gateway) == (SAID, "stop")


def test_two_events_in_a_chunk_and_an_event_in_two(gateway: Gateway, provider_a: FakeProvider) -> None:
    one, other = TEXTS[4][:50], TEXTS[4][50:]
    parts = [FIRST, *TEXTS[:2], TEXTS[2] + TEXTS[3], one, other, *TEXTS[5:], LAST]
    provider_a.plays(played(map(chunked, parts)))
    assert heard(gateway) == (SAID, "stop")


def test_other_events_between_plain_ones(gateway: Gateway, provider_a: FakeProvider) -> None:
    odd = [openai_wire.chunk({"content": text}) for text in ('"quoted"\n', "ünïcode 🦙", "", "x" * 5000)]
    parts = [FIRST, *TEXTS[:3], odd[0], *TEXTS[3:6], odd[1], TEXTS[6], odd[2], odd[3], *TEXTS[7:], LAST]
    provider_a.plays(played(map(chunked, parts)))
    expected = "".join(WORDS[:3]) + '"quoted"\n' + "".join(WORDS[3:6]) + "ünïcode 🦙" + WORDS[6] + "x" * 5000
    assert heard(gateway) == (expected + "".join(WORDS[7:]), "stop")


def test_what_only_looks_like_a_chunk(gateway: Gateway, provider_a: FakeProvider) -> None:
    """It is the inside of a larger one: its size line is a line of an event, which says nothing."""
    inside = chunked(TEXTS[2])
    large = TEXTS[1] + inside + b"\n" + TEXTS[3]
    size = b"%x\r\n" % len(large)
    cut = len(size + TEXTS[1])
    framed = chunked(large)
    parts = [*map(chunked, (FIRST, TEXTS[0], TEXTS[0])), framed[:cut], inside, framed[cut + len(inside) :]]
    provider_a.plays(played([*parts, chunked(LAST)]))
    assert heard(gateway) == (WORDS[0] * 2 + "".join(WORDS[1:4]), "stop")


def test_after_a_size_line_alone(gateway: Gateway, provider_a: FakeProvider) -> None:
    inside = chunked(TEXTS[1])
    large = inside + b"\n" + TEXTS[2]
    parts = [*map(chunked, (FIRST, TEXTS[0])), chunked(TEXTS[0]) + b"%x\r\n" % len(large), inside]
    rest = b"\n" + TEXTS[2] + b"\r\n"
    provider_a.plays(played([*parts, rest, chunked(LAST)]))
    assert heard(gateway) == (WORDS[0] * 2 + WORDS[1] + WORDS[2], "stop")


def test_anthropic_likewise(gateway: Gateway, provider_b: FakeProvider) -> None:
    events = anthropic_wire.stream(SAID)
    provider_b.plays(played(map(chunked, events)))
    got = gateway.message(CLAUDE, stream=True, max_tokens=99)
    assert got.body.count(b"event: content_block_delta") == sum(
        b"event: content_block_delta" in each for each in events
    )
    assert got.body.endswith(events[-1])


@pytest.mark.parametrize("ending", [fin(), reset(), raw(b"zz\r\n") + pause(3)])
def test_the_truth_when_it_breaks(gateway: Gateway, provider_a: FakeProvider, ending: Script) -> None:
    provider_a.plays(played(map(chunked, (FIRST, *TEXTS)), ending=ending))
    chunks, error = broken_stream(gateway.chat(GPT, stream=True).body)
    assert text_of(chunks) == SAID
    assert error["code"] == "provider_error"


def test_a_cut_stream_is_billed_by_what_was_carried(gateway: Gateway, provider_a: FakeProvider) -> None:
    many = [openai_wire.chunk({"content": " twelve bytes"})] * 50
    parts = [b"".join(map(chunked, many[at : at + 5])) for at in range(5, 50, 5)]
    provider_a.plays(played([*map(chunked, (FIRST, *many[:5])), *parts], ending=fin()))
    got = gateway.chat(GPT, stream=True)
    assert got.body.count(b"twelve") == 50
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["status"], entry["estimated"], entry["completion_tokens"]) == ("cut", True, 50 * 3)
