"""The routes of speech, for the gateway's ASGI application: the live socket and the upload form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from svc.errors import MethodNotAllowed, SvcError
from svc.security import bearer
from svc.speech.answering import transcribe
from svc.speech.books import STREAM_PATH, UPLOAD_PATH
from svc.speech.events import TranscriptStream
from svc.speech.keywatch import KeyWatch
from svc.speech.service import Service
from svc.speech.stream import Stream
from svc.telemetry import CODE, KEY
from svc.wire.problem import encode_problem

SUBPROTOCOL = "svc.v1"
KEY_SUBPROTOCOL = "svc.api-key."
"""Browsers cannot set headers on a WebSocket, so the key comes as a subprotocol."""


def routes(service: Service) -> list[BaseRoute]:
    """Errors are raised as SvcErrors, which the application answers."""

    async def upload(request: Request) -> Response | TranscriptStream:
        key = await service.key(bearer(request.headers.get("authorization"), request.headers.get("x-api-key")))
        request.scope[KEY] = key
        return await transcribe(service, key, request)

    async def not_upgraded(request: Request) -> Response:
        await service.key(bearer(request.headers.get("authorization"), request.headers.get("x-api-key")))
        raise MethodNotAllowed("This path takes a WebSocket upgrade.", allow="GET")

    return [
        WebSocketRoute(STREAM_PATH, _Socket(service)),
        Route(STREAM_PATH, not_upgraded, methods=["GET", "POST"]),
        Route(UPLOAD_PATH, upload, methods=["POST"]),
    ]


class _Socket:
    """The live socket, as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        offered = scope["subprotocols"]
        secret = _secret(websocket, offered)
        try:
            key = await self._service.key(secret)
        except SvcError as error:
            scope[CODE] = error.code
            answer = Response(encode_problem(error), error.status, dict(error.headers), "application/json")
            await websocket.send_denial_response(answer)
            return
        scope[KEY] = key
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        watch = KeyWatch(self._service.keyring, secret or "", key)
        await Stream(self._service, websocket, watch, scope["request_ids"]).run()


def _secret(websocket: WebSocket, offered: list[str]) -> str | None:
    secret = bearer(websocket.headers.get("authorization"), websocket.headers.get("x-api-key"))
    if secret is None:
        return next((name.removeprefix(KEY_SUBPROTOCOL) for name in offered if name.startswith(KEY_SUBPROTOCOL)), None)
    return secret
