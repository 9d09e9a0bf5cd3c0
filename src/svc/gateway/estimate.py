"""Tokens, guessed from bytes: before a provider has counted them, and when it never comes to say. No tokenizer.

    prompt        ASCII / 4  +  other bytes / 2.6  +  IMAGE_TOKENS for each image (its base64 not counted)
    completion    of each event that holds text, its ASCII / 4 and at least 1

The error of this is measured in docs/operations.md.
"""

from __future__ import annotations

import re

import msgspec

from svc.wire.chat import Usage

ASCII_PER_TOKEN = 4.0
OTHER_PER_TOKEN = 2.6
IMAGE_TOKENS = 1000
"""An image of a megapixel costs 765 to 1,600 tokens with the vendors."""

_ASCII = bytes(range(128))
_IMAGE = re.compile(rb'"image_url"\s*:|"type"\s*:\s*"image"')
_BASE64 = re.compile(rb"[A-Za-z0-9+/=\\]{256,}+")
_TEXT = re.compile(rb'"(?:content|reasoning_content|arguments|text|thinking|partial_json)"\s*:\s*"((?:[^"\\]|\\.)*+)"')


def prompt_tokens(raw: bytes) -> int:
    """Of a request's JSON body, tools and all; at least 1."""
    size = len(raw)
    images = 0
    if b"image" in raw:
        images = len(_IMAGE.findall(raw))
        if images and b"base64" in raw:
            size -= sum(len(found) for found in _BASE64.findall(raw))
    other = 0 if raw.isascii() else len(raw.translate(None, _ASCII))
    return max(1, int((size - other) / ASCII_PER_TOKEN + other / OTHER_PER_TOKEN) + images * IMAGE_TOKENS)


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
    if not length:  # neither holds text, so what lies between does: a token in each event, as long as the last ones
        length, tokens = len(last), last.count(b"\n\n")
        return int(middle * tokens / length)
    return tokens + int(middle * tokens / length)


def _measure(piece: bytes) -> tuple[int, int]:
    """Bytes of the events that hold text, and the tokens in them: at least one in each."""
    length = tokens = 0
    for event in piece.split(b"\n\n"):
        text = sum(len(found) for found in _TEXT.findall(event))
        if text:
            length += len(event) + 2
            tokens += max(1, int(text / ASCII_PER_TOKEN))
    return length, tokens


def owed(told: Usage | None, raw: bytes, size: int, first: bytes, last: bytes) -> tuple[Usage, bool]:
    """What is owed for an answer whose end the provider did not come to tell, and whether that is a guess."""
    guess = completion_tokens(size, first, last)
    if told is not None:  # Anthropic tells the prompt's tokens at the start, and of the completion only the first
        if told.completion_tokens >= guess:
            return told, False
        return msgspec.structs.replace(told, completion_tokens=guess), True
    return Usage(prompt_tokens=prompt_tokens(raw), completion_tokens=guess), True
