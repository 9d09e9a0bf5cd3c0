"""The responses of the ASGI routes, and the check of a request's API key."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from svc.dialects.endpoint import Endpoint
from svc.errors import SvcError, TooLarge
from svc.gateway.proxy.context import GatewayContext
from svc.security import secret_from_request
from svc.telemetry import SCOPE_API_KEY, SCOPE_ERROR_CODE, SCOPE_ERROR_MESSAGE
from svc.wire.error import encode_error_body
from svc.wire.key import ApiKey
from svc.wire.request_identity import SCOPE_IDENTITY

SCOPE_ENDPOINT: Final = "svc.endpoint"
"""The key in an ASGI scope for the endpoint whose error format the response has."""
MAX_CONTROL_BODY_BYTES: Final = 1 << 20
"""Maximum bytes of a request body without prompts. It has room for 1,000 long model names."""


async def authenticate_request(context: GatewayContext, request: Request) -> ApiKey:
    """Return the API key of a request, or of its session, and store it in the request's scope.

    Raises AuthenticationFailed, or PermissionDenied for a change without a CSRF token.
    """
    secret = secret_from_request(request.method, request.headers)
    key: ApiKey = await context.keyring.authenticate(secret)
    request.scope[SCOPE_API_KEY] = key
    return key


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises TooLarge."""
    body = await request.body()
    if len(body) > MAX_CONTROL_BODY_BYTES:
        raise TooLarge(f"The body is larger than {MAX_CONTROL_BODY_BYTES >> 10} KiB.")
    return body


def json_response(body: object, status: int = 200, *, has_secret: bool = False) -> Response:
    """Return a response with a JSON body. No cache may keep one that has a secret."""
    headers = {"cache-control": "no-store"} if has_secret else {}
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def error_response(error: SvcError) -> Response:
    """Return a response in the error format of the requested path's endpoint, or else of the gateway."""
    return _ErrorResponse(error)


class _ErrorResponse(Response):
    """An error response that also passes its error code to the access log."""

    def __init__(self, error: SvcError) -> None:
        super().__init__(encode_error_body(error), error.status, dict(error.headers), "application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error
        scope[SCOPE_ERROR_CODE] = error.code
        scope[SCOPE_ERROR_MESSAGE] = error.message
        endpoint: Endpoint | None = scope.get(SCOPE_ENDPOINT)
        if endpoint is None:
            await super().__call__(scope, receive, send)
            return
        body = endpoint.encode_error(error, scope[SCOPE_IDENTITY].request_id)
        await Response(body, error.status, dict(error.headers), "application/json")(scope, receive, send)
