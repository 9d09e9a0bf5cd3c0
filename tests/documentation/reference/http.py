"""The HTTP API of the gateway, from the OpenAPI document that it serves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from svc.gateway.endpoints import admin, openapi, overview, provider_states
from svc.gateway.endpoints.bundle_views import BundleFile, BundleState, BundleSummary
from svc.gateway.observability.explanation import RequestTiming, TimePhase
from svc.keys.limit_usage import KeyLimitUsage
from svc.keys.usage_series import SeriesAmounts, SeriesGroupTotals, UsagePoint
from svc.ledger_queries.explanation_facts import LimitConsumer, ProviderPace
from svc.stores.database.base import AttemptDetail
from svc.wire.bundle import Signature
from svc.wire.error import Problem
from svc.wire.limit_state import LimitState
from svc.wire.pipeline import PipelineExample, PipelineInput, PipelineProblem, PlannedStage
from svc.wire.speech_catalog import TranscriptionModelEntry, VoiceEntry
from tests.documentation.reference.markdown import code, field_docs, paragraph, table

METHODS = ("get", "post", "put", "patch", "delete")
NESTED = (
    SeriesAmounts,
    SeriesGroupTotals,
    UsagePoint,
    overview.Percentiles,
    overview.DegradedComponent,
    overview.ProviderKeyState,
    admin.DefaultLimits,
    provider_states.ModelState,
    provider_states.RecentUse,
    provider_states.LastProviderError,
    AttemptDetail,
    KeyLimitUsage,
    LimitState,
    LimitConsumer,
    ProviderPace,
    RequestTiming,
    TimePhase,
    Problem,
    BundleState,
    BundleSummary,
    BundleFile,
    Signature,
    PipelineExample,
    PipelineInput,
    PipelineProblem,
    PlannedStage,
    VoiceEntry,
    TranscriptionModelEntry,
)
STRUCTS = {
    openapi.PUBLIC_SCHEMA_NAMES.get(each.__name__, each.__name__): each for each in (*openapi.SCHEMA_STRUCTS, *NESTED)
}

Json = dict[str, Any]


def document() -> Json:
    """The OpenAPI document."""
    found: Json = json.loads(openapi.openapi_document())
    return found


def routes() -> str:
    """A section for each operation."""
    specification = document()
    sections = []
    for path, item in specification["paths"].items():
        for method in METHODS:
            if method in item:
                sections.append(_operation(specification, f"{method.upper()} {path}", item, item[method]))
    return "\n\n".join(sections)


def schemas() -> str:
    """A section for each schema."""
    found = document()["components"]["schemas"]
    return "\n\n".join(_schema(name, schema) for name, schema in sorted(found.items()))


def _operation(specification: Json, title: str, item: Json, operation: Json) -> str:
    parts = [f"### `{title}`", paragraph(_sentence(operation["summary"]))]
    if "description" in operation:
        parts.append(paragraph(operation["description"]))
    if operation.get("security") == []:
        parts.append("No key is needed.")
    parameters = [
        _resolve(specification, each) for each in (*item.get("parameters", ()), *operation.get("parameters", ()))
    ]
    if parameters:
        rows = [
            (f"`{each['name']}`", each["in"], _type(each["schema"]), _sentence(each.get("description", "")))
            for each in parameters
        ]
        parts.append(table(("Parameter", "In", "Type", "Meaning"), rows))
    if "requestBody" in operation:
        parts.append(_request_body(operation["requestBody"]["content"]))
    rows = [row for status, each in operation["responses"].items() for row in _response(specification, status, each)]
    parts.append(table(("Status", "Content type", "Body", "Meaning"), rows))
    return "\n\n".join(part.strip() for part in parts)


def _request_body(content: Json) -> str:
    ((kind, body),) = content.items()
    if "$ref" in body["schema"]:
        return f"Request body: `{kind}`, {_type(body['schema'])}."
    if "properties" not in body["schema"]:
        return f"Request body: `{kind}`. {_sentence(body['schema']['description'])}"
    return f"Request body: `{kind}` with these fields:\n\n{_fields(body['schema'], {})}"


def _response(specification: Json, status: str, response: Json) -> Iterator[tuple[str, str, str, str]]:
    resolved = _resolve(specification, response)
    status = "4xx, 5xx" if status == "default" else status
    meaning = _sentence(resolved["description"])
    if names := ", ".join(f"`{name}`" for name in resolved.get("headers", {})):
        meaning += f" Headers: {names}."
    for kind, body in resolved.get("content", {"": {"schema": None}}).items():
        yield status, f"`{kind}`" if kind else "", _type(body["schema"]) if body["schema"] else "", meaning


def _schema(name: str, schema: Json) -> str:
    parts = [f"### {name}"]
    if "description" in schema:
        parts.append(paragraph(_sentence(schema["description"].strip())))
    docs = field_docs(STRUCTS[name]) if name in STRUCTS else {}
    if "properties" in schema:
        parts.append(_fields(schema, docs))
    else:
        parts.append(f"Type: {_type(schema)}.")
    return "\n\n".join(part.strip() for part in parts)


def _fields(schema: Json, docs: dict[str, str]) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema["properties"].items():
        default = "required" if name in required else code(field["default"]) if "default" in field else ""
        meaning = _sentence(" ".join(field.get("description", docs.get(name, "")).split()))
        rows.append((f"`{name}`", _type(field), default, meaning))
    return table(("Field", "Type", "Default", "Meaning"), rows)


def _resolve(specification: Json, value: Json) -> Json:
    while "$ref" in value:
        target: Any = specification
        for part in value["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        value = target
    return value


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return " or ".join(code(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    kinds = schema.get("type", "any")
    return " or ".join(_one_type(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _one_type(kind: str, schema: Json) -> str:
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if kind in ("integer", "number") and ("minimum" in schema or "maximum" in schema):
        low, high = schema.get("minimum"), schema.get("maximum")
        return f"{kind}, {low} to {high:,}" if low is not None and high is not None else f"{kind}, {low} or more"
    return kind


def _sentence(text: str) -> str:
    return text if not text or text.endswith(".") else f"{text}."


REGIONS: dict[str, Callable[[], str]] = {"http.routes": routes, "http.schemas": schemas}
