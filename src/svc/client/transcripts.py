"""Transcripts of audio files: a stream of events, so that a long transcription is not mistaken for a silent gateway."""

from __future__ import annotations

from typing import Any

import msgspec

from svc.client.event_stream import SdkEventStream
from svc.client.http_session import HttpSession, add_request_id, raise_stream_error
from svc.client.transport import ClientResponse
from svc.errors import GatewayFailed, ProviderFailed
from svc.wire.sse import event_data

TRANSCRIPTIONS_PATH = "/audio/transcriptions"
TRANSCRIPT_DONE_EVENT = "transcript.text.done"
TRANSCRIPT_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, KeyError)


class Transcript(msgspec.Struct, frozen=True):
    """The text of an audio file. `raw` is the JSON of the gateway."""

    text: str
    raw: dict[str, Any]


async def read_transcript(session: HttpSession, response: ClientResponse) -> Transcript:
    """Read the transcript from a successful response, and close it. Raises SvcError."""
    if response.headers.get("content-type", "").startswith("application/json"):  # the server does not stream
        return await _read_whole(session, response)
    stream = TranscriptStream(session, response)
    while await stream.next() is not None:
        pass
    return stream.transcript


async def _read_whole(session: HttpSession, response: ClientResponse) -> Transcript:
    try:
        with add_request_id(response):
            return _decode_transcript(await session.read_body(response))
    except TRANSCRIPT_DECODE_ERRORS as error:
        failure = GatewayFailed("The response is not a transcript. Check that the address is a gateway's.")
        failure.request_id = response.headers.get("x-request-id")
        raise failure from error
    finally:
        await response.close()


def _decode_transcript(data: bytes) -> Transcript:
    raw = msgspec.json.decode(data, type=dict[str, Any])
    return Transcript(str(raw["text"]), raw)


class TranscriptStream(SdkEventStream[str]):
    """The events of a transcription. `next` returns their types."""

    transcript: Transcript
    """Set after the last event."""

    def __init__(self, session: HttpSession, response: ClientResponse) -> None:
        super().__init__(session, response)
        self._is_done = False

    @property
    def _is_last_event_read(self) -> bool:
        return self._is_done

    @property
    def _has_result(self) -> bool:
        return self._is_done

    def _handle_event(self, event: bytes) -> None:
        payload = event_data(event)
        if payload is None or self._is_done:  # such as a keep-alive
            return
        raise_stream_error(payload)
        try:
            event_type = str(msgspec.json.decode(payload, type=dict[str, Any])["type"])
            if event_type == TRANSCRIPT_DONE_EVENT:
                self.transcript = _decode_transcript(payload)
                self._is_done = True
        except TRANSCRIPT_DECODE_ERRORS as error:
            raise ProviderFailed("The server sent an event that is not one of a transcription.") from error
        self._items.append(event_type)
