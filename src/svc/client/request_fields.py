"""The request fields that a caller of the SDK passes as keyword arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from svc.errors import InvalidRequest


def select_fields(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set. Raises InvalidRequest for a number that JSON does not have."""
    for name, value in parameters.items():
        if isinstance(value, float) and not math.isfinite(value):  # the encoder writes null instead of NaN
            raise InvalidRequest(f"{name} must be a finite number, not {value}.", param=name)
    return {name: value for name, value in parameters.items() if value is not None}
