"""`GET /v1/usage`: the usage of the calling key. `svc.keys.usage_query` parses the query and formats the rows."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import PermissionDenied
from svc.gateway.accounting.cost_formula import add_cost_formula
from svc.gateway.endpoints.responses import authenticate_request
from svc.gateway.proxy.context import GatewayContext
from svc.keys.usage_query import UsageQuery, parse_usage_query
from svc.stores.database.thread import DatabaseThread
from svc.wire.key import EphemeralKey


async def query_usage(context: GatewayContext, database: DatabaseThread, query: UsageQuery) -> list[dict[str, Any]]:
    """Return the rows of a query. The entry of one request has `cost_formula`."""
    rows = await database.run_query(query.execute)
    if query.request_id is not None:
        for row in rows:
            add_cost_formula(row, context.ledger.prices.get)
    return rows


def routes(context: GatewayContext, database: DatabaseThread) -> list[BaseRoute]:
    """Return `GET /v1/usage`. With the scope `admin`, it covers all keys."""

    async def usage(request: Request) -> Response:
        key = await authenticate_request(context, request)
        if isinstance(key, EphemeralKey):  # the entries of its parent are not its own
            raise PermissionDenied("An ephemeral key cannot read usage. The key that made it can.")
        query = parse_usage_query(request.query_params)
        if "admin" not in key.scopes:
            query = msgspec.structs.replace(query, key_id=key.id)
        rows = await query_usage(context, database, query)
        return Response(msgspec.json.encode({"object": "list", "data": rows}), media_type="application/json")

    return [Route("/v1/usage", usage, methods=["GET"])]
