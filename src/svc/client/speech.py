"""Encodes requests for speech and reads the audio. No sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from svc.client.http_session import HttpSession
from svc.client.request_fields import encode_request_body, select_fields
from svc.client.transport import ClientResponse
from svc.errors import ModelNotFound

SDK_DEFAULT_VOICE = "alloy"
"""OpenAI's API requires a voice. A voice of the gateway's machine takes its own instead of a name that it lacks."""
SDK_SPEECH_FORMAT = "wav"
SDK_SPEECH_KIND = "speech"
LOCAL_OWNER = "local"


def build_speech_request(
    text: str, model: str, voice: str | None, response_format: str, parameters: Mapping[str, Any]
) -> bytes:
    """Return the body of the request. Raises InvalidRequest for a value that is not JSON."""
    body = {
        "model": model,
        "input": text,
        "voice": voice or SDK_DEFAULT_VOICE,
        "response_format": response_format,
        **select_fields(parameters),
    }
    return encode_request_body(body)


def choose_speech_model(models: list[Any]) -> str:
    """Return the first voice of the gateway's machine, else the first speech model. Raises ModelNotFound."""
    speech_models = [model for model in models if model.kind == SDK_SPEECH_KIND]
    local_models = [model for model in speech_models if model.owned_by == LOCAL_OWNER]
    for model in (*local_models, *speech_models):
        name: str = model.id
        return name
    raise ModelNotFound(
        "The gateway has no model for text to speech. Install a voice on its machine: svc models add piper-joe-en-us",
        param="model",
    )


class SpeechResponseStream:
    """The chunks of one response."""

    def __init__(self, session: HttpSession, response: ClientResponse) -> None:
        self._session, self._response = session, response
        self._closed = False
        self.request_id = response.headers.get("x-request-id")

    async def next(self) -> bytes | None:
        """Return the next chunk, or None at the end. Raises GatewayFailed if the audio is interrupted."""
        if self._closed:
            return None
        try:
            chunk = await self._session.read_chunk(self._response)
        except BaseException:
            await self.close()
            raise
        if chunk:
            return chunk
        await self.close()
        return None

    async def close(self) -> None:
        """Cancel the response. Safe to call twice."""
        self._closed = True
        await self._response.close()
