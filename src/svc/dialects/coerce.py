"""What upstreams leave out, or give as another type, made into what clients are promised."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from svc.errors import ProviderFailed


def new_id(prefix: str) -> str:
    """An id for what the upstream left without one."""
    return prefix + uuid.uuid4().hex


def nonempty_text_or(value: Any, default: str) -> str:
    """The value if it is a text with something in it."""
    return value if isinstance(value, str) and value else default


def timestamp_or_now(value: Any) -> int:
    """A time in whole seconds, now if it is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 2**53:
        return int(value)
    return int(time.time())


def arguments_to_json(arguments: Any) -> str:
    """A tool's arguments as JSON text, also when the upstream gave them as an object.

    Raises ProviderFailed for an object that is nested too deeply.
    """
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.encode(arguments).decode()
    except RecursionError:
        raise ProviderFailed("The provider's answer was not understandable.") from None
