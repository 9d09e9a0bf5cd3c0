"""The ASGI middleware of the gateway: access log, request ids, and the check of the `Host` header."""

from __future__ import annotations

import functools
import logging
import time
from http import HTTPStatus

import msgspec
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from svc.allowed_hosts import AllowedHosts, host_header_values, host_not_allowed_error
from svc.errors import AuthenticationFailed, InternalError, SvcError
from svc.gateway.endpoints.asgi_responses import SCOPE_ENDPOINT, authenticate_request, error_response
from svc.gateway.observability.access_log import AccessLogEntry, encode_client_field, truncate_path
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.server.response import CORS_EXPOSED_HEADERS
from svc.telemetry import SCOPE_API_KEY, SCOPE_ERROR_CODE, SCOPE_ERROR_MESSAGE
from svc.wire.header_value import echoable_text
from svc.wire.key import ApiKey
from svc.wire.request_identity import SCOPE_IDENTITY, RequestIdentity
from svc.wire.trace_context import TRACE_CONTEXT_HEADERS, encode_trace_header

log = logging.getLogger("svc.gateway")


def build_middleware(context: GatewayContext, endpoints: EndpointTable) -> list[Middleware]:
    """Return the middleware that the settings need, the outermost first."""
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
        endpoint = scope[SCOPE_ENDPOINT] = self._endpoints.find_error_format(scope["path"], scope["headers"])
        if endpoint is not None and endpoint.request_id_header:
            id_headers.append((endpoint.request_id_header.encode("ascii"), id_headers[0][1]))
        client: str | None = (scope.get("client") or (None,))[0]
        trace_context = b"".join(
            [encode_trace_header(name, value) for name, value in scope["headers"] if name in TRACE_CONTEXT_HEADERS]
        )
        identity = RequestIdentity(id_headers[0][1].decode(), client_request_id, client, trace_context)
        scope[SCOPE_IDENTITY] = identity
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
            log.exception("error in request %s", identity.request_id)
            if scope["type"] != "http" or status:
                raise
            error_message = f"Internal error. Report it with the request id {identity.request_id}."
            await error_response(InternalError(error_message))(scope, receive, send_with_id)
        finally:
            self._log_request(scope, identity, status, time.monotonic() - started_at)

    def _log_request(self, scope: Scope, identity: RequestIdentity, status: int, seconds: float) -> None:
        if identity.request_id in self._context.tracked_request_ids:  # TrackedRequest has logged it
            self._context.tracked_request_ids.discard(identity.request_id)
            return
        key: ApiKey | None = scope.get(SCOPE_API_KEY)
        entry = AccessLogEntry(
            time=self._context.ledger.timestamp(),
            request_id=identity.request_id,
            client_request_id=identity.client_request_id,
            key_id=key.id if key else None,
            key_name=key.name if key else None,
            method=scope.get("method", "GET"),
            endpoint=truncate_path(scope["path"]),
            status=("error" if status >= HTTPStatus.BAD_REQUEST else "ok") if status else "client_closed",
            http_status=status or 499,
            latency_ms=round(seconds * 1000, 3),
            code=scope.get(SCOPE_ERROR_CODE),
            message=scope.get(SCOPE_ERROR_MESSAGE, msgspec.UNSET),
            tags=key.tags if key else {},
        )
        self._context.observers.report_other_response(entry, encode_client_field(identity.client_address))


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
