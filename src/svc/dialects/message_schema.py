"""Types of parts of messages and of their options, which the dialects share. Data only."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

ABSENT: Final = msgspec.Raw(b"null")
"""The default of an optional field that is not decoded."""


class ModelField(msgspec.Struct, gc=False):
    """The field `model` of a request. Other fields are skipped."""

    model: str


class UndecodedPart(msgspec.Struct, gc=False):
    """A part whose text is not decoded. `message_text` checks that it is a string or null."""

    type: str
    text: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    """The content of a tool result, which is not checked."""


class MessagePart(msgspec.Struct, gc=False):
    """A part with a decoded text."""

    type: str
    text: str | None = None


class CacheControl(msgspec.Struct):
    """Anthropic's `cache_control` of a part, a tool or a request."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
