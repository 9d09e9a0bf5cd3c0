"""Responses in the form of a JSON schema: the field of the request, and the check of what the model wrote.

The check covers what models write: objects, arrays, enumerations and scalars. It ignores other keywords, such as
`pattern`, which the provider enforces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from svc.errors import InvalidRequest, ProviderFailed, UsageError

JsonSchema = Mapping[str, Any]


def add_schema(parameters: Mapping[str, Any], schema: JsonSchema | None) -> Mapping[str, Any]:
    """Return the parameters of a chat with the field for the schema. Raises InvalidRequest."""
    if schema is None:
        return parameters
    if not isinstance(schema, Mapping):
        raise InvalidRequest(f"schema is not a JSON schema, but {type(schema).__name__}.", param="schema")
    json_schema = {"name": "response", "schema": schema, "strict": True}
    return {**parameters, "response_format": {"type": "json_schema", "json_schema": json_schema}}


def parse_structured(text: str, schema: JsonSchema | None, finish_reason: str | None) -> Any:
    """Return the value that a complete response has.

    Raises UsageError without a schema, and ProviderFailed that names the wrong place if the model did not follow it.
    """
    if schema is None:
        raise UsageError("The request has no `schema`.")
    if finish_reason == "length":
        raise ProviderFailed("The response is incomplete: it reached `max_tokens`.")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProviderFailed("The response is not complete JSON.") from error
    if problem := _find_problem(value, schema, ""):
        raise ProviderFailed(f"The response does not match the schema: {problem}.")
    return value


def parse_structured_stream(text: str, schema: JsonSchema | None, finish_reason: str | None) -> Any:
    """Return the value of a stream that was read to its end. Raises the errors of `parse_structured`."""
    if schema is not None and finish_reason is None:
        raise UsageError("The stream is not complete. Read it to its end first.")
    return parse_structured(text, schema, finish_reason)


def _find_problem(value: Any, schema: JsonSchema | bool, path: str) -> str | None:
    place = path or "the value"
    if isinstance(schema, bool):  # https://json-schema.org/draft/2020-12/json-schema-core#section-4.3.2
        return None if schema else f"{place} is not allowed"
    json_type, allowed_types = _json_type(value), schema.get("type", ())
    types = (allowed_types,) if isinstance(allowed_types, str) else tuple(allowed_types)
    if types and json_type not in types and not (json_type == "integer" and "number" in types):
        return f"{place} is {json_type}, not {' or '.join(types)}"
    if "enum" in schema and not any(_is_same(value, option) for option in schema["enum"]):
        return f"{place} is not one of the allowed values"
    if "const" in schema and not _is_same(value, schema["const"]):
        return f"{place} is not {msgspec.json.encode(schema['const']).decode()}"
    if "anyOf" in schema and all(_find_problem(value, option, path) for option in schema["anyOf"]):
        return f"{place} matches none of the alternatives"
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping | bool):
        problems = (_find_problem(item, items, f"{path}[{index}]") for index, item in enumerate(value))
        return next((problem for problem in problems if problem), None)
    return _find_field_problem(value, schema, path) if isinstance(value, dict) else None


def _find_field_problem(fields: dict[str, Any], schema: JsonSchema, path: str) -> str | None:
    prefix = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in fields:
            return f"{prefix}{name} is missing"
    for name, property_schema in schema.get("properties", {}).items():
        if name in fields and (problem := _find_problem(fields[name], property_schema, f"{prefix}{name}")):
            return problem
    return None


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _is_same(value: Any, option: Any) -> bool:
    """Compare two values of JSON. In Python, True is equal to 1."""
    return isinstance(value, bool) == isinstance(option, bool) and bool(value == option)
