"""Checks requests to a model of this machine: what llama.cpp needs minutes or all memory for is not sent.

The rules are those of llama.cpp's conversion of a JSON schema to a grammar
(https://github.com/ggml-org/llama.cpp/blob/master/common/json-schema-to-grammar.cpp).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from svc.dialects.base import EncodedRequest, RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import estimate_input_tokens
from svc.dialects.validation import decode_client_object
from svc.errors import InvalidRequest
from svc.gateway.routing.local_errors import find_schema_field, length_error

MIN_CHECKED_PROMPT_BYTES: Final = 1 << 20
"""A shorter request is always sent: llama.cpp counts its tokens within seconds, and exactly."""
MAX_PROMPT_WINDOWS: Final = 8
"""A prompt whose estimate exceeds this many context windows is not sent.

llama.cpp counts the tokens of 10 MB for many seconds, with hundreds of megabytes of memory.
"""
MAX_OPTIONAL_PROPERTIES: Final = 200
"""Maximum optional properties of a request with one object. llama.cpp needs 5 s for 500, and does not end for 1,500.

The time grows with the cube, so several objects may have more together.
"""
MAX_ALTERNATIVES: Final = 1000
"""Maximum alternatives of one `enum`, `anyOf`, `oneOf` or `pattern`, and the root of the sum of squares of several.

With 1,000, llama.cpp needs 5 s for a response, with 5,000 it needs minutes. Other requests wait meanwhile.
"""
MAX_PATTERN_CHARS: Final = 10_000
MAX_QUANTIFIERS: Final = 64
"""Maximum number of `?`, `*` and `+` in a pattern. llama.cpp needs 8 s for 100 in a row, and minutes for 300."""
_SCHEMA_MARKS: Final = (b'"response_format"', b'"tools"', b'"json_schema"')
_BOUNDS: Final = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
_MAX_INT: Final = (1 << 31) - 1
"""The largest length or count of items that llama.cpp reads. A larger one would become another number."""
_MAX_LONG: Final = (1 << 63) - 2
"""The largest integer that llama.cpp takes as a bound of a value. Larger ones mean that there is no bound."""
_BRACES: Final = re.compile(r"(?<!\\)\{([^}]{0,40})\}")
_PATTERN_TOKEN: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+(?:\]|\\?$)|([(|?*+])|(\))?(?:\{([^}]{0,40})\})?", re.S)
"""A token of a pattern: an escape or a class, or an operator (1), or the end of a group (2) and a repetition (3)."""
_LEADING_NUMBER: Final = re.compile(r"\s*([+-]?\d{1,18})")
_MAPS_OF_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA_FIELDS: Final = frozenset(("enum", "const", "default", "examples", "required", "description"))
"""Fields of a schema that hold no schema, unless a `$ref` names them."""
_TOO_MANY_PROPERTIES: Final = (
    "The JSON schema has more optional properties than a model of this machine can enforce, "
    f"about {MAX_OPTIONAL_PROPERTIES}. List them in `required`, or leave some out."
)
_TOO_MANY_ALTERNATIVES: Final = (
    "The JSON schema has more alternatives than a model of this machine can enforce, about "
    f"{MAX_ALTERNATIVES} in `enum`, `anyOf`, `oneOf` or `pattern`."
)
_ENDLESS_REFERENCE: Final = "The JSON schema has a `$ref` that leads to itself."


def check_local_request(
    encoded: EncodedRequest,
    body: RequestBody,
    routing_info: RoutingInfo,
    window: int,
    map_field_name: Callable[[str], str],
) -> None:
    """Raise InvalidRequest, with the client's field, for a request that llama.cpp should not get.

    `encoded` is the request for llama.cpp, `body` that of the client. `window` is the model's context window in tokens.
    """
    if encoded.local_response is None:
        _check_prompt_length(body, routing_info, window, map_field_name)
        _check_schemas(encoded.body, body.raw, map_field_name)


def _check_prompt_length(
    body: RequestBody, routing_info: RoutingInfo, window: int, map_field_name: Callable[[str], str]
) -> None:
    has_long_body = len(body.raw) > MIN_CHECKED_PROMPT_BYTES
    if routing_info.has_single_prompt and (has_long_body or body.earlier_tokens):
        tokens = estimate_input_tokens(body, routing_info)
        if tokens > window * MAX_PROMPT_WINDOWS:
            raise length_error(map_field_name("messages"), str(window), f"about {tokens}")


def _check_schemas(encoded: bytes, request: bytes, map_field_name: Callable[[str], str]) -> None:
    if not any(mark in encoded for mark in _SCHEMA_MARKS):
        return
    fields = decode_client_object(encoded)
    work = alternatives = 0
    for name, root in _schemas_of(fields):
        for schema in _schemas_below(root):
            problem = _find_contradiction(schema)
            try:
                work += _count_optional_properties(schema, root) ** 3
            except _EndlessReferenceError:
                problem = _ENDLESS_REFERENCE
            alternatives += sum(count**2 for count in _count_alternatives(schema))
            if work > MAX_OPTIONAL_PROPERTIES**3:
                problem = _TOO_MANY_PROPERTIES
            elif alternatives > MAX_ALTERNATIVES**2:
                problem = _TOO_MANY_ALTERNATIVES
            if problem:
                is_certain = name != "response_format"  # in its place, the gateway sends tools that must be called
                field = map_field_name(name) if is_certain else find_schema_field(request, map_field_name)
                raise InvalidRequest(problem, param=field)


def _schemas_of(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each complete schema of a request, to which its references refer, with the field that has it."""
    response_format, tools = fields.get("response_format"), fields.get("tools")
    if isinstance(response_format, dict):
        named = response_format.get("json_schema")
        yield "response_format", named.get("schema") if isinstance(named, dict) else response_format.get("schema")
    yield "json_schema", fields.get("json_schema")
    if isinstance(tools, list) and fields.get("tool_choice") != "none":
        for tool in tools:
            function = tool.get("function") if isinstance(tool, dict) else None
            yield "tools", function.get("parameters") if isinstance(function, dict) else None


def _schemas_below(root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object that may be a schema, also those that only a `$ref` names."""
    stack, seen = [root], set()
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
        elif isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            yield value
            stack.append(_resolve(value, root))
            for name, item in value.items():
                if name in _MAPS_OF_SCHEMAS and isinstance(item, dict):
                    stack += item.values()
                elif name not in _DATA_FIELDS and isinstance(item, dict | list):
                    stack.append(item)


def _resolve(schema: Mapping[str, Any], root: Any) -> Any:
    """Return what the `$ref` of a schema names, or None. As in llama.cpp, a path has no escapes."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    value = root
    for name in reference[2:].split("/"):
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _find_contradiction(schema: Mapping[str, Any]) -> str:
    """Return the message for bounds that nothing fulfils, or empty text. llama.cpp repeats an element without end."""
    for low, high in _BOUNDS:
        minimum, maximum = _to_integer(schema.get(low)), _to_integer(schema.get(high))
        for name, bound in ((low, minimum), (high, maximum)):
            if bound is not None and abs(bound) > _MAX_INT:
                return f"The JSON schema has a `{name}` above {_MAX_INT}."
        if minimum is not None and maximum is not None and minimum > maximum:
            return f"The JSON schema has `{low}` above `{high}`."
    if schema.get("type") == "integer" and (problem := _find_impossible_integer(schema)):
        return problem
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and any(map(_is_impossible_repetition, _BRACES.findall(pattern))):
        return "The JSON schema has a `pattern` that repeats more times than it may."
    return ""


def _find_impossible_integer(schema: Mapping[str, Any]) -> str:
    lowest: list[int] = []
    highest: list[int] = []
    for name, bounds, round_bound, step in (
        ("minimum", lowest, math.ceil, 0),
        ("exclusiveMinimum", lowest, math.floor, 1),
        ("maximum", highest, math.floor, 0),
        ("exclusiveMaximum", highest, math.ceil, -1),
    ):
        bound = schema.get(name)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            bounds.append(round_bound(bound) + step)
            if abs(bounds[-1]) > _MAX_LONG:
                return f"The JSON schema has a `{name}` that is not an integer of 64 bits."
    if lowest and highest and max(lowest) > min(highest):
        return "The JSON schema has an integer whose minimum is above its maximum."
    return ""


def _count_alternatives(schema: Mapping[str, Any]) -> Iterator[int]:
    """Yield how many ways a value can continue, for each part of a schema."""
    for name in ("enum", "anyOf", "oneOf"):
        values = schema.get(name)
        if isinstance(values, list):
            yield len(values)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        yield _count_pattern_alternatives(pattern)


def _count_pattern_alternatives(pattern: str) -> int:
    """Return the alternatives of a pattern, with those of a repeated group for each repetition."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return MAX_ALTERNATIVES + 1
    open_groups, quantifiers = [0], 0
    for token in _PATTERN_TOKEN.finditer(pattern):
        operator, group_end, bounds = token.groups()
        if operator == "(":
            open_groups.append(1)
        elif operator is not None:
            open_groups[-1] += 1
            quantifiers += operator != "|"
        elif group_end is not None and len(open_groups) > 1:
            inner = open_groups.pop()
            most = _read_repetition(bounds)[1] if bounds is not None else None
            open_groups[-1] += inner * max(1, most or 1)
        elif bounds is not None:
            open_groups[-1] += 1
    return max(sum(open_groups), quantifiers * MAX_ALTERNATIVES // MAX_QUANTIFIERS)


def _to_integer(bound: Any) -> int | None:
    """Return a bound without its fraction, or None for what is no number."""
    return None if isinstance(bound, bool) or not isinstance(bound, int | float) else int(bound)


def _is_impossible_repetition(bounds: str) -> bool:
    least, most = _read_repetition(bounds)
    return least is not None and most is not None and least > most


def _read_repetition(bounds: str) -> tuple[int | None, int | None]:
    """Return minimum and maximum of the text in the braces of a pattern, such as `2,5`."""
    low, comma, high = bounds.partition(",")
    least, most = _LEADING_NUMBER.match(low), _LEADING_NUMBER.match(high if comma else low)
    return int(least[1]) if least is not None else None, int(most[1]) if most is not None else None


class _EndlessReferenceError(Exception):
    """A `$ref` leads to itself."""


def _count_optional_properties(schema: Mapping[str, Any], root: Any) -> int:
    """Return the optional properties of the object that llama.cpp makes of a schema.

    Raises _EndlessReferenceError.
    """
    types, all_of = schema.get("type"), schema.get("allOf")
    repetitions = max(1, len(types)) if isinstance(types, list) else 1
    properties, required = _properties_of(schema), schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    count = len(properties.keys() - names)
    for member in all_of if isinstance(all_of, list) else ():
        if isinstance(member, dict):
            _follow(member, root)
            variants = member.get("anyOf")  # their properties become optional ones of this object
            for variant in variants if isinstance(variants, list) else ():
                if isinstance(variant, dict):
                    count += len(_properties_of(_follow(variant, root)))
    return count * repetitions


def _properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _follow(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any]:
    """Return the schema at the end of a chain of references. Raises _EndlessReferenceError."""
    seen: set[int] = set()
    while isinstance(following := _resolve(schema, root), dict):
        if id(following) in seen:
            raise _EndlessReferenceError
        seen.add(id(following))
        schema = following
    return schema
