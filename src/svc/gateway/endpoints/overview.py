"""`GET /v1/overview`: the state of the gateway and its use, for the first page of the console."""

from __future__ import annotations

import math
import time
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.gateway.endpoints.disconnects import json_or_disconnected, run_while_connected
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.endpoints.requests import authorize_reader
from svc.gateway.endpoints.shared_results import SharedResults
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.unconfigured_providers import key_variables
from svc.keys.request_search import format_millis, parse_window, require_known
from svc.keys.usage_series import SeriesAmounts, UsagePoint
from svc.ledger_queries.messages import OverviewQuery
from svc.ledger_queries.overview import Percentiles
from svc.ledger_queries.process import QueryProcess

OVERVIEW_SHARED_SECONDS: Final = 0.4
"""How long an overview answers the same request again, from the start of its query.

A tab reloads 0.5 s after an event of a new request, which the response must then include.
"""
_OVERVIEW_PARAMETERS: Final = frozenset({"since", "until"})
DEGRADED_ADVICE: Final = {
    "keys": "The key database does not respond. Known keys still work. Run `svc doctor` and check SVC_DATABASE_URL.",
    "ledger": "The ledger database does not respond or is late. Entries wait in the journal. Run `svc doctor`.",
    "journal": "The journal is full, so new entries are only in memory. Free disk space in the state folder.",
    "redis": "Redis does not respond. Limits apply for each machine alone. Check SVC_REDIS_URL.",
}


class DegradedComponent(msgspec.Struct, frozen=True, kw_only=True):
    """A component that does not work as it should. The gateway serves requests in any case."""

    name: str
    """`keys`, `ledger`, `journal` or `redis`."""
    advice: str
    """The action that restores it."""


class ProviderKeyState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a provider has a key."""

    name: str
    """The name of the provider."""
    has_key: bool
    """Whether its models are offered."""
    variables: tuple[str, ...]
    """The environment variables that can have its key, if it is a built-in provider."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the gateway, and its use by the calling key or with the scope `admin` by all keys."""

    object: str = "overview"
    """Always `overview`."""
    since: str
    """The start of the window, at a full hour."""
    until: str
    """The end of the window."""
    totals: SeriesAmounts
    """The usage in the window. It equals the sum of the ledger's entries."""
    latency_ms: Percentiles
    """From the request's arrival to the end of the response."""
    ttfb_ms: Percentiles
    """From the request's arrival to the first byte of the response."""
    sample_size: int
    """The percentiles are those of this number of requests: the newest 2,000 with status `ok` in the window.
    Live speech sessions are left out."""
    per_minute: list[UsagePoint]
    """The last 60 minutes that had requests. Early minutes are missing if there were too many requests to read."""
    open_requests: int | None
    """Requests in flight on this machine. Null without the scope `admin`."""
    open_streams: int | None
    """Chat streams in flight on this machine. Null without the scope `admin`."""
    degraded: list[DegradedComponent] | None
    """The degraded components, with advice for the operator. Null without the scope `admin`."""
    keys: int | None
    """The number of issued keys, including revoked ones. Null without the scope `admin`."""
    providers: list[ProviderKeyState] | None
    """The providers. Null without the scope `admin`."""
    is_empty: bool
    """Whether there has never been a request."""


def routes(context: GatewayContext, queries: QueryProcess, metrics: MetricsPublisher) -> list[BaseRoute]:
    """Return `GET /v1/overview`. Tabs of the same visibility share a query."""
    bodies = SharedResults[bytes](OVERVIEW_SHARED_SECONDS)

    async def overview(request: Request) -> Response:
        key_id = await authorize_reader(context, request)
        require_known(request.query_params, _OVERVIEW_PARAMETERS)
        since, until = parse_window(request.query_params)
        start = math.floor(since / 3600) * 3600
        fixed_end = None if until == math.inf else max(math.ceil(until / 3600) * 3600, start + 1)
        body = bodies.get((key_id, start, fixed_end), lambda: read(key_id, start, fixed_end))
        return json_or_disconnected(await run_while_connected(request, body))

    async def read(key_id: str | None, start: int, fixed_end: int | None) -> bytes:
        end = max(math.floor(time.time()) + 1, start + 1) if fixed_end is None else fixed_end
        view = await queries.run(OverviewQuery(key_id, start, end))
        values = (await metrics.aggregate()).values if key_id is None else {}
        overview = Overview(
            since=format_millis(start * 1000),
            until=format_millis(end * 1000),
            totals=view.totals,
            latency_ms=view.latency_ms,
            ttfb_ms=view.ttfb_ms,
            sample_size=view.sample_size,
            per_minute=view.per_minute,
            open_requests=int(values["svc_open_requests"]) if key_id is None else None,
            open_streams=int(values["svc_open_streams"]) if key_id is None else None,
            degraded=_describe_degraded(metrics.list_degraded()) if key_id is None else None,
            keys=view.key_count if key_id is None else None,
            providers=_provider_states(context) if key_id is None else None,
            is_empty=view.is_empty,
        )
        return msgspec.json.encode(overview)

    return [Route("/v1/overview", overview, methods=["GET"])]


def _describe_degraded(names: list[str]) -> list[DegradedComponent]:
    return [DegradedComponent(name=name, advice=DEGRADED_ADVICE[name]) for name in names]


def _provider_states(context: GatewayContext) -> list[ProviderKeyState]:
    offered = {backend.provider_name for backend in context.router.backends()}
    variables = key_variables()
    configured = [entry.name for entry in context.config.current.settings.providers]
    names = dict.fromkeys([*variables, *configured, *sorted(offered)])
    return [ProviderKeyState(name=name, has_key=name in offered, variables=variables.get(name, ())) for name in names]
