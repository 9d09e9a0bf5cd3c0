"""Tokens, guessed from bytes: before a provider has counted them, and when it never comes to say. No tokenizer.

    prompt        ASCII / 4, digits / 2, a mark in JSON within JSON 1/2, letters of other scripts by the length of their
                  UTF-8, IMAGE_TOKENS for each image; base64 is not counted as text, and long texts are sampled
    completion    of each event that holds text, its ASCII / 4 and at least 1

The error of this is measured by bench/estimates.py; the table is in docs/explanation/limits.md.
"""

from __future__ import annotations

import re
from typing import Final

from svc.dialects.json_skeleton import strip_long_strings
from svc.wire.usage import TokenUsage

ASCII_CHARS_PER_TOKEN: Final = 4.0
DIGITS_PER_TOKEN: Final = 2.0
TWO_BYTE_LETTER_BYTES_PER_TOKEN: Final = 2.8
"""Letters of Cyrillic, Greek, Arabic and accented ones; English ones are longer words."""
THREE_BYTE_LETTER_BYTES_PER_TOKEN: Final = 1.1
"""Of Chinese, Japanese, Korean."""
INDIC_LETTERS_PER_TOKEN: Final = 1.6
"""Of Hindi, Bengali, Tamil, Thai: 2.1 to 2.8 with new vocabularies, 0.5 to 1 with old ones; the middle of these."""
TOKENS_PER_EMOJI: Final = 2.0
"""Tokens of an emoji."""
MIN_BYTES_PER_TOKEN: Final = 2.0
"""Bytes of a token: no text has more tokens than this by our estimate."""
TOKENS_PER_IMAGE: Final = 1000
"""An image of a megapixel costs 765 to 1,600 tokens with the vendors."""
TOKENS_PER_LOW_DETAIL_IMAGE: Final = 85
"""With `"detail": "low"`."""
DOCUMENT_BASE64_BYTES_PER_TOKEN: Final = 40
"""Of base64 for a token: a page of 60 kB costs some 2,000."""
AUDIO_BASE64_BYTES_PER_TOKEN: Final = 1500
"""Of base64 for a token: a second of sound costs some 10."""

SAMPLE_BYTES, SAMPLE_COUNT = 4096, 4
"""Of a long text so many bytes are looked at, at so many places."""

_DIGITS: Final = b"0123456789"
_NOT_TWO_BYTE_LEADS: Final = bytes(set(range(256)) - set(range(0xC2, 0xE0)))
_NOT_THREE_BYTE_LEADS: Final = bytes(set(range(256)) - set(range(0xE0, 0xF0)))
_NOT_FOUR_BYTE_LEADS: Final = bytes(set(range(256)) - set(range(0xF0, 0xF5)))
_INDIC_LEAD_BYTE: Final = b"\xe0"
"""What the letters of U+0800 to U+0FFF begin with."""
_NON_ASCII_BYTES: Final = bytes(range(0x80, 0x100))
_IMAGE_PART: Final = re.compile(rb'"image_url"\s*:|"type"\s*:\s*"image"')
_BASE64_FIELDS: Final = re.compile(rb'base64|"input_audio"|"image_url"|"file_data"')
_LOW_DETAIL: Final = re.compile(rb'"detail"\s*:\s*"low"')
_DOCUMENT_PART: Final = re.compile(rb'"type"\s*:\s*"(?:document|file|input_file)"')
_TWO_BYTE_ESCAPE: Final = re.compile(rb"\\u0[0-7][0-9a-fA-F]{2}")
_INDIC_ESCAPE: Final = re.compile(rb"\\u0[89a-fA-F][0-9a-fA-F]{2}")
_UNICODE_ESCAPE: Final = re.compile(rb"\\u[0-9a-fA-F]{4}")
_BASE64_RUN: Final = re.compile(rb"(?<![A-Za-z0-9+/=\\])[A-Za-z0-9+/=\\]{256,}+")
"""Only from the start of a run: a shorter run is not looked at again from each of its letters."""
_TEXT_FIELD: Final = re.compile(
    rb'"(?:content|reasoning_content|arguments|text|thinking|partial_json)"\s*:\s*"((?:[^"\\]|\\.)*+)"'
)


def estimate_prompt_tokens(raw: bytes, skeleton: bytes = b"") -> int:
    """Of a request's JSON body, tools and all; at least 1. `short` is its outline, if it is known."""
    tokens = 0.0
    skeleton = skeleton or strip_long_strings(
        raw
    )  # what a megabyte holds is told by its fields, not searched for in all of it
    if skeleton.find(b'"type"') < 0:  # then it has no parts but text
        pass
    elif _BASE64_FIELDS.search(skeleton) is not None:
        text = _BASE64_RUN.sub(b"", raw)
        tokens = _estimate_media_tokens(raw, len(raw) - len(text))
        raw = text
    elif b"image" in skeleton:
        tokens = _estimate_media_tokens(raw, 0)
    size = len(raw)
    if size > 2 * SAMPLE_COUNT * SAMPLE_BYTES:
        raw = b"".join([raw[at : at + SAMPLE_BYTES] for at in range(0, size - SAMPLE_BYTES, size // SAMPLE_COUNT)])
    return max(1, int(tokens + _estimate_text_tokens(raw) * size / max(1, len(raw))))


def _estimate_text_tokens(raw: bytes) -> float:
    tokens = 0.0
    if not raw.isascii():
        tokens += len(raw.translate(None, _NOT_TWO_BYTE_LEADS)) / TWO_BYTE_LETTER_BYTES_PER_TOKEN
        indic = raw.count(_INDIC_LEAD_BYTE)
        tokens += (
            len(raw.translate(None, _NOT_THREE_BYTE_LEADS)) - indic
        ) / THREE_BYTE_LETTER_BYTES_PER_TOKEN + indic / INDIC_LETTERS_PER_TOKEN
        tokens += len(raw.translate(None, _NOT_FOUR_BYTE_LEADS)) * TOKENS_PER_EMOJI
        raw = raw.translate(None, _NON_ASCII_BYTES)
    if 0x5C in raw:  # a backslash
        tokens += raw.count(b'\\"') / 2
        if b"\\u" in raw:  # letters of other scripts, as six bytes of ASCII
            raw, short = _TWO_BYTE_ESCAPE.subn(b"", raw)
            raw, indic = _INDIC_ESCAPE.subn(b"", raw)
            raw, long = _UNICODE_ESCAPE.subn(b"", raw)
            tokens += (
                short / TWO_BYTE_LETTER_BYTES_PER_TOKEN
                + indic / INDIC_LETTERS_PER_TOKEN
                + long / THREE_BYTE_LETTER_BYTES_PER_TOKEN
            )
    letters = len(raw.translate(None, _DIGITS))
    return tokens + letters / ASCII_CHARS_PER_TOKEN + (len(raw) - letters) / DIGITS_PER_TOKEN


def _estimate_media_tokens(raw: bytes, base64_bytes: int) -> float:
    """Of images, and of documents or sound that are `base64` bytes long."""
    images, low_detail = len(_IMAGE_PART.findall(raw)), len(_LOW_DETAIL.findall(raw))
    tokens = (
        float((images - low_detail) * TOKENS_PER_IMAGE + low_detail * TOKENS_PER_LOW_DETAIL_IMAGE) if images else 0.0
    )
    if _DOCUMENT_PART.search(raw):
        tokens += base64_bytes / DOCUMENT_BASE64_BYTES_PER_TOKEN
    elif b'"input_audio"' in raw:
        tokens += base64_bytes / AUDIO_BASE64_BYTES_PER_TOKEN
    return tokens


def estimate_completion_tokens(size: int, first: bytes, last: bytes) -> int:
    """Of a stream of `size` bytes: counted in its first and last piece, in between as dense as in these."""
    if not first:  # not a stream
        return int(size / ASCII_CHARS_PER_TOKEN)
    length, tokens = _measure_events(first)
    middle_bytes = size - len(first)
    if last is not first:
        middle_bytes -= len(last)
        last_length, last_tokens = _measure_events(last)
        length, tokens = length + last_length, tokens + last_tokens
    if not length:  # neither holds text, so what lies between does: a token in each event, as long as the first ones
        return round(middle_bytes * max(1, first.count(b"\n\n")) / len(first))
    return tokens + round(middle_bytes * tokens / length)


def _measure_events(chunk: bytes) -> tuple[int, int]:
    """Bytes of the events that hold text, and the tokens in them: at least one in each."""
    length = tokens = 0
    for event in chunk.split(b"\n\n"):
        text = sum(len(found) for found in _TEXT_FIELD.findall(event))
        if text:
            length += len(event) + 2
            tokens += max(1, int(text / ASCII_CHARS_PER_TOKEN))
    return length, tokens


def billable_usage(reported_usage: TokenUsage | None, raw: bytes, completion_estimate: int) -> tuple[TokenUsage, bool]:
    """What is owed for an answer whose end the provider did not come to tell, and whether that is a guess.

    `guess`: tokens of the completion.
    """
    if (
        reported_usage is not None
    ):  # Anthropic tells the prompt's tokens at the start, and of the completion only the first
        if reported_usage.completion_tokens >= completion_estimate:
            return reported_usage, False
        return TokenUsage(
            reported_usage.prompt_tokens,
            completion_estimate,
            reported_usage.cached_tokens,
            reported_usage.cache_write_tokens,
            reported_usage.reasoning_tokens,
        ), True
    return TokenUsage(prompt_tokens=estimate_prompt_tokens(raw), completion_tokens=completion_estimate), True
