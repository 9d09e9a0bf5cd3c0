"""`GET /v1/requests`: a search in the ledger, and one entry. `svc.keys.request_search` parses the parameters."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import InvalidRequest, NotFound, PermissionDenied
from svc.gateway.accounting.cost_formula import add_cost_formula
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response
from svc.gateway.endpoints.disconnects import json_or_disconnected, run_while_connected
from svc.gateway.observability.explanation import LimitFacts, RequestExplanation, explain_entry, explain_refused
from svc.gateway.observability.explanation_facts import complete_limit_facts, refused_at
from svc.gateway.observability.refusals import RefusalLog, RefusedRequest
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.model_errors import quote_name
from svc.keys.request_search import (
    MAX_FILTER_CHARACTERS,
    RefusalQuery,
    parse_refusal_query,
    parse_request_search,
)
from svc.keys.usage_query import list_attempts, show_entry
from svc.ledger_queries.messages import EntryQuery, LimitUseQuery, PaceQuery, RequestsQuery
from svc.ledger_queries.process import QueryProcess
from svc.stores.database.base import LedgerEntry
from svc.wire.key import EphemeralKey


async def authorize_reader(context: GatewayContext, request: Request) -> str | None:
    """Return the id of the only key whose requests the calling key may read, or None for all.

    Raises AuthenticationFailed, and PermissionDenied for an ephemeral key: its parent's entries are not its own.
    """
    key = await authenticate_request(context, request)
    if isinstance(key, EphemeralKey):
        raise PermissionDenied("An ephemeral key cannot read usage. The key that made it can.")
    return None if "admin" in key.scopes else key.id


class RequestsApi:
    """The routes that show single requests."""

    def __init__(self, context: GatewayContext, queries: QueryProcess, refusals: RefusalLog) -> None:
        self._context = context
        self._refusals = refusals
        self._queries = queries

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/v1/requests", self._search, methods=["GET"]),
            Route("/v1/requests/refused", self._list_refused, methods=["GET"]),
            Route("/v1/requests/{id}", self._get, methods=["GET"]),
            Route("/v1/requests/{id}/explanation", self._explain, methods=["GET"]),
        ]

    async def _search(self, request: Request) -> Response:
        key_id = await authorize_reader(self._context, request)
        parse_request_search(request.query_params, key_id)
        query = RequestsQuery(dict(request.query_params), key_id)
        body = await run_while_connected(request, self._queries.run(query))
        return json_or_disconnected(body)

    async def _list_refused(self, request: Request) -> Response:
        key_id = await authorize_reader(self._context, request)
        query = parse_refusal_query(request.query_params, key_id)
        found = [refused for refused in await self._refusals.list_newest_first() if _is_selected(query, refused)]
        return json_response({"object": "list", "data": found[: query.limit]})

    async def _get(self, request: Request) -> Response:
        found = await self._find(request)
        if isinstance(found, RefusedRequest):
            return json_response(found)
        row = show_entry(found)
        add_cost_formula(row, self._context.ledger.prices.get)
        return json_response(row)

    async def _explain(self, request: Request) -> Response:
        found = await self._find(request)
        explanation = await run_while_connected(request, self._build_explanation(found))
        return json_or_disconnected(None if explanation is None else msgspec.json.encode(explanation))

    async def _build_explanation(self, found: LedgerEntry | RefusedRequest) -> RequestExplanation:
        if not isinstance(found, RefusedRequest):
            return explain_entry(found, list_attempts(found), await self._queries.run(PaceQuery(found)))
        if found.limit_state is None or found.key_id is None:
            return explain_refused(found, LimitFacts())
        use = await self._queries.run(LimitUseQuery(found.key_id, found.limit_state, refused_at(found)))
        return explain_refused(found, await asyncio.to_thread(complete_limit_facts, use, self._refusals.folder, found))

    async def _find(self, request: Request) -> LedgerEntry | RefusedRequest:
        """Return the request that the path names. Raises NotFound, also for a request of another key."""
        key_id = await authorize_reader(self._context, request)
        id = request.path_params["id"]
        if len(id) > MAX_FILTER_CHARACTERS:
            raise InvalidRequest(f"The id has more than {MAX_FILTER_CHARACTERS} characters.", param="id")
        entry = await self._queries.run(EntryQuery(id))
        found = await self._refusals.find(id) if entry is None else entry
        if found is None or key_id not in (None, found.key_id):
            raise NotFound(f"There is no request {quote_name(id)}. An entry takes up to 2 seconds to appear.")
        return found


def _is_selected(query: RefusalQuery, refused: RefusedRequest) -> bool:
    filter = query.filter
    return (
        query.since_time <= refused.time < query.until_time
        and filter.key_id in (None, refused.key_id)
        and filter.model in (None, refused.model_asked)
        and filter.code in (None, refused.code)
        and filter.http_status in (None, refused.http_status)
        and filter.endpoint in (None, refused.endpoint)
        and (filter.tag is None or filter.tag in refused.tags.items())
        and query.limit_name in (None, refused.limit)
        and query.request_id in (None, refused.request_id, refused.client_request_id)
    )
