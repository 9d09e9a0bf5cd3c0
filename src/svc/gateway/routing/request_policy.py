"""Timeouts, size limits and retry settings of requests, from `[gateway]` and `[routing]`."""

from __future__ import annotations

from svc.errors import TooLarge
from svc.settings import Settings

KIB_BYTES, MIB_BYTES = 1024, 1024 * 1024


class RequestPolicy:
    """The settings that the hot path reads, in seconds and bytes. Attribute access is faster than in `Settings`."""

    __slots__ = (
        "body_timeout",
        "cors_origins",
        "first_byte_timeout",
        "header_timeout",
        "hedge_after",
        "idle_timeout",
        "keep_alive",
        "max_body_bytes",
        "max_header_bytes",
        "max_retries",
        "min_pace",
        "resumes_streams",
        "stream_keep_alive",
        "total_timeout",
        "uses_fast_paths",
        "write_timeout",
    )

    def __init__(self, settings: Settings) -> None:
        gateway, routing = settings.gateway, settings.routing
        self.first_byte_timeout = float(gateway.first_byte_timeout)
        self.idle_timeout = float(gateway.idle_timeout)
        self.stream_keep_alive = float(gateway.stream_keep_alive)
        self.total_timeout = float(gateway.total_timeout)
        self.write_timeout = float(gateway.write_timeout)
        self.header_timeout = float(gateway.header_timeout)
        self.body_timeout = float(gateway.body_timeout)
        self.keep_alive = float(gateway.keep_alive)
        self.max_header_bytes = int(gateway.max_header * KIB_BYTES)
        self.max_body_bytes = int(gateway.max_body * MIB_BYTES)
        self.cors_origins = gateway.cors_origins
        self.max_retries = routing.retries
        self.hedge_after = float(routing.hedge_after)
        self.min_pace = float(routing.min_pace)
        self.resumes_streams = routing.resume
        self.uses_fast_paths = settings.fast_paths

    def body_too_large_error(self) -> TooLarge:
        """Return the error for a larger body."""
        return TooLarge(f"The body is larger than {self.max_body_bytes / MIB_BYTES:g} MiB ([gateway] max_body).")
