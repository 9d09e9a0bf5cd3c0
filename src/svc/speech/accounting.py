"""What the gateway keeps of speech: the seam to its limits and its ledger, and the numbers for `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from svc.wire.key import ApiKey

LIVE_TRANSCRIPTION_PATH = "/v1/audio/transcriptions/stream"
UPLOAD_TRANSCRIPTION_PATH = "/v1/audio/transcriptions"

SpeechRequestIdentity = tuple[str, str | None, str | None]
"""Of a request: ours, the client's own, and the client's address."""
SpeechRequestStatus = Literal["ok", "error", "cut", "client_closed"]


class TrackedSpeechRequest(Protocol):
    """A request that was let in. `end` it once, before the last byte leaves; a second time is nothing."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What is left of the key's limits."""

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
        """`model` is the one that was reached, if any; `first` is when it answered, on the steady clock."""


class SpeechRequestTracker(Protocol):
    """Who lets requests in."""

    async def track(
        self, key: ApiKey, endpoint: str, identity: SpeechRequestIdentity, *, is_long_lived: bool = False
    ) -> TrackedSpeechRequest:
        """Raises RateLimited for a limit of the key. `lasts`: how long it takes is for the client to say."""


class SpeechMetrics:
    """Of this process. `workers` and `lost` are the pool's."""

    def __init__(self) -> None:
        self.open_sessions = 0
        self.audio_seconds = 0.0
        self.running_workers = 0
        self.lost_workers = 0
        self._request_counts = {"stream": 0, "upload": 0}
        self._error_counts: dict[str, int] = {}

    def record_request(self, kind: Literal["stream", "upload"]) -> None:
        """A session or an upload."""
        self._request_counts[kind] += 1

    def record_error(self, code: str) -> None:
        """A client was told an error; codes are our own, so they are few."""
        self._error_counts[code] = self._error_counts.get(code, 0) + 1

    def values(self) -> dict[str, float]:
        """As `/metrics` names them (docs/reference/metrics.md)."""
        return {
            "svc_speech_sessions": self.open_sessions,
            "svc_speech_audio_seconds_total": self.audio_seconds,
            "svc_speech_workers": self.running_workers,
            "svc_speech_workers_lost_total": self.lost_workers,
            **{f'svc_speech_requests_total{{kind="{kind}"}}': count for kind, count in self._request_counts.items()},
            **{f'svc_speech_errors_total{{code="{code}"}}': count for code, count in self._error_counts.items()},
        }
