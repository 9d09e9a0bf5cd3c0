"""Check header values before the gateway echoes or records them."""

from __future__ import annotations

from typing import Final

MAX_ECHOED_HEADER_CHARS: Final = 128
"""Characters of a header that is echoed or recorded, such as a request id."""


def echoable_text(value: bytes) -> str | None:
    """Return a header's value if it may be sent back or recorded: printable ASCII of limited length."""
    text = value.decode("latin-1")
    return text if 0 < len(text) <= MAX_ECHOED_HEADER_CHARS and text.isascii() and text.isprintable() else None
