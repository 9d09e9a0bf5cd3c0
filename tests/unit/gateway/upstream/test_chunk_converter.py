"""Chunks that are converted by a template: in C where it is compiled, and in Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.dialects.token_estimate import estimate_completion_tokens
from svc.gateway.upstream import chunk_converter
from svc.gateway.upstream.chunk_converter import ChunkConverter, PythonChunkConverter, create_converter
from svc.wire.http_chunk import SIZE_LINE_COUNT

PREFIX, SUFFIX = b'data: {"delta":{"content":"', b'"}}\n\n'
PADDED_SUFFIX = b'"},"obfuscation":"Xy7"}\n\n'
CLIENT_PARTS = (b'data: {"text":"', b'"}\n\n')
TEXTS = (
    *(b" word", b"x", "好".encode(), "é \U0001f600".encode(), b"a" * 15, b"a" * 16, b"a" * 17, b"b" * 300, b"\x7f"),
    *(b'a \\"quote\\"', b"\\\\", b"\\n", b"\\/\\b\\f\\r\\t", b"\\u00e9" * 20, b"\\ud83d\\uDE00", b"\\\\u", b"{}[]:,"),
)
INVALID_TEXTS = (
    *(b"\\x", b"\\", b"\\u12g4", b"\\ud83d", b"\\ud83dx", b"\\ude00", b"\\ud83d\\u0041", b"a\nb", b"\x00", b"\x1f"),
    *(b'", "other": "', b'"', b"a" * 40 + b"\n", b"\xff", "好".encode()[:2], b"\xed\xa0\x80", b"\xc0\x80"),
)
DAMAGES = (b'"', b"\\", b"\\u", b"\r\n", b"\n", b"0", b"f", b"{", *INVALID_TEXTS, *TEXTS)
Create = Callable[[ChunkTemplate], ChunkConverter]


def framed(event: bytes, form: bytes = b"%x") -> bytes:
    return form % len(event) + b"\r\n" + event + b"\r\n"


def damaged(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.randint(0, 2)):
        at, damage = rng.randrange(len(data)), rng.choice(DAMAGES)
        data = data[:at] + damage + data[at + rng.randint(0, len(damage)) :]
    return data


def chunk(text: bytes) -> bytes:
    return framed(PREFIX + text + SUFFIX)


def identity() -> ChunkTemplate:
    return ChunkTemplate((PREFIX, SUFFIX), (PREFIX, SUFFIX))


def translation() -> ChunkTemplate:
    return ChunkTemplate((PREFIX, SUFFIX), CLIENT_PARTS)


IS_COMPILED = not isinstance(create_converter(identity()), PythonChunkConverter)
needs_c = pytest.mark.skipif(not IS_COMPILED, reason="the module in C is not compiled")


@pytest.fixture(
    params=[pytest.param(create_converter, id="c", marks=needs_c), pytest.param(PythonChunkConverter, id="python")]
)
def create(request: pytest.FixtureRequest) -> Create:
    """Return the function that creates a converter."""
    function: Create = request.param
    return function


def test_converter_in_c_is_used_where_it_is_compiled() -> None:
    assert any(Path(chunk_converter.__file__).parent.glob("_chunk_converter.*.so")) == IS_COMPILED


@pytest.mark.parametrize("text", [*TEXTS, b""])
def test_converter_of_same_dialect_returns_the_read_itself(create: Create, text: bytes) -> None:
    converter, data = create(identity()), chunk(text)
    assert converter.convert(data) is data
    assert converter.converted_bytes == len(data)


@pytest.mark.parametrize("text", TEXTS)
def test_converter_of_another_dialect_replaces_what_is_around_the_text(create: Create, text: bytes) -> None:
    converter = create(translation())
    data = chunk(text) + chunk(b"second")
    expected = [CLIENT_PARTS[0] + content + CLIENT_PARTS[1] for content in (text, b"second")]
    assert converter.convert(data) == b"".join(map(framed, expected))
    assert converter.converted_bytes == len(data)


@pytest.mark.parametrize("text", INVALID_TEXTS)
@pytest.mark.parametrize("template", [identity(), translation()], ids=["same dialect", "another dialect"])
def test_converter_stops_before_a_text_that_is_no_string(create: Create, template: ChunkTemplate, text: bytes) -> None:
    converter = create(template)
    assert converter.convert(chunk(text)) == b""
    assert converter.converted_bytes == 0
    assert converter.convert(chunk(b"one") + chunk(text) + chunk(b"three"))
    assert converter.converted_bytes == len(chunk(b"one"))
    assert converter.tokens == 1


def test_converter_of_another_dialect_leaves_empty_texts_to_the_parser(create: Create) -> None:
    converter = create(translation())
    assert converter.convert(chunk(b"")) == b""
    assert converter.converted_bytes == converter.tokens == 0


def test_converter_accepts_every_size_that_has_a_size_line(create: Create) -> None:
    for size in range(len(PREFIX + SUFFIX), SIZE_LINE_COUNT):
        converter, data = create(identity()), framed(PREFIX + b"x" * (size - len(PREFIX + SUFFIX)) + SUFFIX)
        assert converter.convert(data) is data
    assert create(identity()).convert(chunk(b"x" * (SIZE_LINE_COUNT - len(PREFIX + SUFFIX)))) == b""


def test_converter_of_another_dialect_writes_every_size_that_has_a_size_line(create: Create) -> None:
    for room in range(2):
        client_prefix = b"p" * (SIZE_LINE_COUNT - 4 - room)
        converter = create(ChunkTemplate((PREFIX, SUFFIX), (client_prefix, b"s")))
        written = converter.convert(chunk(b"one"))
        assert written == (framed(client_prefix + b"ones") if room else b"")
    for size in range(len(b"".join(CLIENT_PARTS)) + 1, 300):
        text = b"x" * (size - len(b"".join(CLIENT_PARTS)))
        assert create(translation()).convert(chunk(text)) == framed(text.join(CLIENT_PARTS))


@pytest.mark.parametrize("form", [b"%X", b"0%x", b"%08x", b"%x;name=value", b" %x", b"%x ", b"+%x", b"0x%x"])
def test_converter_leaves_other_size_lines_to_the_parser(create: Create, form: bytes) -> None:
    text = b"x" * (0xAB - len(PREFIX + SUFFIX))
    assert create(identity()).convert(framed(PREFIX + text + SUFFIX, form)) == b""


@pytest.mark.parametrize("difference", [-1, 1, 16])
def test_converter_rejects_a_size_that_is_not_that_of_the_chunk(create: Create, difference: int) -> None:
    event = PREFIX + b"word" + SUFFIX
    data = b"%x\r\n%b\r\n" % (len(event) + difference, event)
    assert create(identity()).convert(data + chunk(b"next")) == b""


@pytest.mark.parametrize("template", [identity(), translation()], ids=["same dialect", "another dialect"])
def test_converter_leaves_incomplete_chunks_to_the_parser(create: Create, template: ChunkTemplate) -> None:
    data = chunk(b"one") + chunk("two 好 \\n".encode())
    for end in range(len(data)):
        converter = create(template)
        converter.convert(data[:end])
        assert converter.converted_bytes == (len(chunk(b"one")) if end >= len(chunk(b"one")) else 0)


def test_converter_accepts_another_padding_of_letters_and_digits(create: Create) -> None:
    template = ChunkTemplate((PREFIX, PADDED_SUFFIX), (PREFIX, PADDED_SUFFIX))
    for padding in (b"", b"A", b"azAZ09", b"x" * 100):
        data = framed(PREFIX + b"word" + PADDED_SUFFIX.replace(b"Xy7", padding))
        assert create(template).convert(data) is data
    for padding in (b"-", b"a\\n", b"a b", b"@", b"[", b"`", b"{", b"/", b":", "é".encode(), b'","more":"'):
        data = framed(PREFIX + b"word" + PADDED_SUFFIX.replace(b"Xy7", padding))
        assert create(template).convert(data) == b""


@pytest.mark.parametrize("more", [b"data: [DONE]\n\n", b"x", b"\n", PREFIX + b"two" + SUFFIX])
@pytest.mark.parametrize("template", [identity(), translation()], ids=["same dialect", "another dialect"])
def test_converter_leaves_chunks_with_more_than_one_event_to_the_parser(
    create: Create, template: ChunkTemplate, more: bytes
) -> None:
    assert create(template).convert(framed(PREFIX + b"one" + SUFFIX + more)) == b""


@pytest.mark.parametrize("more", [b"data: [DONE]\n\n", b"x", b"\n"])
def test_converter_leaves_padded_chunks_with_more_than_one_event_to_the_parser(create: Create, more: bytes) -> None:
    template = ChunkTemplate((PREFIX, PADDED_SUFFIX), (PREFIX, PADDED_SUFFIX))
    assert create(template).convert(framed(PREFIX + b"one" + PADDED_SUFFIX + more)) == b""


@pytest.mark.parametrize("template", [identity(), translation()], ids=["same dialect", "another dialect"])
def test_converter_reports_the_bytes_of_each_read_alone(create: Create, template: ChunkTemplate) -> None:
    converter, one = create(template), chunk(b"one")
    for data, size in (
        (one, len(one)),
        (one + one, 2 * len(one)),
        (one + b"0", len(one)),
        (b"0\r\n", 0),
        (one, len(one)),
    ):
        converter.convert(data)
        assert converter.converted_bytes == size
    assert converter.tokens == 5


def test_converter_counts_tokens_of_each_text(create: Create) -> None:
    converter = create(identity())
    expected = 0
    for size in (0, 1, 3, 4, 7, 8, 100, 1001):
        converter.convert(chunk(b"x" * size))
        expected += estimate_completion_tokens(size, b"", b"") or (size > 0)
        assert converter.tokens == expected


def test_converter_of_another_dialect_writes_reads_of_any_size(create: Create) -> None:
    texts = [b"text %03d" % number for number in range(200)]
    client_parts = (b"p" * (SIZE_LINE_COUNT - 1 - len(texts[0])), b"")  # the largest chunks, which fill the buffer most
    converter = create(ChunkTemplate((PREFIX, SUFFIX), client_parts))
    data = b"".join(map(chunk, texts))
    assert converter.convert(data) == b"".join(framed(text.join(client_parts)) for text in texts)
    assert converter.converted_bytes == len(data)


@needs_c
@pytest.mark.parametrize("seed", range(4))
def test_converter_in_c_and_in_python_agree_on_damaged_chunks(seed: int) -> None:
    rng = random.Random(seed)
    templates = identity(), translation(), ChunkTemplate((PREFIX, PADDED_SUFFIX), (PREFIX, PADDED_SUFFIX))
    for _ in range(1500):
        template = rng.choice(templates)
        suffix = PADDED_SUFFIX if template.padding_end else SUFFIX
        events = [PREFIX + rng.choice(TEXTS) + suffix for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.5:  # the chunk's size is right
            events[-1] = damaged(rng, events[-1])
            data = b"".join(map(framed, events))
        else:
            data = damaged(rng, b"".join(map(framed, events)))
        first, second = create_converter(template), PythonChunkConverter(template)
        assert first.convert(data) == second.convert(data), data
        assert (first.converted_bytes, first.tokens) == (second.converted_bytes, second.tokens), data


@pytest.mark.parametrize("room", range(2044, 2058))
def test_converter_of_another_dialect_writes_the_largest_chunk_at_the_end_of_the_buffer(
    create: Create, room: int
) -> None:
    """A build with gcc's address sanitizer finds a write behind the buffer, which otherwise changes no result."""
    client_parts = (b"p" * 1000, b"s")
    converter = create(ChunkTemplate((PREFIX, SUFFIX), client_parts))
    framing = len(framed(b"x" * 1500)) - 1500
    sizes = [2040, 2040, 8192 - room - 4080 - 3 * framing, SIZE_LINE_COUNT - 1]
    texts = [b"x" * (size - len(b"".join(client_parts))) for size in sizes]
    assert converter.convert(b"".join(map(chunk, texts))) == b"".join(framed(text.join(client_parts)) for text in texts)
