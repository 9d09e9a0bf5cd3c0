"""The speech routes of the gateway's ASGI application: the live WebSocket and the upload form."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from svc.errors import MethodNotAllowed, SvcError
from svc.security import secret_from_headers, secret_from_request
from svc.session_tokens import check_origin
from svc.speech.accounting import UPLOAD_TRANSCRIPTION_PATH
from svc.speech.events import TranscriptEventStream
from svc.speech.key_monitor import SessionKeyMonitor
from svc.speech.service import SpeechService
from svc.speech.upload_endpoint import transcribe_upload
from svc.speech.websocket import WebSocketSession
from svc.telemetry import SCOPE_API_KEY, SCOPE_ERROR_CODE
from svc.wire.error import encode_error_body
from svc.wire.key import ApiKey
from svc.wire.request_identity import SCOPE_IDENTITY
from svc.wire.speech import LIVE_TRANSCRIPTION_PATH
from svc.wire.speech_catalog import VoiceEntry, VoiceList

SPEECH_SUBPROTOCOL = "svc.v1"
KEY_SUBPROTOCOL_PREFIX = "svc.api-key."
"""Browsers cannot set headers on a WebSocket, so the key is sent as a subprotocol."""


VOICES_PATH = "/v1/audio/voices"


def _no_voices(key: ApiKey) -> list[VoiceEntry]:
    return []


def routes(service: SpeechService, list_voices: Callable[[ApiKey], list[VoiceEntry]] = _no_voices) -> list[BaseRoute]:
    """Return the routes. They raise SvcError, which the application turns into a response.

    `list_voices` returns the models that speak and that a key may use.
    """

    async def upload(request: Request) -> Response | TranscriptEventStream:
        key = await service.authenticate(secret_from_request(request.method, request.headers))
        request.scope[SCOPE_API_KEY] = key
        return await transcribe_upload(service, key, request)

    async def voices(request: Request) -> Response:
        key = await service.authenticate(secret_from_request(request.method, request.headers))
        request.scope[SCOPE_API_KEY] = key
        found = VoiceList(data=list_voices(key), transcription_models=await service.describe_models(key))
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def not_upgraded(request: Request) -> Response:
        await service.authenticate(secret_from_request("GET", request.headers))
        raise MethodNotAllowed("This path requires a WebSocket upgrade.", allow="GET")

    return [
        WebSocketRoute(LIVE_TRANSCRIPTION_PATH, _LiveTranscriptionApp(service)),
        Route(LIVE_TRANSCRIPTION_PATH, not_upgraded, methods=["GET", "POST"]),
        Route(UPLOAD_TRANSCRIPTION_PATH, upload, methods=["POST"]),
        Route(VOICES_PATH, voices, methods=["GET"]),
    ]


class _LiveTranscriptionApp:
    """The live WebSocket as an ASGI application."""

    def __init__(self, service: SpeechService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        offered_subprotocols = scope["subprotocols"]
        try:
            secret = _read_secret(websocket, offered_subprotocols)
            key = await self._service.authenticate(secret)
        except SvcError as error:
            scope[SCOPE_ERROR_CODE] = error.code
            response = Response(encode_error_body(error), error.status, dict(error.headers), "application/json")
            await websocket.send_denial_response(response)
            return
        scope[SCOPE_API_KEY] = key
        await websocket.accept(SPEECH_SUBPROTOCOL if SPEECH_SUBPROTOCOL in offered_subprotocols else None)
        key_monitor = SessionKeyMonitor(self._service.keyring, secret or "", key)
        await WebSocketSession(self._service, websocket, key_monitor, scope[SCOPE_IDENTITY]).run()


def _read_secret(websocket: WebSocket, offered_subprotocols: list[str]) -> str | None:
    """Return the key, else the token of the session cookie, or None. Raises PermissionDenied for another origin."""
    headers = websocket.headers
    secret = secret_from_headers(headers.get("authorization"), headers.get("x-api-key"))
    if secret is not None:
        return secret
    for name in offered_subprotocols:
        if name.startswith(KEY_SUBPROTOCOL_PREFIX):
            return name.removeprefix(KEY_SUBPROTOCOL_PREFIX)
    session = secret_from_request("GET", headers)
    if session is not None:
        check_origin(headers.get("origin"), headers.get("host"))
    return session
