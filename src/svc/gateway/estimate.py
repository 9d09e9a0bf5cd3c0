"""Tokens, guessed from bytes: before a provider has counted them, and when it never comes to say. No tokenizer.

    prompt        ASCII / 4, digits / 2, a mark in JSON within JSON 1/2, letters of other scripts by the length of their
                  UTF-8, IMAGE_TOKENS for each image; base64 is not counted as text, and long texts are sampled
    completion    of each event that holds text, its ASCII / 4 and at least 1

The error of this is measured by bench/estimates.py; the table is in docs/explanation/limits.md.
"""

from __future__ import annotations

import re
from typing import Final

from svc.dialects.outline import outline
from svc.wire.usage import Usage

ASCII_PER_TOKEN: Final = 4.0
DIGITS_PER_TOKEN: Final = 2.0
TWO_BYTES_PER_TOKEN: Final = 2.8
"""Letters of Cyrillic, Greek, Arabic and accented ones; English ones are longer words."""
THREE_BYTES_PER_TOKEN: Final = 1.1
"""Of Chinese, Japanese, Korean."""
INDIC_PER_TOKEN: Final = 1.6
"""Of Hindi, Bengali, Tamil, Thai: 2.1 to 2.8 with new vocabularies, 0.5 to 1 with old ones; the middle of these."""
FOUR_BYTES: Final = 2.0
"""Tokens of an emoji."""
DENSEST: Final = 2.0
"""Bytes of a token: no text has more tokens than this by our estimate."""
IMAGE_TOKENS: Final = 1000
"""An image of a megapixel costs 765 to 1,600 tokens with the vendors."""
SMALL_IMAGE_TOKENS: Final = 85
"""With `"detail": "low"`."""
DOCUMENT_BYTES: Final = 40
"""Of base64 for a token: a page of 60 kB costs some 2,000."""
AUDIO_BYTES: Final = 1500
"""Of base64 for a token: a second of sound costs some 10."""

SAMPLE, SAMPLES = 4096, 4
"""Of a long text so many bytes are looked at, at so many places."""

_NUMERALS: Final = b"0123456789"
_NOT_TWO: Final = bytes(set(range(256)) - set(range(0xC2, 0xE0)))
_NOT_THREE: Final = bytes(set(range(256)) - set(range(0xE0, 0xF0)))
_NOT_FOUR: Final = bytes(set(range(256)) - set(range(0xF0, 0xF5)))
_INDIC: Final = b"\xe0"
"""What the letters of U+0800 to U+0FFF begin with."""
_CONTINUED: Final = bytes(range(0x80, 0x100))
_IMAGE: Final = re.compile(rb'"image_url"\s*:|"type"\s*:\s*"image"')
_ENCODED: Final = re.compile(rb'base64|"input_audio"|"image_url"|"file_data"')
_SMALL: Final = re.compile(rb'"detail"\s*:\s*"low"')
_DOCUMENT: Final = re.compile(rb'"type"\s*:\s*"(?:document|file|input_file)"')
_SHORT: Final = re.compile(rb"\\u0[0-7][0-9a-fA-F]{2}")
_SOUTHERN: Final = re.compile(rb"\\u0[89a-fA-F][0-9a-fA-F]{2}")
_LONG: Final = re.compile(rb"\\u[0-9a-fA-F]{4}")
_BASE64: Final = re.compile(rb"(?<![A-Za-z0-9+/=\\])[A-Za-z0-9+/=\\]{256,}+")
"""Only from the start of a run: a shorter run is not looked at again from each of its letters."""
_TEXT: Final = re.compile(
    rb'"(?:content|reasoning_content|arguments|text|thinking|partial_json)"\s*:\s*"((?:[^"\\]|\\.)*+)"'
)


def prompt_tokens(raw: bytes, short: bytes = b"") -> int:
    """Of a request's JSON body, tools and all; at least 1. `short` is its outline, if it is known."""
    tokens = 0.0
    short = short or outline(raw)  # what a megabyte holds is told by its fields, not searched for in all of it
    if short.find(b'"type"') < 0:  # then it has no parts but text
        pass
    elif _ENCODED.search(short) is not None:
        text = _BASE64.sub(b"", raw)
        tokens = _media(raw, len(raw) - len(text))
        raw = text
    elif b"image" in short:
        tokens = _media(raw, 0)
    size = len(raw)
    if size > 2 * SAMPLES * SAMPLE:
        raw = b"".join([raw[at : at + SAMPLE] for at in range(0, size - SAMPLE, size // SAMPLES)])
    return max(1, int(tokens + _text(raw) * size / max(1, len(raw))))


def _text(raw: bytes) -> float:
    tokens = 0.0
    if not raw.isascii():
        tokens += len(raw.translate(None, _NOT_TWO)) / TWO_BYTES_PER_TOKEN
        indic = raw.count(_INDIC)
        tokens += (len(raw.translate(None, _NOT_THREE)) - indic) / THREE_BYTES_PER_TOKEN + indic / INDIC_PER_TOKEN
        tokens += len(raw.translate(None, _NOT_FOUR)) * FOUR_BYTES
        raw = raw.translate(None, _CONTINUED)
    if 0x5C in raw:  # a backslash
        tokens += raw.count(b'\\"') / 2
        if b"\\u" in raw:  # letters of other scripts, as six bytes of ASCII
            raw, short = _SHORT.subn(b"", raw)
            raw, indic = _SOUTHERN.subn(b"", raw)
            raw, long = _LONG.subn(b"", raw)
            tokens += short / TWO_BYTES_PER_TOKEN + indic / INDIC_PER_TOKEN + long / THREE_BYTES_PER_TOKEN
    letters = len(raw.translate(None, _NUMERALS))
    return tokens + letters / ASCII_PER_TOKEN + (len(raw) - letters) / DIGITS_PER_TOKEN


def _media(raw: bytes, base64: int) -> float:
    """Of images, and of documents or sound that are `base64` bytes long."""
    images, small = len(_IMAGE.findall(raw)), len(_SMALL.findall(raw))
    tokens = float((images - small) * IMAGE_TOKENS + small * SMALL_IMAGE_TOKENS) if images else 0.0
    if _DOCUMENT.search(raw):
        tokens += base64 / DOCUMENT_BYTES
    elif b'"input_audio"' in raw:
        tokens += base64 / AUDIO_BYTES
    return tokens


def completion_tokens(size: int, first: bytes, last: bytes) -> int:
    """Of a stream of `size` bytes: counted in its first and last piece, in between as dense as in these."""
    if not first:  # not a stream
        return int(size / ASCII_PER_TOKEN)
    length, tokens = _measure(first)
    middle = size - len(first)
    if last is not first:
        middle -= len(last)
        last_length, last_tokens = _measure(last)
        length, tokens = length + last_length, tokens + last_tokens
    if not length:  # neither holds text, so what lies between does: a token in each event, as long as the first ones
        return round(middle * max(1, first.count(b"\n\n")) / len(first))
    return tokens + round(middle * tokens / length)


def _measure(piece: bytes) -> tuple[int, int]:
    """Bytes of the events that hold text, and the tokens in them: at least one in each."""
    length = tokens = 0
    for event in piece.split(b"\n\n"):
        text = sum(len(found) for found in _TEXT.findall(event))
        if text:
            length += len(event) + 2
            tokens += max(1, int(text / ASCII_PER_TOKEN))
    return length, tokens


def owed(told: Usage | None, raw: bytes, guess: int) -> tuple[Usage, bool]:
    """What is owed for an answer whose end the provider did not come to tell, and whether that is a guess.

    `guess`: tokens of the completion.
    """
    if told is not None:  # Anthropic tells the prompt's tokens at the start, and of the completion only the first
        if told.completion_tokens >= guess:
            return told, False
        return Usage(
            told.prompt_tokens, guess, told.cached_tokens, told.cache_write_tokens, told.reasoning_tokens
        ), True
    return Usage(prompt_tokens=prompt_tokens(raw), completion_tokens=guess), True
