"""`GET /v1/usage`: the usage of the calling key. `svc.keys.usage_query` parses the query and formats the rows."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import PermissionDenied
from svc.gateway.accounting.cost_formula import add_cost_formula
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response
from svc.gateway.endpoints.disconnects import json_or_disconnected, run_while_connected
from svc.gateway.endpoints.requests import authorize_reader
from svc.gateway.proxy.context import GatewayContext
from svc.keys.usage_query import UsageQuery, parse_usage_query
from svc.keys.usage_series import parse_series_request
from svc.ledger_queries.messages import UsageRowsQuery, UsageSeriesQuery
from svc.ledger_queries.process import QueryProcess
from svc.wire.key import EphemeralKey


async def respond_with_usage(
    context: GatewayContext, queries: QueryProcess, query: UsageQuery, request: Request
) -> Response:
    """Return the response with the rows of a query. The entry of one request has its `cost_terms`."""
    rows = await run_while_connected(request, queries.run(UsageRowsQuery(query)))
    if rows is None:
        return json_or_disconnected(None)
    if query.request_id is not None:
        for row in rows:
            add_cost_formula(row, context.ledger.prices.get)
    return json_response({"object": "list", "data": rows})


def routes(context: GatewayContext, queries: QueryProcess) -> list[BaseRoute]:
    """Return `GET /v1/usage` and `/v1/usage/series`. With the scope `admin`, they cover all keys."""

    async def usage(request: Request) -> Response:
        key = await authenticate_request(context, request)
        if isinstance(key, EphemeralKey):  # the entries of its parent are not its own
            raise PermissionDenied("An ephemeral key cannot read usage. The key that made it can.")
        query = parse_usage_query(request.query_params)
        if "admin" not in key.scopes:
            query = msgspec.structs.replace(query, key_id=key.id)
        return await respond_with_usage(context, queries, query, request)

    async def usage_series(request: Request) -> Response:
        key_id = await authorize_reader(context, request)
        parse_series_request(request.query_params, key_id)
        query = UsageSeriesQuery(dict(request.query_params), key_id)
        series = await run_while_connected(request, queries.run(query))
        if series is None or series.csv_file_name is None:
            return json_or_disconnected(None if series is None else series.body)
        headers = {"content-disposition": f'attachment; filename="{series.csv_file_name}"'}
        return Response(series.body, 200, headers, "text/csv; charset=utf-8; header=present")

    return [
        Route("/v1/usage", usage, methods=["GET"]),
        Route("/v1/usage/series", usage_series, methods=["GET"]),
    ]
