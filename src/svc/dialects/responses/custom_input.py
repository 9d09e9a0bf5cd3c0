"""The text of a custom tool call, from the arguments of the function that stands for the tool.

The upstream writes `{"input": "…"}`. The text is decoded as it arrives, so that the client can stream it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

MAX_PREFIX_CHARS: Final = 256
"""Maximum length of what comes before the text, with its whitespace."""
_INPUT_PREFIX: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PLAIN_TEXT: Final = re.compile(r'[^"\\]+')
_JSON_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_ESCAPED_CHAR: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPED_CHAR_LENGTH: Final = 6
_PARTIAL_INPUT_PREFIX: Final = re.compile(r'\s*(\{\s*("(i(n(p(u(t("\s*(:\s*)?)?)?)?)?)?)?)?)?')
_REPLACEMENT_CHAR: Final = "\ufffd"
_ARGUMENTS_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


class CustomInputDecoder:
    """Decodes the arguments of one call, in chunks of any size.

    Arguments in another form are decoded at the end. If they are not an object with `input`, they are the text itself.
    """

    __slots__ = ("_buffer", "_is_in_text", "_is_text_complete", "_other_form")

    def __init__(self) -> None:
        self._buffer = ""
        """Received characters that are not decoded."""
        self._is_in_text = False
        self._is_text_complete = False
        self._other_form: list[str] = []
        """The chunks of arguments in another form."""

    def feed(self, chunk: str) -> str:
        """Return the text that the chunk completes."""
        if self._is_text_complete:
            return ""
        if self._other_form:
            self._other_form.append(chunk)
            return ""
        self._buffer += chunk
        if not self._is_in_text and not self._skip_prefix():
            return ""
        return self._decode_text(is_last=False)

    def _skip_prefix(self) -> bool:
        """Remove the characters before the text from the buffer. Returns whether they are complete."""
        prefix = _INPUT_PREFIX.match(self._buffer)
        if prefix is not None:
            self._is_in_text = True
            self._buffer = self._buffer[prefix.end() :]
        elif len(self._buffer) > MAX_PREFIX_CHARS or not _PARTIAL_INPUT_PREFIX.fullmatch(self._buffer):
            self._other_form.append(self._buffer)
        return self._is_in_text

    def end(self) -> str:
        """Return the rest of the text."""
        if self._is_in_text:
            return self._decode_text(is_last=True)
        return _decode_other_form("".join(self._other_form))

    def _decode_text(self, *, is_last: bool) -> str:
        decoded: list[str] = []
        position, buffer = 0, self._buffer
        while position < len(buffer):
            if (plain := _PLAIN_TEXT.match(buffer, position)) is not None:
                decoded.append(plain.group())
                position = plain.end()
            elif buffer[position] == '"':
                self._is_text_complete = True
                break
            else:
                text, length = _decode_escape(buffer[position : position + 2 * _ESCAPED_CHAR_LENGTH], is_last=is_last)
                if not length:
                    break
                decoded.append(text)
                position += length
        self._buffer = "" if self._is_text_complete else buffer[position:]
        return "".join(decoded)


def decode_custom_input(arguments: str) -> str:
    """Return the text of a complete call."""
    decoder = CustomInputDecoder()
    return decoder.feed(arguments) + decoder.end()


def _decode_escape(escape: str, *, is_last: bool) -> tuple[str, int]:
    """Decode the escape sequence at the start. Returns its text and length, or a length of 0 if characters are missing.

    An invalid sequence stands for itself, as do line breaks, which models often forget to escape.
    """
    kind = escape[1:2]
    if kind == "u":
        return _decode_unicode_escape(escape, is_last=is_last)
    if not kind:
        return "", 0
    return _JSON_ESCAPES.get(kind, escape[:2]), 2


def _decode_unicode_escape(escape: str, *, is_last: bool) -> tuple[str, int]:
    first = _ESCAPED_CHAR.match(escape)
    if first is None:
        is_partial = len(escape) < _ESCAPED_CHAR_LENGTH and not is_last
        return ("", 0) if is_partial else (escape[:2], 2)
    code = int(first.group(1), 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), _ESCAPED_CHAR_LENGTH
    second = _ESCAPED_CHAR.match(escape, _ESCAPED_CHAR_LENGTH)
    if second is not None and code < 0xDC00 and 0xDC00 <= (low := int(second.group(1), 16)) < 0xE000:
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 2 * _ESCAPED_CHAR_LENGTH
    if code < 0xDC00 and not is_last and _can_become_escape(escape[_ESCAPED_CHAR_LENGTH:]):
        return "", 0
    return _REPLACEMENT_CHAR, _ESCAPED_CHAR_LENGTH


def _can_become_escape(start: str) -> bool:
    return len(start) < _ESCAPED_CHAR_LENGTH and re.fullmatch(r"(\\(u[0-9a-fA-F]*)?)?", start) is not None


def _decode_other_form(arguments: str) -> str:
    try:
        text = _ARGUMENTS_DECODER.decode(arguments).get("input")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments
