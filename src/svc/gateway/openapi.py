"""`/openapi.json`: what the gateway's addresses take and answer, in OpenAPI 3.1.

The paths are data, `openapi.yaml`; the schemas of what is ours come from the structs that are sent, so they cannot
differ from them.
"""

from __future__ import annotations

import asyncio
import functools
from importlib import resources
from typing import Any

import msgspec
import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc import __version__
from svc.gateway.admin import Limits, ProviderState
from svc.gateway.routes import Model, SpeechModel, VerboseHealth
from svc.keys.issuing import Change, MadeKey, NewKey, Rotation, ShownKey
from svc.stores.base import Entry
from svc.wire.problem import ProblemBody

STRUCTS = (
    *(VerboseHealth, Model, SpeechModel, Entry, ProblemBody),
    *(NewKey, Change, Rotation, ShownKey, MadeKey, Limits, ProviderState),
)


@functools.cache
def document() -> bytes:
    """The whole document, as JSON."""
    text = resources.files("svc.gateway").joinpath("openapi.yaml").read_bytes()
    found: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 both are safe
    found["info"]["version"] = __version__
    _, schemas = msgspec.json.schema_components(STRUCTS, ref_template="#/components/schemas/{name}")
    found["components"]["schemas"] |= schemas
    return msgspec.json.encode(found)


def routes() -> list[BaseRoute]:
    """`GET /openapi.json`, open to all: it holds no secret."""

    async def openapi(request: Request) -> Response:
        return Response(await asyncio.to_thread(document), media_type="application/json")

    return [Route("/openapi.json", openapi, methods=["GET"])]
