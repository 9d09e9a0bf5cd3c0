"""Interfaces to the gateway's rate limits and ledger, and the speech metrics for `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from svc.wire.key import ApiKey

UPLOAD_TRANSCRIPTION_PATH = "/v1/audio/transcriptions"

SpeechRequestIdentity = tuple[str, str | None, str | None, bytes]
"""The gateway's request id, the client's request id and address, and the header lines of the client's trace."""
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
        self, key: ApiKey, endpoint: str, identity: SpeechRequestIdentity, *, is_long_lived: bool = False
    ) -> TrackedSpeechRequest:
        """Admit a request. Raises RateLimited if a limit of the key is reached.

        `is_long_lived` marks a request whose duration the client decides.
        """


class SpeechMetrics:
    """Speech counters of this process. The worker pool updates `running_workers` and `lost_workers`."""

    def __init__(self) -> None:
        self.open_sessions = 0
        self.audio_seconds = 0.0
        self.running_workers = 0
        self.lost_workers = 0
        self._request_counts = {"stream": 0, "upload": 0}
        self._error_counts: dict[str, int] = {}

    def record_request(self, kind: Literal["stream", "upload"]) -> None:
        """Count a live session or an upload."""
        self._request_counts[kind] += 1

    def record_error(self, code: str) -> None:
        """Count an error that was sent to a client. The codes are the project's own, so there are few."""
        self._error_counts[code] = self._error_counts.get(code, 0) + 1

    def values(self) -> dict[str, float]:
        """Return the values by metric name (docs/reference/metrics.md)."""
        return {
            "svc_speech_sessions": self.open_sessions,
            "svc_speech_audio_seconds_total": self.audio_seconds,
            "svc_speech_workers": self.running_workers,
            "svc_speech_workers_lost_total": self.lost_workers,
            **{f'svc_speech_requests_total{{kind="{kind}"}}': count for kind, count in self._request_counts.items()},
            **{f'svc_speech_errors_total{{code="{code}"}}': count for code, count in self._error_counts.items()},
        }
