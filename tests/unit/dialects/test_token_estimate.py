"""Token estimates: close to what tokenizers count, for any text, in linear time."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from svc.dialects.anthropic import routing_info as anthropic
from svc.dialects.base import RequestBody
from svc.dialects.openai import routing_info as openai
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import (
    MIN_BYTES_PER_TOKEN,
    billable_usage,
    estimate_body_tokens,
    estimate_completion_tokens,
    estimate_prompt_tokens,
    estimate_response_tokens,
)
from svc.wire.usage import TokenUsage


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
def test_prompt_tokens_natural_text_is_close_to_tokenizers(text: str, fewest: int, most: int) -> None:
    assert 0.7 * fewest <= estimate_prompt_tokens(body(text)) <= 1.4 * most


@pytest.mark.parametrize("text", ["plain", "Größe", "Привет, мир", "你好,世界", "नमस्ते", 'say "hi" ✅ 🚀'])
def test_prompt_tokens_unicode_escapes_change_estimate_little(text: str) -> None:
    plain = body(text * 200)
    escaped = json.dumps(json.loads(plain)).encode()
    assert estimate_prompt_tokens(escaped) == pytest.approx(estimate_prompt_tokens(plain), rel=0.25)


def test_prompt_tokens_long_text_scales_with_length() -> None:
    for text in ("word " * 1000, "слово " * 1000, '{"a": 1.5} ' * 500):
        once, often = estimate_prompt_tokens(body(text)), estimate_prompt_tokens(body(text * 40))
        assert often == pytest.approx(40 * once, rel=0.1)


def test_prompt_tokens_items_of_earlier_responses_count_their_text() -> None:
    text = "The gateway keeps a ledger of all requests."
    plain: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    plain_tokens = item_tokens = 0
    for number in range(60):
        role, kind = ("assistant", "output_text") if number % 2 else ("user", "input_text")
        more = {"annotations": [], "logprobs": []} if number % 2 else {}
        plain.append({"role": role, "content": text})
        ids = {"id": f"msg_{number:040x}", "status": "completed", "type": "message"}
        items.append({**ids, "role": role, "content": [{"type": kind, "text": text, **more}]})
        if number >= 20:  # the samples cut the fields at other places in each
            plain_tokens += estimate_prompt_tokens(json.dumps({"model": "m", "input": plain}).encode())
            item_tokens += estimate_prompt_tokens(json.dumps({"model": "m", "input": items}).encode())
    assert item_tokens == pytest.approx(plain_tokens, rel=0.35)
    call = {
        "type": "function_call",
        "id": "fc_" + "7" * 50,
        "call_id": "call_" + "8" * 50,
        "name": "f",
        "arguments": "{}",
    }
    assert estimate_prompt_tokens(json.dumps({"model": "m", "input": [call] * 30}).encode()) < 30 * 25


@pytest.mark.parametrize(("letter", "letters_per_token"), [("\u0436", 2.8), ("\u6c34", 1.1), ("\u0915", 1.6)])
def test_prompt_tokens_opening_of_a_body_counts_no_more_than_its_share(letter: str, letters_per_token: float) -> None:
    """The opening has more tokens per byte than escapes."""
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": letter * 3000}]}).encode()
    assert estimate_prompt_tokens(raw) == pytest.approx(3000 / letters_per_token, rel=0.05)


def test_prompt_tokens_media_are_not_counted_as_text() -> None:
    data = base64.b64encode(b"\x01\x02\xfe" * 400_000).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    small = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}}
    anthropic_image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    linked = {"type": "image_url", "image_url": {"url": "https://images.example/a.png"}}
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    for parts, fewest, most in (
        ([image], 1000, 1100),
        ([image, image, anthropic_image, linked], 4000, 4200),
        ([small], 85, 150),
        ([sound], 500, 1500),
        ([document], 10_000, 80_000),
    ):
        assert fewest <= estimate_prompt_tokens(body(parts)) <= most


ANTHROPIC_IMAGE = {"type": "image", "source": {"type": "url", "url": "https://images.example/a.png"}}
TEXT = {"type": "text", "text": "Hello"}
RESULT = {"type": "tool_result", "tool_use_id": "t"}


@pytest.mark.parametrize(
    ("decode", "content", "has_only_text"),
    [
        (openai.decode_routing_info, "Hello", True),
        (openai.decode_routing_info, [TEXT, {"type": "refusal", "refusal": "No"}], True),
        (openai.decode_routing_info, [TEXT, {"type": "image_url", "image_url": {"url": "https://a.example/a"}}], False),
        (openai.decode_routing_info, [{"type": "unknown"}], False),
        (anthropic.decode_routing_info, [TEXT, {"type": "thinking", "thinking": "", "signature": "c2ln"}], True),
        (anthropic.decode_routing_info, [TEXT, ANTHROPIC_IMAGE], False),
        (anthropic.decode_routing_info, [{**RESULT, "content": "Fine"}], True),
        (anthropic.decode_routing_info, [RESULT], True),
        (anthropic.decode_routing_info, [{**RESULT, "content": [TEXT]}], True),
        (
            anthropic.decode_routing_info,
            [{"type": "tool_result", "tool_use_id": "t", "content": [ANTHROPIC_IMAGE]}],
            False,
        ),
        (
            anthropic.decode_routing_info,
            [{"type": "tool_result", "tool_use_id": "t", "content": {"type": "text"}}],
            False,
        ),
        (anthropic.decode_routing_info, [{"type": "document", "source": {"type": "file", "file_id": "f"}}], False),
    ],
)
def test_routing_info_tells_bodies_with_only_text(
    decode: Callable[[RequestBody], RoutingInfo], content: Any, has_only_text: bool
) -> None:
    found = RequestBody(body(content, max_tokens=10))
    decode(found)
    assert found.has_only_text is has_only_text
    has_image = "image" in json.dumps(content)
    assert (estimate_body_tokens(found) > 1000) is has_image


def test_prompt_tokens_tools_are_counted() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "What it does. " * 20, "parameters": {}}}
    more = estimate_prompt_tokens(body("Hi", tools=[tool])) - estimate_prompt_tokens(body("Hi"))
    assert 60 <= more <= 130


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff" * 100, b"\\u" * 100, b"\\u0" * 100, b"base64" * 100, b"9" * 100_000]
)
def test_prompt_tokens_malformed_body_returns_bounded_estimate(raw: bytes) -> None:
    assert 1 <= estimate_prompt_tokens(raw) <= max(1, len(raw)) / MIN_BYTES_PER_TOKEN + 200


def test_prompt_tokens_thirty_megabytes_takes_linear_time() -> None:
    for raw in (
        b"word " * 6_000_000,
        b"\\" * 30_000_000,
        b"A" * 30_000_000 + b"base64",
        b'"type":"image" ' * 2_000_000,
    ):
        began = time.process_time()
        estimate_prompt_tokens(raw)
        assert time.process_time() - began < 20.0  # a quadratic scan takes minutes


OPENING = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" word"},"finish":null}]}\n\n'


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b": ping\n\n", OPENING, WORD])
def test_completion_tokens_short_last_event_does_not_raise_estimate(last: bytes) -> None:
    size = len(OPENING) + 100 * len(WORD) + len(last)
    assert estimate_completion_tokens(size, OPENING, last) == pytest.approx(100, abs=10)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b"a" * 400, 100),
        (b"1" * 400, 200),
        (b"a" * 200 + b"1" * 200, 150),
        ("é".encode() * 280, 100),
        ("語".encode() * 110, 100),
        ("क".encode() * 160, 100),
        ("🚀".encode() * 100, 200),
        (b'\\"' * 200, 200),  # an escaped quote: two bytes and one token
        (b"\\u0439" * 140, 50),
        (b"\\u8a9e" * 110, 100),
        (b"\\u0915" * 160, 100),
        (b"\\n" * 200, 100),
    ],
)
def test_prompt_tokens_each_script_uses_its_own_density(text: bytes, tokens: int) -> None:
    assert estimate_prompt_tokens(text) == pytest.approx(tokens, abs=1)


@pytest.mark.parametrize("count", [180, 280, 500, 3001])
def test_prompt_tokens_samples_do_not_cut_escapes(count: int) -> None:
    assert estimate_prompt_tokens(b"\\u0439" * count) == pytest.approx(count / 2.8, rel=0.01)


@pytest.mark.parametrize("text", [text for text, _, _ in TEXTS])
def test_prompt_tokens_samples_of_a_text_are_close_to_all_of_it(text: str) -> None:
    for is_escaped in (False, True):
        raw = json.dumps(text * 8, ensure_ascii=is_escaped).encode()
        parts = [raw[start : start + 1020] for start in range(0, len(raw), 1020)]  # not sampled, a multiple of 6
        assert estimate_prompt_tokens(raw) == pytest.approx(sum(map(estimate_prompt_tokens, parts)), rel=0.1)


def test_prompt_tokens_escaped_backslash_before_u_is_no_letter() -> None:
    assert estimate_prompt_tokens(rb"C:\\\\users" * 10) == pytest.approx(len(rb"C:\\\\users") * 10 / 4, abs=1)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "image_generation"}]},
        {"tools": [{"type": "mcp", "server_label": "s", "server_url": "https://mcp.example"}]},
        {"tools": [{"type": "special", "about": "base64"}]},
        {"input": [{"type": "message", "content": [{"type": "input_image", "image_url": "https://a.example/a.png"}]}]},
    ],
)
def test_prompt_tokens_text_beside_media_counts_without_spaces(more: dict[str, Any]) -> None:
    text = "网关检查密钥统计令牌数量并记录每个请求的费用" * 50
    images = 1000 * ("input" in more)
    for is_escaped in (False, True):
        raw = json.dumps({"model": "m", "instructions": text, **more}, ensure_ascii=is_escaped).encode()
        assert estimate_prompt_tokens(raw) - images == pytest.approx(len(text) / 1.1, rel=0.1)


def test_prompt_tokens_base64_of_unknown_media_counts_as_that_of_a_document() -> None:
    data = base64.b64encode(b"\x01\x02\xfe\xfb\xff" * 12_000 + b"x").decode()
    assert {"+", "/", "="} <= set(data)
    video = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}
    escaped = body([video]).replace(b"/", b"\\/")
    dotnet = body([video]).replace(b"+", b"\\u002B").replace(b"/", b"\\u002f").replace(b"=", b"\\u003D")
    for raw in (body([video]), escaped, dotnet):
        assert estimate_prompt_tokens(raw) == pytest.approx(len(data) / 40, rel=0.1)


@pytest.mark.parametrize(
    "data",
    [
        base64.encodebytes(bytes(range(256)) * 200).decode(),
        base64.encodebytes(bytes(range(256)) * 200).decode().replace("\n", "\r\n"),
        "data:image/png;charset=x;base64," + base64.b64encode(bytes(range(256)) * 200).decode(),
    ],
    ids=["lines", "lines of MIME", "data URL"],
)
def test_prompt_tokens_each_form_of_base64_is_not_counted_as_text(data: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert 1000 <= estimate_prompt_tokens(body([image])) <= 1100


@pytest.mark.parametrize("text", ["A word. " * 1000, "\u8a9e" * 3000, '{"image": "' + "QUJD" * 2000 + '"}'])
def test_prompt_tokens_text_beside_base64_is_counted(text: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 2000}}
    expected = estimate_prompt_tokens(body(text)) + 1000
    for is_escaped in (False, True):
        raw = json.dumps(json.loads(body([image, {"type": "text", "text": text}])), ensure_ascii=is_escaped).encode()
        assert estimate_prompt_tokens(raw) == pytest.approx(expected, rel=0.1)


def test_body_tokens_images_beside_a_text_are_not_counted_as_text() -> None:
    data = base64.b64encode(b"\x01\x02\xfe" * 20_000).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    messages = [
        {"role": "user", "content": "Draw"},
        {"role": "assistant", "content": "Here.", "images": [image]},
        {"role": "user", "content": "Again"},
    ]
    found = RequestBody(json.dumps({"model": "m", "messages": messages}).encode())
    openai.decode_routing_info(found)
    assert found.has_only_text
    assert 1000 <= estimate_body_tokens(found) <= 1100


@pytest.mark.parametrize("size", [5_000, 20_000])
def test_body_tokens_small_image_beside_a_text_is_not_counted_as_text(size: int) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'iVBORw0KGgo' * (size // 11)}"}}
    messages = [{"role": "assistant", "content": "Here.", "images": [image]}]
    found = RequestBody(json.dumps({"model": "m", "messages": messages}).encode())
    openai.decode_routing_info(found)
    assert found.has_only_text
    assert 1000 <= estimate_body_tokens(found) <= 1100


def test_prompt_tokens_long_text_is_proportional_to_size() -> None:
    assert estimate_prompt_tokens(b"a" * 400_000) == pytest.approx(100_000, rel=0.001)
    assert estimate_prompt_tokens(b"a" * 32_768) == 8192
    half = b"a" * 200_000 + b"1" * 200_000
    assert estimate_prompt_tokens(half) == pytest.approx(150_000, rel=0.1)


def test_response_tokens_count_texts_without_the_json_around_them() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "' + "b" * 91 + '"}'}}
    message = {"role": "assistant", "content": "a" * 400, "reasoning": "c" * 200, "tool_calls": [call]}
    extra = {"extra_content": {"google": {"thought_signature": "c2ln" * 1000}}}
    body = {"id": "x" * 100, "choices": [{"message": message | extra, "finish_reason": "tool_calls"}]}
    assert estimate_response_tokens(json.dumps(body).encode()) == pytest.approx(175, abs=2)
    assert estimate_response_tokens(b'{"content": "a\\"b"}') == 1
    assert estimate_response_tokens(b"\xff" * 400) == 100


@pytest.mark.parametrize(
    "response",
    [
        {"content": [{"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "c" * 4000, "text": "t"}}]},
        {"choices": [{"message": {"content": "Ok", "tool_calls": [{"custom": {"name": "f", "input": "c" * 4000}}]}}]},
        {"output": [{"type": "custom_tool_call", "name": "f", "input": "c" * 4000}]},
    ],
    ids=["messages", "chat completions", "responses"],
)
def test_response_tokens_input_of_tools_is_counted(response: dict[str, Any]) -> None:
    assert estimate_response_tokens(json.dumps(response).encode()) == pytest.approx(1000, abs=50)


def test_completion_tokens_interrupted_stream_interpolates_between_first_and_last() -> None:
    assert estimate_completion_tokens(4000, b"", b"") == 1000
    two = WORD * 2
    assert estimate_completion_tokens(len(two), two, two) == 2
    assert estimate_completion_tokens(len(WORD) * 50, WORD, WORD * 4) == 50
    assert (
        estimate_completion_tokens(len(OPENING) * 30, OPENING, OPENING) == 29
    )  # no text in the first and last events: one token for each event
    assert estimate_completion_tokens(len(OPENING) * 30, OPENING * 2, b": ping\n\n") == pytest.approx(28, abs=1)


def test_completion_tokens_pieces_smaller_than_an_event_do_not_multiply_the_estimate() -> None:
    size = len(OPENING) + 180 * len(WORD)
    assert 60 <= estimate_completion_tokens(size, OPENING[:7], b"]}\n\n") <= 250


def test_completion_tokens_long_event_is_proportional_to_length() -> None:
    event = b'data: {"choices":[{"delta":{"content":"' + b"word " * 80 + b'"}}]}\n\n'
    assert estimate_completion_tokens(len(event), event, event) == 100
    assert estimate_completion_tokens(len(event) * 11, event, event) == 100 * 11
    fields = b'data: {"a":{"content":"' + b"x" * 40 + b'","reasoning_content":"' + b"y" * 40 + b'"}}\n\n'
    assert estimate_completion_tokens(len(fields), fields, fields) == 20
    refusal = event.replace(b"content", b"refusal")
    assert estimate_completion_tokens(len(refusal), refusal, refusal) == 100


def test_billable_usage_reported_is_used_unless_more_was_generated() -> None:
    reported = TokenUsage(10, 50, cached_tokens=4, cache_write_tokens=3, reasoning_tokens=2)
    assert billable_usage(reported, b"{}", 50) == (reported, False)
    assert billable_usage(reported, b"{}", 49) == (reported, False)
    assert billable_usage(reported, b"{}", 51) == (TokenUsage(10, 51, 4, 3, 2), True)


def test_billable_usage_without_report_is_estimated_from_request() -> None:
    usage, is_estimate = billable_usage(None, b"a" * 400, 7)
    assert (usage, is_estimate) == (TokenUsage(100, 7), True)


def test_prompt_tokens_runs_similar_to_base64_take_linear_time() -> None:
    raw = body([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": ("a" * 255 + " ") * 32_768}])
    began = time.process_time()
    estimate_prompt_tokens(raw)
    assert time.process_time() - began < 1.0  # a scan that restarts at each letter takes 2.6 s


@pytest.mark.parametrize(
    "content",
    [
        [
            {"type": "image_url", "image_url": {"url": "http://a/b.png"}},
            {"type": "text", "text": "abcdefgh" * 1500},
        ],
        [{"type": "video", "video": ["data:image/jpeg;base64," + "QUJD" * 5000]}],
        [{"type": "file", "file": {"data": "data:application/pdf;base64," + "QUJD" * 3000}}],
    ],
    ids=["link", "video", "file"],
)
def test_reserved_tokens_chat_below_the_size_of_skeletons_are_those_of_the_bill(content: Any) -> None:
    chat = RequestBody(body(content))
    openai.decode_routing_info(chat)
    assert estimate_body_tokens(chat) == estimate_prompt_tokens(chat.raw)
