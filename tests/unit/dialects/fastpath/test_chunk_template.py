"""Chunk templates: which chunks match, and that everything that matches is a valid chunk with another text."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svc.dialects.fastpath.chunk_template import MAX_BYTEWISE_SCAN_BYTES, ChunkTemplate, learn_template

START = b'data: {"id":"c","choices":[{"delta":{"content":"'
END = b'"},"finish_reason":null}]}'
PADDED_END = END[:-1] + b',"obfuscation":"xK3"}'
LONG = "x" * (MAX_BYTEWISE_SCAN_BYTES + 1)
TEXTS = st.text(max_size=12).map(lambda text: json.dumps(text, ensure_ascii=False)[1:-1].encode(errors="replace"))
TEXT_FRAGMENTS = st.sampled_from(
    [
        b"a",
        b" ",
        b"\\n",
        b'\\"',
        b"\\u00e9",
        b"\\ud83d",
        b"\\udE00",
        b"\\x",
        b"\\u12",
        b'"',
        b"\\",
        b"\x1f",
        b"\xc3",
        b"\xa9",
    ]
)


def learn(text: bytes = b"Hello", end: bytes = END) -> ChunkTemplate:
    event = START + text + end
    template = learn_template(event, event, b"content")
    assert template is not None
    return template


def is_valid(chunk: bytes) -> bool:
    try:
        json.loads(chunk.removeprefix(b"data: ")).__str__().encode()
    except (UnicodeDecodeError, UnicodeEncodeError, json.JSONDecodeError):
        return False
    return True


@pytest.mark.parametrize("end", [END, PADDED_END])
@pytest.mark.parametrize("text", ["", "hi", 'a "quote"\n', "好 🙂", LONG, LONG + '"好"'])
def test_template_chunk_with_other_text_matches(end: bytes, text: str) -> None:
    for ensure_ascii in (False, True):
        encoded = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1].encode()
        chunk = START + encoded + end + b"\n\n"
        template = learn(end=end)
        assert template.matches(chunk)
        assert template.apply(chunk * 3) == chunk * 3


@pytest.mark.parametrize("padding", [b"", b"x", b"a1B2" * 20])
def test_template_chunk_with_other_padding_matches(padding: bytes) -> None:
    chunk = START + b"t" + END[:-1] + b',"obfuscation":"%b"}\n\n' % padding
    assert learn(end=PADDED_END).matches(chunk)
    assert not learn(end=PADDED_END).matches(chunk[:-1])
    assert not learn(end=PADDED_END).matches(chunk.replace(b'"}\n', b'-"}\n'))


def test_template_block_of_many_escaped_chunks_takes_linear_time() -> None:
    chunk, template = START + b"\\u0434\\u0430" + END + b"\n\n", converting()
    seconds = []
    for count in (500, 4000):
        started_at = time.process_time()
        assert template.apply(chunk * count) is not None
        seconds.append(time.process_time() - started_at)
    assert seconds[1] < max(0.05, 30 * seconds[0])


def test_template_learned_from_text_with_escapes_matches() -> None:
    assert learn(b'{\\"path\\": \\"content\\"}').matches(START + b"x" + END + b"\n\n")


@pytest.mark.parametrize(
    "text",
    [
        b'"',
        b"\\",
        b"\\x",
        b"\\u12",
        b"\\ud83d",
        b"\\ud83d\\ud83d",
        b"\\ude00\\ud83d",
        b"\\ud83d\\u00e9",
        b"\xff",
        b"\x00",
        b"\n",
        LONG.encode() + b"\xff",
        LONG.encode() + b"\\ud800",
    ],
)
def test_template_invalid_text_does_not_match(text: bytes) -> None:
    chunk = START + text + END + b"\n\n"
    assert not learn().matches(chunk)
    assert not learn().matches(START + b"t" + END + b"\n\n" + chunk)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TEXT_FRAGMENTS, max_size=40).map(b"".join))
@example(b"\\u00e9" + b"x" * 60)
def test_template_text_that_matches_is_valid_json(text: bytes) -> None:
    chunk = START + text + END + b"\n\n"
    if learn().matches(chunk):
        assert is_valid(chunk)


def converting() -> ChunkTemplate:
    template = learn_template(START + b"Hello" + END, b'data: {"text":"Hello"}', b"content", b"text")
    assert template is not None
    return template


@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=3))
def test_template_for_other_bytes_converts_text_unchanged(texts: list[bytes]) -> None:
    block = b"".join(START + text + END + b"\n\n" for text in texts)
    converted = converting().apply(block)
    assert converted == b"".join(b'data: {"text":"%b"}\n\n' % text for text in texts)


@pytest.mark.parametrize("text", [b"a\\/b", b"\\u00e9", b"\\ud83d\\ude00", LONG.encode() + b"\\/"])
def test_template_for_other_bytes_keeps_escapes(text: bytes) -> None:
    assert converting().apply(START + text + END + b"\n\n") == b'data: {"text":"%b"}\n\n' % text


@pytest.mark.parametrize("text", [b"", b"\\ud83d", LONG.encode() + b"\\ud83d"])
def test_template_for_other_bytes_leaves_empty_and_invalid_text(text: bytes) -> None:
    assert converting().apply(START + text + END + b"\n\n") is None
