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

_END = b"\n\n"
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


class Seen:
    """What came of an answer, kept at almost no cost: bytes and events, and the first and the last piece."""

    __slots__ = ("events", "first", "last", "size")

    def __init__(self) -> None:
        self.size = 0
        self.events = 0
        self.first = b""
        self.last = b""

    def tokens(self) -> int:
        """Of the completion: exact in the first and the last piece, and in between as if all were like the last."""
        if not self.events:
            return int(self.size / ASCII_PER_TOKEN)
        count, frames, tokens = _measure(self.first)
        middle, size = self.events - self.first.count(_END), self.size - len(self.first)
        if self.last is not self.first:
            middle, size = middle - self.last.count(_END), size - len(self.last)
            last_count, last_frames, last_tokens = _measure(self.last)
            tokens += last_tokens
            count, frames = (last_count, last_frames) if last_count else (count, frames)
        if middle > 0:
            text = size / middle - (frames / count if count else size / middle)
            tokens += int(middle * max(1.0, text / ASCII_PER_TOKEN))
        return tokens


def _measure(piece: bytes) -> tuple[int, int, int]:
    """Events that hold text, the bytes of these that are none, the tokens in them: at least one in each."""
    count = frames = tokens = 0
    for event in piece.split(_END):
        text = sum(len(found) for found in _TEXT.findall(event))
        if text:
            count += 1
            frames += len(event) + len(_END) - text
            tokens += max(1, int(text / ASCII_PER_TOKEN))
    return count, frames, tokens


def owed(told: Usage | None, raw: bytes, seen: Seen) -> tuple[Usage, bool]:
    """What is owed for an answer whose end the provider did not come to tell, and whether that is a guess."""
    guess = seen.tokens()
    if told is not None:  # Anthropic tells the prompt's tokens at the start, and of the completion only the first
        if told.completion_tokens >= guess:
            return told, False
        return msgspec.structs.replace(told, completion_tokens=guess), True
    return Usage(prompt_tokens=prompt_tokens(raw), completion_tokens=guess), True
