"""The ASGI application: health, models, and the errors for all other paths."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from svc import __version__
from svc.allowed_hosts import AllowedHosts, host_header_values, host_not_allowed_error
from svc.dialects.endpoint import Endpoint
from svc.errors import (
    AuthenticationFailed,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PermissionDenied,
    SvcError,
)
from svc.gateway.observability.access_log import AccessLogEntry, encode_client_field, truncate_path
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.model_errors import quote_name
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.server.request import echoable_text
from svc.gateway.server.response import CORS_EXPOSED_HEADERS
from svc.security import secret_from_headers
from svc.stores.database.base import StoreUnavailable
from svc.telemetry import SCOPE_API_KEY, SCOPE_ERROR_CODE
from svc.wire.error import encode_error_body
from svc.wire.key import ApiKey

log = logging.getLogger("svc.gateway")

MODEL_LIST_SCOPES: Final = frozenset(("chat", "speech"))
"""A key needs one of these scopes to list models."""

SCOPE_ENDPOINT: Final = "svc.endpoint"
"""The key in an ASGI scope for the endpoint whose error format the response has."""

RouteHandler = Callable[[Request], Awaitable[Response]]


class Health(msgspec.Struct):
    """The health of the process."""

    status: str
    """Always `ok`."""
    version: str
    """The version of the gateway."""
    service: str
    """Always `svc-gateway`."""


class VerboseHealth(Health):
    """The health of the process and its components. The gateway serves requests in any case."""

    degraded: list[str]
    """The degraded components: `keys`, `ledger`, `journal`, `redis`."""


class Model(msgspec.Struct, kw_only=True):
    """A model, as in the OpenAI API, with further fields."""

    id: str
    """The id of the model."""
    object: str = "model"
    """Always `model`."""
    created: int
    """Unix seconds."""
    owned_by: str
    """The provider."""
    context_window: int
    """Tokens of prompt and response together."""
    max_output_tokens: int | None
    """Maximum tokens of a response. Null means unknown."""
    use_case: str | None
    """A description."""
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """The purpose of the model. A chat model does not have this field."""


class SpeechModel(msgspec.Struct, kw_only=True):
    """A speech model of this machine. It cannot chat."""

    id: str
    """The id of the model."""
    object: str = "model"
    """Always `model`."""
    created: int
    """Unix seconds."""
    owned_by: str = "local"
    """Always `local`."""
    use_case: str = "speech to text"
    """Always `speech to text`."""


class ModelList(msgspec.Struct):
    """A list of models."""

    data: list[Model | SpeechModel]
    object: str = "list"


class AccessLogMiddleware:
    """Adds a request id to every response, returns the client's own id, and writes a line to the access log."""

    def __init__(self, app: ASGIApp, context: GatewayContext, endpoints: EndpointTable) -> None:
        self._app = app
        self._context = context
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id_headers = [(b"x-request-id", self._context.request_ids.generate().encode())]
        client_request_id = echoable_text(dict(scope["headers"]).get(b"x-request-id", b""))
        if client_request_id:
            id_headers.append((b"x-client-request-id", client_request_id.encode("ascii")))
        endpoint = scope[SCOPE_ENDPOINT] = self._endpoints.find_by_prefix(scope["path"])
        if endpoint is not None and endpoint.request_id_header:
            id_headers.append((endpoint.request_id_header.encode("ascii"), id_headers[0][1]))
        client: str | None = (scope.get("client") or (None,))[0]
        scope["request_ids"] = (id_headers[0][1].decode(), client_request_id, client)
        status = 0
        started_at = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                message["headers"] = [*message.get("headers", ()), *id_headers]
                status = message.get("status", HTTPStatus.SWITCHING_PROTOCOLS)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except (ClientDisconnected, WebSocketDisconnect):  # a WebSocket client disconnected during the handshake
            pass
        except Exception:  # any other error is a bug: it becomes a 500 response
            request_id = id_headers[0][1].decode()
            log.exception("error in request %s", request_id)
            if scope["type"] != "http" or status:
                raise
            error_message = f"Internal error. Report it with the request id {request_id}."
            await error_response(InternalError(error_message))(scope, receive, send_with_id)
        finally:
            self._log_request(scope, status, time.monotonic() - started_at)

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        request_id, client_request_id, client = scope["request_ids"]
        if request_id in self._context.tracked_request_ids:  # TrackedRequest has logged it
            self._context.tracked_request_ids.discard(request_id)
            return
        key: ApiKey | None = scope.get(SCOPE_API_KEY)
        entry = AccessLogEntry(
            time=self._context.ledger.timestamp(),
            request_id=request_id,
            client_request_id=client_request_id,
            key_id=key.id if key else None,
            key_name=key.name if key else None,
            method=scope.get("method", "GET"),
            endpoint=truncate_path(scope["path"]),
            status=("error" if status >= HTTPStatus.BAD_REQUEST else "ok") if status else "client_closed",
            http_status=status or 499,
            latency_ms=round(seconds * 1000, 3),
            code=scope.get(SCOPE_ERROR_CODE),
        )
        self._context.report_other_response(entry, encode_client_field(client))


class HostCheckMiddleware:
    """Rejects requests whose `Host` is not allowed, unless they have a valid key. It prevents DNS rebinding.

    `/health`, `/metrics` and `/v1/` are exempt.
    """

    def __init__(self, app: ASGIApp, context: GatewayContext, hosts: AllowedHosts) -> None:
        self._app = app
        self._context = context
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._hosts.allows(host_header_values(scope)):
            error = await self._host_error(Request(scope))
            if error is not None:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _host_error(self, request: Request) -> SvcError | None:
        path = request.scope["path"]
        if path in ("/health", "/metrics") or f"{path}/".startswith("/v1/"):  # public, or they check the key themselves
            return None
        try:
            await authenticate_request(self._context, request)
        except AuthenticationFailed:
            return host_not_allowed_error()
        except SvcError as error:
            return error
        return None


class UnsupportedRequest:
    """Rejects requests to a model endpoint that have a method other than POST, or a `#` after the path."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise AuthenticationFailed, MethodNotAllowed or InvalidRequest."""
        request = Request(scope, receive)
        await authenticate_request(self._context, request)
        if request.method != "POST":
            raise MethodNotAllowed("This path supports only POST.", allow="POST")
        raise InvalidRequest(f"Remove the '#' and the text after it: the path is {request.url.path}.")


async def _no_speech_models(key: ApiKey) -> list[str]:
    return []


def create_app(
    context: GatewayContext,
    endpoints: EndpointTable,
    extra_routes: list[BaseRoute] | None = None,
    *,
    list_degraded: Callable[[], list[str]] = list,
    speech_models: Callable[[ApiKey], Awaitable[list[str]]] = _no_speech_models,
) -> Starlette:
    """Create the ASGI application of a gateway.

    `extra_routes` are those of other modules. `list_degraded` returns the names of the degraded components.
    `speech_models` returns the ids of the speech models that a key may use.
    """
    created = int(time.time())

    async def health(request: Request) -> Response:
        if request.query_params.get("verbose") not in (None, "0"):
            return _json_response(VerboseHealth("ok", __version__, "svc-gateway", list_degraded()))
        return _json_response(Health("ok", __version__, "svc-gateway"))

    async def root(request: Request) -> Response:
        return _json_response(Health("ok", __version__, "svc-gateway"))

    async def list_models(request: Request) -> list[Model | SpeechModel]:
        key = await authenticate_request(context, request)
        if not key.scopes & MODEL_LIST_SCOPES:
            raise PermissionDenied("This API key lacks the scopes 'chat' and 'speech': there are no models for it.")
        chat_models = [
            _model_object(backend, created) for backend in context.router.models() if key.may_use(backend.model_id)
        ]
        return [*chat_models, *(SpeechModel(id=name, created=created) for name in await speech_models(key))]

    async def get_models(request: Request) -> Response:
        return _json_response(ModelList(await list_models(request)))

    async def get_model(request: Request) -> Response:
        name = request.path_params["id"]
        for entry in await list_models(request):
            if entry.id == name:
                return _json_response(entry)
        raise context.router.model_not_found_error(name, request.scope[SCOPE_API_KEY])

    async def reject_websocket(socket: WebSocket) -> None:
        error: SvcError = NotFound(f"There is no WebSocket at {quote_name(socket.url.path)}.")
        try:
            await context.keyring.authenticate(secret_from_headers(socket.headers.get("authorization")))
        except SvcError as auth_error:
            error = auth_error
        await socket.send_denial_response(error_response(error))

    routes: list[BaseRoute] = [
        Route("/", root, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/v1/models", get_models, methods=["GET"]),
        Route("/v1/models/{id:path}", get_model, methods=["GET"]),
        *(Route(path.decode(), UnsupportedRequest(context)) for path in endpoints.by_path),
        *(extra_routes or []),
        WebSocketRoute("/{path:path}", reject_websocket),
    ]
    app = Starlette(
        routes=routes, middleware=_middleware(context, endpoints), exception_handlers=_exception_handlers(context)
    )
    app.router.redirect_slashes = False  # prevents open redirects: the target would come from the Host header
    return app


async def authenticate_request(context: GatewayContext, request: Request) -> ApiKey:
    """Return the API key of a request, and store it in the request's scope. Raises AuthenticationFailed."""
    secret = secret_from_headers(request.headers.get("authorization"), request.headers.get("x-api-key"))
    key: ApiKey = await context.keyring.authenticate(secret)
    request.scope[SCOPE_API_KEY] = key
    return key


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
        endpoint: Endpoint | None = scope.get(SCOPE_ENDPOINT)
        if endpoint is None:
            await super().__call__(scope, receive, send)
            return
        body = endpoint.encode_error(error, scope["request_ids"][0])
        await Response(body, error.status, dict(error.headers), "application/json")(scope, receive, send)


def _middleware(context: GatewayContext, endpoints: EndpointTable) -> list[Middleware]:
    middleware = [Middleware(AccessLogMiddleware, context=context, endpoints=endpoints)]
    hosts = AllowedHosts(context.config.current.settings.gateway.host, context.config.current.settings.gateway.hosts)
    if hosts.is_checked:
        middleware.append(Middleware(HostCheckMiddleware, context=context, hosts=hosts))
    if origins := context.config.current.settings.gateway.cors_origins:
        cors = functools.partial(
            CORSMiddleware, allow_methods=["*"], allow_headers=["*"], expose_headers=CORS_EXPOSED_HEADERS
        )
        middleware.append(Middleware(cors, allow_origins=list(origins)))
    return middleware


def _exception_handlers(
    context: GatewayContext,
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
        return error_response(_to_svc_error(request, error))

    async def handle_store_unavailable(request: Request, error: Exception) -> Response:
        log.error("a database query failed: %s", error)
        return error_response(StoreUnavailable("The database does not respond. Try again."))

    return {StoreUnavailable: handle_store_unavailable, SvcError: handle_svc_error, HTTPException: handle_http_error}


def _to_svc_error(request: Request, error: Exception) -> SvcError:
    if not isinstance(error, HTTPException) or error.status_code == 404:
        return NotFound(f"There is no path {quote_name(request.url.path)} here.")
    if error.status_code == 405:
        allow_header = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow", "")
        allow = ", ".join(sorted(allow_header.split(", ")))  # Starlette's order is random
        return MethodNotAllowed(f"This path supports {allow or 'other methods'}.", allow=allow)
    return InvalidRequest(str(error.detail))


def _json_response(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _model_object(backend: Backend, created: int) -> Model:
    return Model(
        id=backend.model_id,
        created=created,
        owned_by=backend.provider_name,
        context_window=backend.context_window,
        max_output_tokens=backend.profile.max_output_tokens,
        use_case=backend.model.use_case,
        kind=msgspec.UNSET if backend.kind == "chat" else backend.kind,
    )
