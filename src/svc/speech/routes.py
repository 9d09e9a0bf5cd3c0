"""The speech routes of the gateway's ASGI application: the live WebSocket and the upload form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from svc.errors import MethodNotAllowed, SvcError
from svc.security import secret_from_headers
from svc.speech.accounting import LIVE_TRANSCRIPTION_PATH, UPLOAD_TRANSCRIPTION_PATH
from svc.speech.events import TranscriptEventStream
from svc.speech.key_monitor import SessionKeyMonitor
from svc.speech.service import SpeechService
from svc.speech.upload_endpoint import transcribe_upload
from svc.speech.websocket import WebSocketSession
from svc.telemetry import SCOPE_API_KEY, SCOPE_ERROR_CODE
from svc.wire.error import encode_error_body

SPEECH_SUBPROTOCOL = "svc.v1"
KEY_SUBPROTOCOL_PREFIX = "svc.api-key."
"""Browsers cannot set headers on a WebSocket, so the key is sent as a subprotocol."""


def routes(service: SpeechService) -> list[BaseRoute]:
    """Return the routes. They raise SvcError, which the application turns into a response."""

    async def upload(request: Request) -> Response | TranscriptEventStream:
        key = await service.authenticate(
            secret_from_headers(request.headers.get("authorization"), request.headers.get("x-api-key"))
        )
        request.scope[SCOPE_API_KEY] = key
        return await transcribe_upload(service, key, request)

    async def not_upgraded(request: Request) -> Response:
        await service.authenticate(
            secret_from_headers(request.headers.get("authorization"), request.headers.get("x-api-key"))
        )
        raise MethodNotAllowed("This path requires a WebSocket upgrade.", allow="GET")

    return [
        WebSocketRoute(LIVE_TRANSCRIPTION_PATH, _LiveTranscriptionApp(service)),
        Route(LIVE_TRANSCRIPTION_PATH, not_upgraded, methods=["GET", "POST"]),
        Route(UPLOAD_TRANSCRIPTION_PATH, upload, methods=["POST"]),
    ]


class _LiveTranscriptionApp:
    """The live WebSocket as an ASGI application."""

    def __init__(self, service: SpeechService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        offered_subprotocols = scope["subprotocols"]
        secret = _read_secret(websocket, offered_subprotocols)
        try:
            key = await self._service.authenticate(secret)
        except SvcError as error:
            scope[SCOPE_ERROR_CODE] = error.code
            response = Response(encode_error_body(error), error.status, dict(error.headers), "application/json")
            await websocket.send_denial_response(response)
            return
        scope[SCOPE_API_KEY] = key
        await websocket.accept(SPEECH_SUBPROTOCOL if SPEECH_SUBPROTOCOL in offered_subprotocols else None)
        key_monitor = SessionKeyMonitor(self._service.keyring, secret or "", key)
        await WebSocketSession(self._service, websocket, key_monitor, scope["request_ids"]).run()


def _read_secret(websocket: WebSocket, offered_subprotocols: list[str]) -> str | None:
    secret = secret_from_headers(websocket.headers.get("authorization"), websocket.headers.get("x-api-key"))
    if secret is None:
        return next(
            (
                name.removeprefix(KEY_SUBPROTOCOL_PREFIX)
                for name in offered_subprotocols
                if name.startswith(KEY_SUBPROTOCOL_PREFIX)
            ),
            None,
        )
    return secret
