"""`/openapi.json`: what the gateway's addresses take and answer, in OpenAPI 3.1.

The paths are data, `openapi.yaml`; the schemas of what is ours come from the structs that are sent, so they cannot
differ from them.
"""

from __future__ import annotations

import asyncio
import functools
import re
from importlib import resources
from typing import Any

import msgspec
import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc import __version__
from svc.gateway.endpoints.admin import Limits, ProviderState
from svc.gateway.endpoints.routes import Model, SpeechModel, VerboseHealth
from svc.keys.lifecycle import Change, MadeKey, NewKey, Rotation, ShownKey
from svc.stores.database.base import LedgerEntry
from svc.wire.error import ProblemBody

SCHEMA_STRUCTS = (
    *(VerboseHealth, Model, SpeechModel, LedgerEntry, ProblemBody),
    *(NewKey, Change, Rotation, ShownKey, MadeKey, Limits, ProviderState),
)
PUBLIC_SCHEMA_NAMES = {"LedgerEntry": "Entry", "KeyLimitUsage": "KeyUse"}
"""What the document calls a struct, where that is not the name of its class: generated clients have it."""


@functools.cache
def openapi_document() -> bytes:
    """The whole document, as JSON."""
    text = resources.files("svc.gateway").joinpath("openapi.yaml").read_bytes()
    specification: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 both are safe
    specification["info"]["version"] = __version__
    specification["components"]["schemas"] |= _struct_schemas()
    return msgspec.json.encode(specification)


def _struct_schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(SCHEMA_STRUCTS, ref_template="#/components/schemas/{name}")
    text = msgspec.json.encode(schemas).decode()
    for class_name, public_name in PUBLIC_SCHEMA_NAMES.items():
        text = re.sub(rf'\b{class_name}"', f'{public_name}"', text)
    return msgspec.json.decode(text, type=dict[str, Any])


def routes() -> list[BaseRoute]:
    """`GET /openapi.json`, open to all: it holds no secret."""

    async def openapi(request: Request) -> Response:
        return Response(await asyncio.to_thread(openapi_document), media_type="application/json")

    return [Route("/openapi.json", openapi, methods=["GET"])]
