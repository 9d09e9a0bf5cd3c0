"""What the gateway keeps of speech: the seam to its limits and its ledger, and the numbers for `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from svc.wire.key import Key

STREAM_PATH = "/v1/audio/transcriptions/stream"
UPLOAD_PATH = "/v1/audio/transcriptions"

Ids = tuple[str, str | None, str | None]
"""Of a request: ours, the client's own, and the client's address."""
Status = Literal["ok", "error", "cut", "client_closed"]


class Visit(Protocol):
    """A request that was let in. `end` it once, before the last byte leaves; a second time is nothing."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What is left of the key's limits."""

    def end(
        self,
        status: Status,
        http_status: int,
        *,
        asked: str | None,
        model: str | None = None,
        first: float | None = None,
        code: str | None = None,
    ) -> None:
        """`model` is the one that was reached, if any; `first` is when it answered, on the steady clock."""


class Visits(Protocol):
    """Who lets requests in."""

    async def enter(self, key: Key, endpoint: str, ids: Ids, *, lasts: bool = False) -> Visit:
        """Raises RateLimited for a limit of the key. `lasts`: how long it takes is for the client to say."""


class Counts:
    """Of this process. `workers` and `lost` are the pool's."""

    def __init__(self) -> None:
        self.sessions = 0
        self.seconds = 0.0
        self.workers = 0
        self.lost = 0
        self._requests = {"stream": 0, "upload": 0}
        self._errors: dict[str, int] = {}

    def began(self, kind: Literal["stream", "upload"]) -> None:
        """A session or an upload."""
        self._requests[kind] += 1

    def failed(self, code: str) -> None:
        """A client was told an error; codes are our own, so they are few."""
        self._errors[code] = self._errors.get(code, 0) + 1

    def values(self) -> dict[str, float]:
        """As `/metrics` names them (docs/reference/metrics.md)."""
        return {
            "svc_speech_sessions": self.sessions,
            "svc_speech_audio_seconds_total": self.seconds,
            "svc_speech_workers": self.workers,
            "svc_speech_workers_lost_total": self.lost,
            **{f'svc_speech_requests_total{{kind="{kind}"}}': count for kind, count in self._requests.items()},
            **{f'svc_speech_errors_total{{code="{code}"}}': count for code, count in self._errors.items()},
        }
