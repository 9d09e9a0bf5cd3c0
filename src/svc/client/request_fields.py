"""The request fields that a caller of the SDK passes as keyword arguments, and their encoding as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from svc.errors import InvalidRequest


def select_fields(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set."""
    return {name: value for name, value in parameters.items() if value is not None}


def to_items(value: Any, name: str) -> list[Any]:
    """Return a list of messages or items. Raises InvalidRequest for a value that is no sequence, such as None."""
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes | bytearray):
        return list(value)
    raise InvalidRequest(f"{name} is neither a string nor a list, but {type(value).__name__}.", param=name)


def encode_request_body(body: Mapping[str, Any]) -> bytes:
    """Encode a request. Raises InvalidRequest for a value that JSON does not have, such as NaN in a message."""
    try:
        encoded = msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError, msgspec.EncodeError) as error:
        raise InvalidRequest(f"The request cannot be encoded as JSON: {error}.") from None
    if b"null" in encoded:  # the encoder writes null instead of NaN
        _reject_non_finite(body, "")
    return encoded


def _reject_non_finite(value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{path} must be a finite number, not {value}.", param=path)
    if isinstance(value, Mapping):
        for name, item in value.items():
            _reject_non_finite(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _reject_non_finite(item, f"{path}[{index}]")
