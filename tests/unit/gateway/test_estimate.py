"""The guess of a prompt's tokens: within bounds that a tokenizer was measured at, whatever the text, and never slow."""

import base64
import json
import time
from typing import Any

import pytest

from svc.gateway.estimate import DENSEST, completion_tokens, prompt_tokens


def body(content: Any, **more: Any) -> bytes:
    request = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    return json.dumps(request, ensure_ascii=False).encode()


# what o200k_base and cl100k_base count for these texts (bench/estimates.py), fewest and most
TEXTS = [
    ("The gateway checks keys, counts tokens and writes down what every request has cost. " * 10, 169, 169),
    ("Шлюз проверяет ключи, считает токены и записывает, сколько стоил каждый запрос. " * 10, 219, 309),
    ("网关检查密钥,统计令牌数量,并记录每个请求的费用。" * 10, 198, 258),
    ("यह कुंजियों की जाँच करता है, टोकन गिनता है और हर अनुरोध की लागत लिखता है। " * 10, 271, 731),
    (json.dumps([{"id": n, "price": n * 1.25, "tags": ["a", "b"]} for n in range(40)]), 969, 969),
]


@pytest.mark.parametrize(("text", "fewest", "most"), TEXTS)
def test_it_is_near_what_tokenizers_count(text: str, fewest: int, most: int) -> None:
    assert 0.7 * fewest <= prompt_tokens(body(text)) <= 1.4 * most


@pytest.mark.parametrize("text", ["plain", "Größe", "Привет, мир", "你好,世界", "नमस्ते", 'say "hi" ✅ 🚀'])
def test_escaping_makes_little_difference(text: str) -> None:
    plain = body(text * 200)
    escaped = json.dumps(json.loads(plain)).encode()
    assert prompt_tokens(escaped) == pytest.approx(prompt_tokens(plain), rel=0.25)


def test_a_long_text_is_sampled_and_counted_whole() -> None:
    for text in ("word " * 1000, "слово " * 1000, '{"a": 1.5} ' * 500):
        once, often = prompt_tokens(body(text)), prompt_tokens(body(text * 40))
        assert often == pytest.approx(40 * once, rel=0.1)


def test_media_are_not_counted_as_text() -> None:
    data = base64.b64encode(b"\x01\x02\xfe" * 400_000).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    small = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}}
    theirs = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    linked = {"type": "image_url", "image_url": {"url": "https://images.example/a.png"}}
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    for parts, fewest, most in (
        ([image], 1000, 1100),
        ([image, image, theirs, linked], 4000, 4200),
        ([small], 85, 150),
        ([sound], 500, 1500),
        ([document], 10_000, 80_000),
    ):
        assert fewest <= prompt_tokens(body(parts)) <= most


def test_tools_are_counted() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "What it does. " * 20, "parameters": {}}}
    more = prompt_tokens(body("Hi", tools=[tool])) - prompt_tokens(body("Hi"))
    assert 60 <= more <= 130


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff" * 100, b"\\u" * 100, b"\\u0" * 100, b"base64" * 100, b"9" * 100_000]
)
def test_whatever_comes_it_answers(raw: bytes) -> None:
    assert 1 <= prompt_tokens(raw) <= max(1, len(raw)) / DENSEST + 200


def test_thirty_mebibytes_cost_little() -> None:
    for raw in (
        b"word " * 6_000_000,
        b"\\" * 30_000_000,
        b"A" * 30_000_000 + b"base64",
        b'"type":"image" ' * 2_000_000,
    ):
        began = time.process_time()
        prompt_tokens(raw)
        assert time.process_time() - began < 20.0  # no figure: what is not linear takes minutes


OPENING = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" word"},"finish":null}]}\n\n'


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b": ping\n\n", OPENING, WORD])
def test_a_stream_that_ends_in_something_short_has_no_more_tokens_for_it(last: bytes) -> None:
    size = len(OPENING) + 100 * len(WORD) + len(last)
    assert completion_tokens(size, OPENING, last) == pytest.approx(100, abs=10)
