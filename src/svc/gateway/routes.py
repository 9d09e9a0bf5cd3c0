"""The routes that are not hot, as an ASGI application: health, models, and honest errors for everything else."""

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
from svc.errors import (
    AuthenticationFailed,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PermissionDenied,
    SvcError,
)
from svc.gateway.access_log import Line, log_end, path_shown
from svc.gateway.error_shape import dialect_below
from svc.gateway.offers import Offer
from svc.gateway.plane import Plane
from svc.gateway.refused_models import shown
from svc.gateway.reply import EXPOSED
from svc.gateway.request import text
from svc.loopback import AllowedHosts, host_values, misdirected
from svc.security import bearer
from svc.stores.base import StoreDown
from svc.telemetry import CODE, KEY
from svc.wire.key import Key
from svc.wire.problem import encode_problem

log = logging.getLogger("svc.gateway")

MODEL_SCOPES: Final = frozenset(("chat", "speech"))
"""A key with none of these sees no models."""

Handler = Callable[[Request], Awaitable[Response]]


class Health(msgspec.Struct):
    """Interface, "Health response"."""

    status: str
    version: str
    service: str


class VerboseHealth(Health):
    """What is degraded: `keys`, `ledger`, `journal`; the gateway answers all the same."""

    degraded: list[str]


class Model(msgspec.Struct, kw_only=True):
    """Interface, "Model object", and what else is known."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    context_window: int
    max_output_tokens: int | None
    use_case: str | None


class SpeechModel(msgspec.Struct, kw_only=True):
    """A model of this machine that turns speech into text: there is no chat with it."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "local"
    use_case: str = "speech to text"


class ModelList(msgspec.Struct):
    """Interface, "Model list"."""

    data: list[Model | SpeechModel]
    object: str = "list"


class Noted:
    """Every answer carries an id of ours, echoes the client's own, and leaves a line in the access log."""

    def __init__(self, app: ASGIApp, plane: Plane) -> None:
        self._app = app
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = [(b"x-request-id", self._plane.new_request_id().encode())]
        echoed = text(dict(scope["headers"]).get(b"x-request-id", b""))
        if echoed:
            ours.append((b"x-client-request-id", echoed.encode("ascii")))
        dialect = dialect_below(scope["path"])
        if dialect is not None and dialect.request_id_header:
            ours.append((dialect.request_id_header.encode("ascii"), ours[0][1]))
        client: str | None = (scope.get("client") or (None,))[0]
        scope["request_ids"] = (ours[0][1].decode(), echoed, client)
        status = 0
        began = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                message["headers"] = [*message.get("headers", ()), *ours]
                status = message.get("status", HTTPStatus.SWITCHING_PROTOCOLS)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except (ClientDisconnected, WebSocketDisconnect):  # a WebSocket, left before it was answered
            pass
        except Exception:  # the edge: a fault of ours
            request_id = ours[0][1].decode()
            log.exception("fault in request %s", request_id)
            if scope["type"] != "http" or status:
                raise
            words = f"Something went wrong here. Report it with the request id {request_id}."
            await error_response(InternalError(words))(scope, receive, send_with_id)
        finally:
            self._note(scope, status, time.monotonic() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        request_id, echoed, client = scope["request_ids"]
        if request_id in self._plane.visited:  # it has left more than a line
            self._plane.visited.discard(request_id)
            return
        key: Key | None = scope.get(KEY)
        line = Line(
            time=self._plane.ledger.stamp(),
            request_id=request_id,
            client_request_id=echoed,
            key_id=key.id if key else None,
            key_name=key.name if key else None,
            method=scope.get("method", "GET"),
            endpoint=path_shown(scope["path"]),
            status=("error" if status >= HTTPStatus.BAD_REQUEST else "ok") if status else "client_closed",
            http_status=status or 499,
            latency_ms=round(seconds * 1000, 3),
            code=scope.get(CODE),
        )
        self._plane.noted(line, log_end(client))


class HostCheck:
    """Refuses requests without a key whose `Host` is not allowed, but for paths with a rule of their own."""

    def __init__(self, app: ASGIApp, plane: Plane, hosts: AllowedHosts) -> None:
        self._app = app
        self._plane = plane
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._hosts.allows(host_values(scope)):
            refusal = await self._refusal(Request(scope))
            if refusal is not None:
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refusal(self, request: Request) -> SvcError | None:
        path = request.scope["path"]
        if path in ("/health", "/metrics") or f"{path}/".startswith("/v1/"):  # open to all, or 401 without a key
            return None
        try:
            await authenticated(self._plane, request)
        except AuthenticationFailed:
            return misdirected()
        except SvcError as error:
            return error
        return None


class NoChat:
    """Requests to a chat's path that the door does not take: any method but POST, and a path with a '#' behind it."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises AuthenticationFailed, MethodNotAllowed, InvalidRequest."""
        request = Request(scope, receive)
        await authenticated(self._plane, request)
        if request.method != "POST":
            raise MethodNotAllowed("This path takes POST.", allow="POST")
        raise InvalidRequest(f"Leave off the '#' and what follows it: the path is {request.url.path}.")


async def _none(key: Key) -> list[str]:
    return []


def application(
    plane: Plane,
    extra: list[BaseRoute] | None = None,
    *,
    speech_models: Callable[[Key], Awaitable[list[str]]] = _none,
) -> Starlette:
    """The cold routes of a gateway; `extra` are those of other rooms, `speech_models` what a key may hear with."""
    created = int(time.time())

    async def health(request: Request) -> Response:
        if request.query_params.get("verbose") not in (None, "0"):
            return _json(VerboseHealth("ok", __version__, "svc-gateway", plane.degraded()))
        return _json(Health("ok", __version__, "svc-gateway"))

    async def root(request: Request) -> Response:
        return _json(Health("ok", __version__, "svc-gateway"))

    async def listed(request: Request) -> list[Model | SpeechModel]:
        key = await authenticated(plane, request)
        if not key.scopes & MODEL_SCOPES:
            raise PermissionDenied("This API key lacks the scopes 'chat' and 'speech': there are no models for it.")
        chat = [_model(offer, created) for offer in plane.router.models() if key.may_use(offer.model_id)]
        return [*chat, *(SpeechModel(id=name, created=created) for name in await speech_models(key))]

    async def models(request: Request) -> Response:
        return _json(ModelList(await listed(request)))

    async def model(request: Request) -> Response:
        name = request.path_params["id"]
        for each in await listed(request):
            if each.id == name:
                return _json(each)
        raise plane.router.not_found(name, request.scope[KEY])

    async def no_socket(socket: WebSocket) -> None:
        error: SvcError = NotFound(f"There is no WebSocket at {shown(socket.url.path)}.")
        try:
            await plane.keyring.authenticate(bearer(socket.headers.get("authorization")))
        except SvcError as refusal:
            error = refusal
        await socket.send_denial_response(error_response(error))

    routes: list[BaseRoute] = [
        Route("/", root, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{id:path}", model, methods=["GET"]),
        Route("/v1/chat/completions", NoChat(plane)),
        Route("/v1/messages", NoChat(plane)),
        *(extra or []),
        WebSocketRoute("/{path:path}", no_socket),
    ]
    app = Starlette(routes=routes, middleware=_middleware(plane), exception_handlers=_handlers(plane))
    app.router.redirect_slashes = False  # it would send strangers to whatever the Host header says
    return app


async def authenticated(plane: Plane, request: Request) -> Key:
    """The calling key; raises AuthenticationFailed."""
    secret = bearer(request.headers.get("authorization"), request.headers.get("x-api-key"))
    key: Key = await plane.keyring.authenticate(secret)
    request.scope[KEY] = key
    return key


def error_response(error: SvcError) -> Response:
    """An error in the gateway's shape, or in that of the dialect whose path was asked for."""
    return _Problem(error)


class _Problem(Response):
    """Leaves its code for the access log."""

    def __init__(self, error: SvcError) -> None:
        super().__init__(encode_problem(error), error.status, dict(error.headers), "application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error
        scope[CODE] = error.code
        dialect = dialect_below(scope["path"])
        if dialect is None:
            await super().__call__(scope, receive, send)
            return
        body = dialect.write_error(error, scope["request_ids"][0])
        await Response(body, error.status, dict(error.headers), "application/json")(scope, receive, send)


def _middleware(plane: Plane) -> list[Middleware]:
    found = [Middleware(Noted, plane=plane)]
    hosts = AllowedHosts(plane.settings.gateway.host, plane.settings.gateway.hosts)
    if hosts.is_checked:
        found.append(Middleware(HostCheck, plane=plane, hosts=hosts))
    if origins := plane.settings.gateway.cors_origins:
        cors = functools.partial(CORSMiddleware, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED)
        found.append(Middleware(cors, allow_origins=list(origins)))
    return found


def _handlers(plane: Plane) -> dict[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]]:
    async def ours(request: Request, error: Exception) -> Response:
        return error_response(error) if isinstance(error, SvcError) else error_response(InternalError("Unknown fault."))

    async def http(request: Request, error: Exception) -> Response:
        try:
            if f"{request.scope['path']}/".startswith("/v1/"):
                await authenticated(plane, request)  # without a key even unknown paths are 401
        except SvcError as refusal:
            return error_response(refusal)
        return error_response(_translated(request, error))

    async def down(request: Request, error: Exception) -> Response:
        log.error("a question to the database failed: %s", error)
        return error_response(StoreDown("The database does not answer at the moment; try again."))

    return {StoreDown: down, SvcError: ours, HTTPException: http}


def _translated(request: Request, error: Exception) -> SvcError:
    if not isinstance(error, HTTPException) or error.status_code == 404:
        return NotFound(f"There is no path {shown(request.url.path)} here.")
    if error.status_code == 405:
        given = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow", "")
        allow = ", ".join(sorted(given.split(", ")))  # they come from a set
        return MethodNotAllowed(f"This path takes {allow or 'other methods'}.", allow=allow)
    return InvalidRequest(str(error.detail))


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _model(offer: Offer, created: int) -> Model:
    return Model(
        id=offer.model_id,
        created=created,
        owned_by=offer.provider_name,
        context_window=offer.context_window,
        max_output_tokens=offer.target.max_output_tokens,
        use_case=offer.model.use_case,
    )
