"""Estimates tokens from bytes, before a provider reports usage or if it never does. It needs no tokenizer.

    prompt        ASCII / 4, digits / 2, escaped quotes / 2, letters of other scripts by the length of their UTF-8,
                  TOKENS_PER_IMAGE for each image; base64 of images, documents and other media is not counted as
                  text, nor are ids of items of the Responses API, and long texts are sampled
    completion    for each event with text, its ASCII / 4, and at least 1; bytes / 4 of the texts of other responses

bench/estimates.py measures the error. docs/explanation/limits.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from svc.dialects.base import RequestBody
from svc.dialects.json_scan import find_closing_quote
from svc.dialects.json_skeleton import MIN_SKELETON_BODY_BYTES, strip_long_strings
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.text_weight import (
    ASCII_CHARS_PER_TOKEN,
    BYTE_WEIGHTS,
    UNICODE_ESCAPE_BYTES,
    UNICODE_ESCAPE_DIGITS,
    WEIGHT_UNITS_PER_TOKEN,
    take_samples,
    weigh_text,
)
from svc.wire.usage import TokenUsage

TYPICAL_EVENT_BYTES: Final = 150
"""Of an event with one token, for streams that arrive in pieces smaller than an event."""
MIN_BYTES_PER_TOKEN: Final = 2.0
"""Upper bound of the estimate: no text has more tokens than its bytes divided by this number."""
ASSUMED_OUTPUT_TOKENS: Final = 1024
"""Tokens assumed for a response whose length neither the request nor the model's settings limit."""
TOKENS_PER_IMAGE: Final = 1000
"""An image of one megapixel costs 765 to 1,600 tokens, depending on the vendor."""
TOKENS_PER_LOW_DETAIL_IMAGE: Final = 85
"""An image with `"detail": "low"`."""
DOCUMENT_BASE64_BYTES_PER_TOKEN: Final = 40
"""Base64 bytes per token of a document: a page of 60 kB costs about 2,000 tokens. The same for unknown media."""
AUDIO_BASE64_BYTES_PER_TOKEN: Final = 1500
"""Base64 bytes per token of audio: one second costs about 10 tokens."""

MIN_BODY_BYTES_WITH_MEDIA: Final = 4096
"""Below this size, a body whose messages have only text counts as text, since a search would cost a fifth more."""
SAMPLE_BYTES: Final = 64
SAMPLE_COUNT: Final = 8
"""Size and number of the samples of a text that is longer than all of them.

On varied requests, they change the estimate by 3 % (1 σ), and by 5 to 9 % on prompts that mix scripts.
"""
ITEM_SAMPLE_BYTES: Final = 512
ITEM_SAMPLE_COUNT: Final = 4
"""The same for items of the Responses API, of which a sample has to have whole fields."""

_IMAGE_PART: Final = re.compile(rb'"image_url"\s*:|"type"\s*:\s*"image"')
_SPECIAL_TYPE: Final = re.compile(
    rb'"type"\s*:\s*"(?!(?:text|function|object|string|number|integer|boolean|array|null|json_schema|json_object|tool|any'
    rb'|auto|tool_use|tool_result|thinking|ephemeral|enabled|disabled|adaptive|custom)")'
)
"""The type of a part or an item that may not be text. One search for it costs less than one for each mark."""
_BASE64_MARKS: Final = (b"base64", b'"input_audio"', b'"file_data"')
_LINK_MARKS: Final = (b'"image', b'_url"')
"""Marks of media as links or as base64. A skeleton does not tell which."""
_LOW_DETAIL: Final = re.compile(rb'"detail"\s*:\s*"low"')
_DOCUMENT_PART: Final = re.compile(rb'"type"\s*:\s*"(?:document|file|input_file)"')
MIN_BASE64_BYTES: Final = 256
"""Minimum length of a string with base64 of media."""
BASE64_SAMPLE_BYTES: Final = 64
BASE64_SAMPLE_COUNT: Final = 16
"""Size and number of the samples that tell base64 from text."""
_BASE64_CHARACTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_BASE64_ESCAPE: Final = re.compile(rb"\\(?:[/nr]|u00(?:2[BbFf]|3[Dd]))|\\[^\\]{0,4}\Z")
"""An escape in base64, or a part of one at the end. Some encoders escape slashes, and .NET's also plus signs."""
_DATA_URL_MARK: Final = b";base64,"
MAX_DATA_URL_PREFIX_BYTES: Final = 256
"""Maximum length of a data URL (RFC 2397) up to its base64."""
_ITEM_MARKS: Final = (b'put_text"', b'"function_call')
_ITEM_FIELDS: Final = re.compile(
    rb'"(?:(?:id|call_id|status)"\s*:\s*"[^"\\]{0,256}"|(?:annotations|logprobs|summary)"\s*:\s*\[\s*\]'
    rb'|type"\s*:\s*"(?:message|output_text|input_text)")\s*,?'
)
"""Fields of an item of the Responses API that a client sends back, which no model reads."""
_TEXT_FIELD_NAME: Final = rb'"(?:content|reasoning_content|refusal|arguments|text|thinking|partial_json|delta)"\s*:\s*"'
_TEXT_FIELD: Final = re.compile(_TEXT_FIELD_NAME + rb'((?:[^"\\]|\\.)*+)"')
_RESPONSE_TEXT_FIELD: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|arguments|input|text|thinking)"\s*:\s*'
    rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"',
    re.DOTALL,
)
"""A text in a complete response. vLLM and Ollama have their thinking in `reasoning`, and custom tools have `input`."""
_TOOL_USE_MARK: Final = b'"tool_use"'
"""Anthropic's tool calls have their input as JSON, whose fields have any names."""
_NONEMPTY_TEXT_FIELD: Final = re.compile(_TEXT_FIELD_NAME + rb'[^"]')


def estimate_prompt_tokens(raw: bytes) -> int:
    """Estimate the tokens of a JSON request body with its tools, at least 1."""
    return estimate_body_tokens(RequestBody(raw))


def estimate_body_tokens(body: RequestBody) -> int:
    """Estimate the tokens of a request body with its tools, at least 1.

    It uses what `decode_routing_info` has set: the skeleton, and whether messages have only text.
    """
    raw = body.raw
    if len(raw) >= MIN_BODY_BYTES_WITH_MEDIA or not body.has_only_text:
        skeleton = raw  # of a long body, the skeleton: searching it costs less than searching a megabyte
        if len(raw) >= MIN_SKELETON_BODY_BYTES:
            skeleton = body.skeleton or strip_long_strings(raw)
        if _may_have_media_or_items(body, skeleton):
            return _estimate_with_media_or_items(raw, skeleton)
    return max(1, weigh_text(raw, BYTE_WEIGHTS, SAMPLE_COUNT, SAMPLE_BYTES) // WEIGHT_UNITS_PER_TOKEN)


def _may_have_media_or_items(body: RequestBody, skeleton: bytes) -> bool:
    if body.has_only_text:  # fields beside the content can have links and data, such as OpenRouter's `images`
        return skeleton.find(b'"image_url"') >= 0
    return _SPECIAL_TYPE.search(skeleton) is not None


def _estimate_with_media_or_items(raw: bytes, skeleton: bytes) -> int:
    tokens, raw = _separate_media(raw, skeleton)
    if _contains_any(raw, _ITEM_MARKS):
        sample = take_samples(raw, ITEM_SAMPLE_COUNT, ITEM_SAMPLE_BYTES)
        text, all_bytes = _ITEM_FIELDS.sub(b"", sample), ITEM_SAMPLE_BYTES + UNICODE_ESCAPE_BYTES
        weight = weigh_text(text, BYTE_WEIGHTS, ITEM_SAMPLE_COUNT, all_bytes) * len(raw) // max(1, len(sample))
    else:
        weight = weigh_text(raw, BYTE_WEIGHTS, SAMPLE_COUNT, SAMPLE_BYTES)
    return max(1, int(tokens + weight / WEIGHT_UNITS_PER_TOKEN))


def _separate_media(raw: bytes, skeleton: bytes) -> tuple[float, bytes]:
    """Return the estimated tokens of the media of a body, and the body without their base64."""
    has_links = _contains_any(skeleton, _LINK_MARKS)
    if not _contains_any(skeleton, _BASE64_MARKS) and not (has_links and skeleton is not raw):
        return (_estimate_media_tokens(skeleton, 0) if has_links else 0.0), raw
    text, base64_bytes = _remove_base64(raw)
    return _estimate_media_tokens(skeleton, base64_bytes), text


def _remove_base64(raw: bytes) -> tuple[bytes, int]:
    """Return a body without the base64 of its strings, and the length of that base64 without escapes."""
    segments: list[bytes] = []
    copied_to = base64_bytes = 0
    start = raw.find(b'"')
    while start >= 0:
        end = find_closing_quote(raw, start + 1)
        if end < 0:
            break
        if end - start > MIN_BASE64_BYTES:
            mark = raw.find(_DATA_URL_MARK, start, start + MAX_DATA_URL_PREFIX_BYTES)
            data_start = start + 1 if mark < 0 else mark + len(_DATA_URL_MARK)
            if _is_base64(raw, data_start, end):
                base64_bytes += _count_unescaped(raw, data_start, end)
                segments.append(raw[copied_to:data_start])
                copied_to = end
        start = raw.find(b'"', end + 1)
    segments.append(raw[copied_to:])
    return b"".join(segments), base64_bytes


def _is_base64(raw: bytes, start: int, end: int) -> bool:
    """Return whether samples of a string have only characters of base64, which may be escaped."""
    size, step = BASE64_SAMPLE_BYTES, max(BASE64_SAMPLE_BYTES, (end - start) // BASE64_SAMPLE_COUNT)
    while start < end:
        sample = raw[start : min(start + size, end)]
        if sample.find(b"\\") >= 0:
            sample = _BASE64_ESCAPE.sub(b"", sample)
        if sample.translate(None, _BASE64_CHARACTERS):
            return False
        start += step
    return True


def _count_unescaped(raw: bytes, start: int, end: int) -> int:
    """Return the length of base64 without the escapes of its slashes, plus signs and equals signs."""
    length = end - start
    if raw.find(b"\\", start, end) < 0:
        return length
    unicode_escapes = raw.count(b"\\u", start, end)
    return length - raw.count(b"\\", start, end) - unicode_escapes * UNICODE_ESCAPE_DIGITS


def _contains_any(raw: bytes, marks: tuple[bytes, ...]) -> bool:
    return any(raw.find(mark) >= 0 for mark in marks)


def estimate_input_tokens(body: RequestBody, routing_info: RoutingInfo) -> int:
    """Estimate what a request's input is billed for, with the stored items that it continues.

    For speech, these are the characters of the text.
    """
    return routing_info.spoken_characters or estimate_body_tokens(body) + body.earlier_tokens


def _estimate_media_tokens(skeleton: bytes, base64_bytes: int) -> float:
    """Estimate the tokens of images, and of documents, audio or other media of `base64_bytes` bytes."""
    images = len(_IMAGE_PART.findall(skeleton))
    low_detail = len(_LOW_DETAIL.findall(skeleton)) if images else 0
    tokens = float((images - low_detail) * TOKENS_PER_IMAGE + low_detail * TOKENS_PER_LOW_DETAIL_IMAGE)
    if not base64_bytes:
        return tokens
    if _DOCUMENT_PART.search(skeleton):
        return tokens + base64_bytes / DOCUMENT_BASE64_BYTES_PER_TOKEN
    if b'"input_audio"' in skeleton:
        return tokens + base64_bytes / AUDIO_BASE64_BYTES_PER_TOKEN
    return tokens if images else base64_bytes / DOCUMENT_BASE64_BYTES_PER_TOKEN


def estimate_completion_tokens(size: int, first: bytes, last: bytes) -> int:
    """Estimate the tokens of a stream of `size` bytes from the text density of its first and last chunks."""
    if not first:  # not a stream
        return int(size / ASCII_CHARS_PER_TOKEN)
    length, tokens = _measure_events(first)
    middle_bytes = size - len(first)
    if last is not first:
        middle_bytes -= len(last)
        last_length, last_tokens = _measure_events(last)
        length, tokens = length + last_length, tokens + last_tokens
    if not length:  # no text in either: one token per event in between, with the size of the first ones
        events = first.count(b"\n\n")
        return round(middle_bytes * events / len(first)) if events else middle_bytes // TYPICAL_EVENT_BYTES
    return tokens + round(middle_bytes * tokens / length)


def estimate_response_tokens(body: bytes) -> int:
    """Estimate the completion tokens of a complete response from its texts, or else from all of its bytes.

    Anthropic's tool calls count with all bytes, too.
    """
    length = 0
    if body.find(_TOOL_USE_MARK) < 0:
        length = sum([len(text) for text in _RESPONSE_TEXT_FIELD.findall(body)])
    return max(1, int((length or len(body)) / ASCII_CHARS_PER_TOKEN))


def _measure_events(chunk: bytes) -> tuple[int, int]:
    """Return the bytes of the events with text, and their tokens, at least one for each event."""
    length = tokens = 0
    for event in chunk.split(b"\n\n"):
        text = sum(len(text_field) for text_field in _TEXT_FIELD.findall(event))
        if text:
            length += len(event) + 2
            tokens += max(1, int(text / ASCII_CHARS_PER_TOKEN))
    return length, tokens


def find_text_chunk(chunks: Sequence[bytes]) -> bytes:
    """Return the last chunk of a stream with a text that is not empty, or the last one."""
    for chunk in reversed(chunks):
        if _NONEMPTY_TEXT_FIELD.search(chunk) is not None:
            return chunk
    return chunks[-1]


def billable_usage(reported_usage: TokenUsage | None, raw: bytes, completion_estimate: int) -> tuple[TokenUsage, bool]:
    """Return the billable usage of an interrupted response, and whether it is an estimate.

    `completion_estimate` is the estimated number of completion tokens. `reported_usage` may be that of the first
    event: Anthropic's has the prompt tokens, but only the first completion tokens.
    """
    if reported_usage is not None:
        if reported_usage.completion_tokens >= completion_estimate:
            return reported_usage, False
        return reported_usage.with_completion_tokens(completion_estimate), True
    return TokenUsage(prompt_tokens=estimate_prompt_tokens(raw), completion_tokens=completion_estimate), True
