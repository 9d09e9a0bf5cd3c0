"""The ASGI application: the routes, the middleware, and the errors for all other paths."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from svc.errors import InternalError, InvalidRequest, MethodNotAllowed, NotFound, SvcError, WebSocketUnsupported
from svc.gateway.endpoints import health, models
from svc.gateway.endpoints.asgi_responses import authenticate_request, error_response
from svc.gateway.endpoints.middleware import build_middleware
from svc.gateway.local_model.runtime import LocalModelStatus
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.model_errors import quote_name
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.server.path_hints import path_not_found
from svc.security import secret_from_request
from svc.settings import GatewayRole
from svc.stores.database.base import StoreUnavailable
from svc.wire.key import ApiKey

log = logging.getLogger("svc.gateway")


async def _no_speech_models(key: ApiKey) -> list[str]:
    return []


def create_app(
    context: GatewayContext,
    endpoints: EndpointTable,
    extra_routes: list[BaseRoute] | None = None,
    *,
    other_role_routes: Sequence[BaseRoute] = (),
    list_degraded: Callable[[], list[str]] = list,
    speech_models: Callable[[ApiKey], Awaitable[list[str]]] = _no_speech_models,
    local_status: Callable[[str], LocalModelStatus | None] | None = None,
) -> Starlette:
    """Create the ASGI application of a gateway.

    `extra_routes` are those of other modules. `other_role_routes` are served by gateways with another role. Requests to
    them get an error that names it. `list_degraded` returns the names of the degraded components.
    `speech_models` returns the ids of the speech models that a key may use. `local_status` returns the state of a model
    of this machine.
    """

    role = context.config.current.settings.gateway.role
    endpoint_routes = [Route(path.decode(), UnsupportedRequest(context)) for path in endpoints.by_path]
    other_role = OtherRole(
        role, other_role_routes if endpoints.served_by_path else [*endpoint_routes, *other_role_routes]
    )

    async def reject_websocket(socket: WebSocket) -> None:
        error: SvcError = NotFound(f"There is no WebSocket at {quote_name(socket.url.path)}.")
        if other_role.has_route(socket.scope):
            error = other_role.error(socket.url.path)
        elif socket.url.path.encode() in endpoints.by_path:
            error = WebSocketUnsupported("This path supports POST, and no WebSocket.")
        try:
            await context.keyring.authenticate(secret_from_request("GET", socket.headers))
        except SvcError as auth_error:
            error = auth_error
        await socket.send_denial_response(error_response(error))

    routes: list[BaseRoute] = [
        *health.routes(list_degraded),
        *models.routes(context, speech_models, local_status),
        *(endpoint_routes if endpoints.served_by_path else []),
        *(extra_routes or []),
        WebSocketRoute("/{path:path}", reject_websocket),
    ]
    app = Starlette(
        routes=routes,
        middleware=build_middleware(context, endpoints),
        exception_handlers=_exception_handlers(context, other_role, _fixed_paths(routes)),
    )
    app.router.redirect_slashes = False  # prevents open redirects: the target would come from the Host header
    return app


class OtherRole:
    """The routes that this gateway does not serve because of its role, and the error for requests to them."""

    def __init__(self, role: GatewayRole, routes: Sequence[BaseRoute]) -> None:
        self._role = role
        self._routes = routes

    def has_route(self, scope: Scope) -> bool:
        """Return whether one of the routes has the path, with any method."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self._routes)

    def error(self, path: str) -> NotFound:
        other: GatewayRole = "data" if self._role == "admin" else "admin"
        return NotFound(
            f"This gateway has the role {self._role!r} and does not serve {quote_name(path)}. "
            f"A gateway with `--role {other}` or `--role all` serves it."
        )


class UnsupportedRequest:
    """Rejects requests to a model endpoint that have a method other than POST, or a `#` after the path."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise AuthenticationFailed, MethodNotAllowed or InvalidRequest."""
        request = Request(scope, receive)
        await authenticate_request(self._context, request)
        if request.method != "POST":
            raise MethodNotAllowed("This path supports POST.", allow="POST")
        raise InvalidRequest(f"Remove the '#' and the text after it: the path is {request.url.path}.")


def _fixed_paths(routes: Sequence[BaseRoute]) -> list[str]:
    """Return the paths of the routes that have no variable part."""
    return [route.path for route in routes if isinstance(route, Route) and "{" not in route.path]


def _exception_handlers(
    context: GatewayContext, other_role: OtherRole, known_paths: Sequence[str]
) -> dict[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]]:
    async def handle_svc_error(request: Request, error: Exception) -> Response:
        return (
            error_response(error) if isinstance(error, SvcError) else error_response(InternalError("Internal error."))
        )

    async def handle_http_error(request: Request, error: Exception) -> Response:
        try:
            if f"{request.scope['path']}/".startswith("/v1/"):
                await authenticate_request(context, request)  # without a key, unknown paths are 401 as well
        except SvcError as auth_error:
            return error_response(auth_error)
        if isinstance(error, HTTPException) and error.status_code == 404 and other_role.has_route(request.scope):
            return error_response(other_role.error(request.url.path))
        return error_response(_to_svc_error(request, error, known_paths))

    async def handle_store_unavailable(request: Request, error: Exception) -> Response:
        log.error("a database query failed: %s", error)
        return error_response(StoreUnavailable("The database does not respond. Try again."))

    return {StoreUnavailable: handle_store_unavailable, SvcError: handle_svc_error, HTTPException: handle_http_error}


def _to_svc_error(request: Request, error: Exception, known_paths: Sequence[str]) -> SvcError:
    if not isinstance(error, HTTPException) or error.status_code == 404:
        return path_not_found(request.url.path, known_paths)
    if error.status_code == 405:
        allow_header = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow", "")
        allow = ", ".join(sorted(allow_header.split(", ")))  # Starlette's order is random
        return MethodNotAllowed(f"This path supports {allow or 'other methods'}.", allow=allow)
    return InvalidRequest(str(error.detail))
