"""Rewrites the type names in msgspec's errors as JSON Schema names them. Pure."""

from __future__ import annotations

import re
from typing import Final

JSON_TYPE_NAMES: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TYPES_IN_ERROR: Final = re.compile(r"(Expected|got) `([^`]+)`")


def with_json_types(message: str) -> str:
    """Rewrite "Expected `array | str`, got `int`" as "Expected array or string, got integer"."""
    return _TYPES_IN_ERROR.sub(lambda match: f"{match[1]} {_rename(match[2])}", message)


def _rename(types: str) -> str:
    return " or ".join(JSON_TYPE_NAMES.get(name, name) for name in types.split(" | "))
