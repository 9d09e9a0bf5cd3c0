"""`GET /openapi.json`: the gateway's API in OpenAPI 3.1.

The paths and the schemas of the provider formats are in `openapi.yaml`. The schemas of the gateway's own structs are
generated.
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
from svc.gateway.accounting.cost_formula import CostTerm
from svc.gateway.endpoints.admin import ConfiguredKey, Limits
from svc.gateway.endpoints.bundle_views import BundleDetail
from svc.gateway.endpoints.bundles import BundlePage
from svc.gateway.endpoints.event_listeners import StatsEvent
from svc.gateway.endpoints.health import VerboseHealth
from svc.gateway.endpoints.models import AnthropicModelPage, Model, SpeechModel
from svc.gateway.endpoints.overview import Overview
from svc.gateway.endpoints.provider_states import ProviderState
from svc.gateway.endpoints.providers import ProviderTestRequest, ProviderTestResult
from svc.gateway.endpoints.uploads import DeletedUpload, NewUpload, UploadState
from svc.gateway.observability.explanation import RequestExplanation
from svc.gateway.observability.refusals import RefusedRequest
from svc.keys.ephemeral import MadeEphemeralKey, NewEphemeralKey
from svc.keys.lifecycle import Change, MadeKey, NewKey, Rotation, ShownKey
from svc.keys.usage_series import UsageOverTime
from svc.stores.database.base import LedgerEntry, UsageSum
from svc.wire.error import ProblemBody
from svc.wire.pipeline import PipelineCheck, PipelineCheckRequest, PipelineExampleList, PipelineRunRequest
from svc.wire.speech_catalog import VoiceList

SCHEMA_STRUCTS = (
    *(VerboseHealth, Model, SpeechModel, AnthropicModelPage, LedgerEntry, CostTerm, ProblemBody),
    *(NewKey, Change, Rotation, ShownKey, MadeKey, ConfiguredKey, Limits),
    *(ProviderState, ProviderTestRequest, ProviderTestResult),
    *(NewEphemeralKey, MadeEphemeralKey, UsageOverTime, RefusedRequest, Overview, StatsEvent),
    RequestExplanation,
    *(PipelineCheckRequest, PipelineCheck, PipelineRunRequest, PipelineExampleList),
    VoiceList,
    *(BundlePage, BundleDetail, NewUpload, UploadState, DeletedUpload),
)
PUBLIC_SCHEMA_NAMES = {"LedgerEntry": "Entry", "KeyLimitUsage": "KeyUse"}
"""Schema names that differ from the class name. They never change, because generated clients use them."""


@functools.cache
def openapi_document() -> bytes:
    """Return the OpenAPI document as JSON."""
    text = resources.files("svc.gateway").joinpath("openapi.yaml").read_bytes()
    specification: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 both are safe
    specification["info"]["version"] = __version__
    specification["components"]["schemas"] |= _struct_schemas()
    _add_amounts(specification["components"]["schemas"]["Sum"])
    return msgspec.json.encode(specification)


def _struct_schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(SCHEMA_STRUCTS, ref_template="#/components/schemas/{name}")
    text = msgspec.json.encode(schemas).decode()
    for class_name, public_name in PUBLIC_SCHEMA_NAMES.items():
        text = re.sub(rf'\b{class_name}"', f'{public_name}"', text)
    return msgspec.json.decode(text, type=dict[str, Any])


def _add_amounts(schema: dict[str, Any]) -> None:
    """Add the fields of a UsageSum, except the group's value and name: their names depend on the query."""
    amounts = msgspec.json.schema_components([UsageSum])[1][UsageSum.__name__]
    names = [name for name in amounts["properties"] if name not in ("value", "name")]
    schema["required"] = [name for name in names if name in amounts["required"]]
    schema["properties"] = {name: amounts["properties"][name] for name in names} | schema["properties"]


def routes() -> list[BaseRoute]:
    """Return `GET /openapi.json`, which needs no key."""

    async def openapi(request: Request) -> Response:
        return Response(await asyncio.to_thread(openapi_document), media_type="application/json")

    return [Route("/openapi.json", openapi, methods=["GET"])]
