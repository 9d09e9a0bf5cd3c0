"""Interfaces to the gateway's rate limits and ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from svc.wire.key import ApiKey
from svc.wire.request_identity import RequestIdentity

UPLOAD_TRANSCRIPTION_PATH = "/v1/audio/transcriptions"

SpeechRequestStatus = Literal["ok", "error", "cut", "client_closed"]


class TrackedSpeechRequest(Protocol):
    """An admitted request. Call `finish` before the last byte is sent. Later calls have no effect."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The response headers with the remaining limits of the key."""

    def finish(
        self,
        status: SpeechRequestStatus,
        http_status: int,
        *,
        requested_model: str | None,
        model: str | None = None,
        first_byte_at: float | None = None,
        code: str | None = None,
    ) -> None:
        """Write the ledger entry.

        Args:
            status: how the request ended.
            http_status: the HTTP status of the response.
            requested_model: the model that the client named.
            model: the model that served the request, if any.
            first_byte_at: when the response started, in seconds of the monotonic clock.
            code: the error code, if any.
        """


class SpeechRequestTracker(Protocol):
    """Admits requests against the limits of their key."""

    async def track(
        self, key: ApiKey, endpoint: str, identity: RequestIdentity, *, is_long_lived: bool = False
    ) -> TrackedSpeechRequest:
        """Admit a request. Raises RateLimited if a limit of the key is reached.

        `is_long_lived` marks a request whose duration the client decides.
        """
