"""Checks requests to a model of this machine, before llama.cpp spends minutes or gigabytes on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import estimate_input_tokens
from svc.dialects.validation import decode_upstream_object
from svc.errors import InvalidRequest
from svc.gateway.routing.local_errors import find_schema_field, length_error

MAX_PROMPT_WINDOWS: Final = 8
"""A prompt whose estimate exceeds this many context windows is not sent: no text has 32 bytes per token.

llama.cpp counts the tokens of 10 MB for many seconds, with hundreds of megabytes of memory.
"""
MAX_OPTIONAL_PROPERTIES: Final = 200
"""Maximum optional properties of a schema with one object. llama.cpp needs 5 s for 500, and does not end for 1,500.

The time grows with the square, so several objects may have more together.
"""
_SCHEMA_MARKS: Final = (b'"response_format"', b'"tools"', b'"json_schema"')
_BOUNDS: Final = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
_REPETITION: Final = re.compile(r"\{(\d{1,9}),(\d{1,9})\}")
_MAPS_OF_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA_FIELDS: Final = frozenset(("enum", "const", "default", "examples", "required", "description"))
"""Fields of a schema that hold no schema."""


def check_prompt_length(body: RequestBody, routing_info: RoutingInfo, window: int, param: str) -> None:
    """Raise InvalidRequest if the prompt is much longer than the context window, in tokens."""
    if routing_info.has_single_prompt and len(body.raw) > window * MAX_PROMPT_WINDOWS:
        tokens = estimate_input_tokens(body, routing_info)
        if tokens > window * MAX_PROMPT_WINDOWS:
            raise length_error(param, str(window), f"about {tokens}")


def check_schemas(encoded: bytes, request: bytes, map_field_name: Callable[[str], str]) -> None:
    """Raise InvalidRequest for a JSON schema that llama.cpp cannot make a grammar of, with the client's field.

    `encoded` is the body for llama.cpp, `request` that of the client.
    """
    if not any(mark in encoded for mark in _SCHEMA_MARKS):
        return
    fields = decode_upstream_object(encoded)
    pairs = 0
    for schema in _schemas_below([fields.get("response_format"), fields.get("json_schema"), fields.get("tools")]):
        problem = _find_contradiction(schema)
        pairs += _count_optional_properties(schema) ** 2
        if pairs > MAX_OPTIONAL_PROPERTIES**2:
            problem = (
                f"The JSON schema has more optional properties than a model of this machine can enforce, "
                f"about {MAX_OPTIONAL_PROPERTIES}. List them in `required`, or leave some out."
            )
        if problem:
            raise InvalidRequest(problem, param=find_schema_field(request, map_field_name))


def _schemas_below(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object that may be a schema."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            yield value
            for name, item in value.items():
                if name in _MAPS_OF_SCHEMAS and isinstance(item, dict):
                    stack += item.values()
                elif name not in _DATA_FIELDS and isinstance(item, dict | list):
                    stack.append(item)


def _find_contradiction(schema: Mapping[str, Any]) -> str:
    """Return the message for bounds that nothing fulfils, or empty text. llama.cpp repeats an element without end."""
    for low, high in _BOUNDS:
        minimum, maximum = schema.get(low), schema.get(high)
        if type(minimum) is int and type(maximum) is int and minimum > maximum:
            return f"The JSON schema has `{low}` above `{high}`."
    if schema.get("type") == "integer":
        lowest = [schema.get("minimum"), _shift(schema.get("exclusiveMinimum"), 1)]
        highest = [schema.get("maximum"), _shift(schema.get("exclusiveMaximum"), -1)]
        low_values = [number for number in lowest if type(number) is int]
        high_values = [number for number in highest if type(number) is int]
        if low_values and high_values and max(low_values) > min(high_values):
            return "The JSON schema has an integer whose minimum is above its maximum."
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and any(int(low) > int(high) for low, high in _REPETITION.findall(pattern)):
        return "The JSON schema has a `pattern` that repeats more times than it may."
    return ""


def _shift(bound: Any, step: int) -> Any:
    return bound + step if type(bound) is int else None


def _count_optional_properties(schema: Mapping[str, Any]) -> int:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return 0
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    return len(properties.keys() - names)
