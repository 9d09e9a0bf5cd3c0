"""Converts values that upstreams omit or send as another type to the types that clients expect."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from svc.errors import ProviderFailed


def new_id(prefix: str) -> str:
    """Generate an id for an object that the upstream sent without one."""
    return prefix + uuid.uuid4().hex


def nonempty_text_or(value: Any, default: str) -> str:
    """Return the value if it is a nonempty string, else the default."""
    return value if isinstance(value, str) and value else default


def timestamp_or_now(value: Any) -> int:
    """Return a time in whole Unix seconds, or the current time if the value is invalid."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 2**53:
        return int(value)
    return int(time.time())


def arguments_to_json(arguments: Any) -> str:
    """Return a tool call's arguments as JSON text, also if the upstream sent an object.

    Raises ProviderFailed for an object that is nested too deeply.
    """
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.encode(arguments).decode()
    except RecursionError:
        raise ProviderFailed("The provider sent an invalid response.") from None
