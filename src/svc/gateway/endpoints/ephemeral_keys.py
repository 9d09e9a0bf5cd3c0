"""`POST /v1/ephemeral_keys`: make a short-lived key for a browser or a phone. It needs no database."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import ModelNotFound
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response, read_body
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.model_errors import quote_name
from svc.keys.ephemeral import NewEphemeralKey, check_can_make_keys, create_claims, describe_ephemeral_key
from svc.keys.lifecycle import parse_key_request
from svc.security import secret_from_request
from svc.wire.key import ApiKey


def routes(context: GatewayContext) -> list[BaseRoute]:
    """Return the route."""

    async def make_ephemeral_key(request: Request) -> Response:
        parent = await authenticate_request(context, request)
        check_can_make_keys(parent)
        new_key = parse_key_request(NewEphemeralKey, await read_body(request))
        default_rpm = context.config.current.settings.limits.rpm
        claims = create_claims(new_key, parent, default_rpm, context.router.resolve_alias)
        secret = secret_from_request(request.method, request.headers)
        token = await context.keyring.make_ephemeral_token(secret or "", parent, claims)
        made = describe_ephemeral_key(claims, parent, token)
        _check_models(context, parent, claims.models or ())
        return json_response(made, has_secret=True)

    return [Route("/v1/ephemeral_keys", make_ephemeral_key, methods=["POST"])]


def _check_models(context: GatewayContext, parent: ApiKey, models: Iterable[str]) -> None:
    """Raise ModelNotFound for a model that is not offered: a key for it would be useless."""
    offered = context.router.offered_models(parent)
    for model in models:
        if model not in offered and context.router.find_other_endpoint(model) is None:
            message = f"models: the model {quote_name(model)} is not available here (GET /v1/models)."
            raise ModelNotFound(message, param="models")
