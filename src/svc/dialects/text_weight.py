"""Weighs text: estimates its tokens from samples of its bytes, with the C module `_text_weight` where it is compiled.

The weight of a text is the sum of its bytes, in units of 1/56 token. A letter outside ASCII weighs as much as the first
byte of its UTF-8, and a Unicode escape in JSON about as much as its letter. An escaped quote weighs one token: JSON
within a string has many short names.
"""

from __future__ import annotations

from typing import Final, Protocol

ASCII_CHARS_PER_TOKEN: Final = 4.0
DIGITS_PER_TOKEN: Final = 2.0
TWO_BYTE_LETTERS_PER_TOKEN: Final = 2.8
"""Cyrillic, Greek, Arabic and accented Latin letters."""
THREE_BYTE_LETTERS_PER_TOKEN: Final = 1.1
"""Chinese, Japanese and Korean letters."""
INDIC_LETTERS_PER_TOKEN: Final = 1.6
"""Hindi, Bengali, Tamil and Thai. New vocabularies have 2.1 to 2.8, and old ones 0.5 to 1. This is the middle."""
TOKENS_PER_EMOJI: Final = 2.0
"""Tokens of an emoji."""
WEIGHT_UNITS_PER_TOKEN: Final = 56
"""Then the weights of all bytes are integers with an error below 1 %."""
MAX_SAMPLES_BYTES: Final = 4096
"""Maximum size of all samples. `_text_weight.c` copies them to the stack."""


def _weigh_bytes() -> bytes:
    weights = [0.0] * 256
    weights[:0x80] = [1 / ASCII_CHARS_PER_TOKEN] * 0x80
    weights[0x30:0x3A] = [1 / DIGITS_PER_TOKEN] * 10
    weights[0xC2:0xE0] = [1 / TWO_BYTE_LETTERS_PER_TOKEN] * (0xE0 - 0xC2)
    weights[0xE0] = 1 / INDIC_LETTERS_PER_TOKEN  # U+0800 to U+0FFF
    weights[0xE1:0xF0] = [1 / THREE_BYTE_LETTERS_PER_TOKEN] * (0xF0 - 0xE1)
    weights[0xF0:0xF5] = [TOKENS_PER_EMOJI] * (0xF5 - 0xF0)
    return bytes([round(weight * WEIGHT_UNITS_PER_TOKEN) for weight in weights])


BYTE_WEIGHTS: Final = _weigh_bytes()
"""The weight of each of the 256 bytes."""
_BACKSLASH_CODE: Final = 0x5C
_QUOTE_CODE: Final = 0x22
_UNICODE_ESCAPE_CODE: Final = 0x75
UNICODE_ESCAPE_DIGITS: Final = 4
"""The length of the number of a Unicode escape in JSON (RFC 8259)."""
UNICODE_ESCAPE_BYTES: Final = 6
_TWO_BYTE_LETTER: Final = 0xC2
_INDIC_LETTER: Final = 0xE0
_THREE_BYTE_LETTER: Final = 0xE1
"""First bytes of letters in UTF-8, as which Unicode escapes are weighed."""


class WeighText(Protocol):
    """Weighs a text by samples of it."""

    def __call__(self, text: bytes, byte_weights: bytes, sample_count: int, sample_bytes: int, /) -> int:
        """Return the weight of a whole text, valid UTF-8, from its samples: see `take_samples`.

        `byte_weights` has 256 weights. Raises ValueError if a sample is not longer than a Unicode escape, or if the
        samples with a Unicode escape each could exceed MAX_SAMPLES_BYTES.
        """


def take_samples(raw: bytes, count: int, size: int) -> bytes:
    """Return `count` parts of about `size` bytes, each from the middle of a part of the text, or all of a short one.

    `size` is above UNICODE_ESCAPE_BYTES. A sample neither begins nor ends within a Unicode escape, the rest of which
    looks like digits. So it can have up to five bytes more, or fewer.
    """
    if len(raw) <= count * size:
        return raw
    step = len(raw) // count
    offsets = range((step - size) // 2, step * count, step)
    joined = b"".join([raw[offset : offset + size] for offset in offsets])
    if joined.find(b"\\u") < 0:
        return joined
    return b"".join(
        [raw[_find_escape_start(raw, offset) : _find_escape_start(raw, offset + size)] for offset in offsets]
    )


def _find_escape_start(raw: bytes, index: int) -> int:
    """Return the start of the Unicode escape that contains `index`, or `index`."""
    start = raw.rfind(b"\\u", max(0, index - UNICODE_ESCAPE_DIGITS - 1), index + 1)
    return index if start < 0 else start


def _weigh_sample(sample: bytes, weights: bytes) -> int:
    """Return the weight of a text, which may begin and end within a letter."""
    weight = sum(sample.translate(weights))
    follows_backslash = False
    for segment in sample.split(b"\\"):
        if follows_backslash and segment:
            weight += _weigh_escape(segment, weights)
        follows_backslash = not (follows_backslash and not segment)  # an escaped backslash
    return weight


def _weigh_escape(segment: bytes, weights: bytes) -> int:
    """Return what an escape weighs in addition to its ASCII. `segment` is the text from the backslash to the next."""
    if segment[0] == _QUOTE_CODE:  # with its ASCII, it weighs one token
        return 2 * weights[_QUOTE_CODE]
    if segment[0] != _UNICODE_ESCAPE_CODE or len(segment) <= UNICODE_ESCAPE_DIGITS:
        return 0
    letter = _TWO_BYTE_LETTER if segment[2] < 0x38 else _INDIC_LETTER
    if segment[1] != 0x30:  # from U+1000 on
        letter = _THREE_BYTE_LETTER
    ascii_weight = weights[_BACKSLASH_CODE] + sum([weights[code] for code in segment[: UNICODE_ESCAPE_DIGITS + 1]])
    return weights[letter] - ascii_weight


def _weigh_text(raw: bytes, weights: bytes, sample_count: int, sample_bytes: int) -> int:
    if (
        sample_count < 1
        or sample_bytes <= UNICODE_ESCAPE_BYTES
        or sample_count * (sample_bytes + UNICODE_ESCAPE_BYTES) > MAX_SAMPLES_BYTES
    ):
        raise ValueError("the samples have another size or number")
    sample = take_samples(raw, sample_count, sample_bytes)
    return _weigh_sample(sample, weights) * len(raw) // max(1, len(sample))


def _load() -> WeighText:
    try:
        from svc.dialects import _text_weight as module  # noqa: PLC0415 absent if the gateway runs from source
    except ImportError:
        return _weigh_text
    return module.weigh_text


weigh_text: Final = _load()
