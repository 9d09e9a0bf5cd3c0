"""`POST /v1/ephemeral_keys`: make a short-lived key for a browser or a phone. It needs no database."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.gateway.endpoints.responses import authenticate_request, read_body
from svc.gateway.proxy.context import GatewayContext
from svc.keys.ephemeral import NewEphemeralKey, check_can_make_keys, create_claims, describe_ephemeral_key
from svc.keys.lifecycle import parse_key_request
from svc.security import secret_from_headers


def routes(context: GatewayContext) -> list[BaseRoute]:
    """Return the route."""

    async def make_ephemeral_key(request: Request) -> Response:
        parent = await authenticate_request(context, request)
        check_can_make_keys(parent)
        wanted = parse_key_request(NewEphemeralKey, await read_body(request))
        default_rpm = context.config.current.settings.limits.rpm
        claims = create_claims(wanted, parent, default_rpm, context.router.resolve_alias)
        secret = secret_from_headers(request.headers.get("authorization"), request.headers.get("x-api-key"))
        token = await context.keyring.make_ephemeral_token(secret or "", parent, claims)
        made = describe_ephemeral_key(claims, parent, token)
        headers = {"cache-control": "no-store"}
        return Response(msgspec.json.encode(made), 200, headers, "application/json")

    return [Route("/v1/ephemeral_keys", make_ephemeral_key, methods=["POST"])]
