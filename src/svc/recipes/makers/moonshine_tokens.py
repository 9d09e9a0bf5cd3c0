"""Converts Moonshine's tokenizer.bin to a tokens.txt for sherpa-onnx.

tokenizer.bin = (length token)*    length: one byte below 128, or two: the first minus 128, plus 128 times the second
tokens.txt    = (base64(token) " " number "\\n")*
"""

from __future__ import annotations

from base64 import b64encode


def make(tokenizer: bytes) -> bytes:
    """Return the tokens in the order of their numbers. Raises ValueError if the file ends inside an entry."""
    lines: list[bytes] = []
    offset = 0
    while offset < len(tokenizer):
        length, offset = tokenizer[offset], offset + 1
        if length >= 128:
            if offset == len(tokenizer):
                raise ValueError("tokenizer.bin ends inside a length")
            length, offset = length - 128 + 128 * tokenizer[offset], offset + 1
        token, offset = tokenizer[offset : offset + length], offset + length
        if len(token) != length:
            raise ValueError("tokenizer.bin ends inside a token")
        lines.append(b"%b %d\n" % (b64encode(token), len(lines)))
    return b"".join(lines)
