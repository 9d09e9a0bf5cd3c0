"""The access log: one JSON line for each response, written in batches."""

from __future__ import annotations

from typing import Final

import msgspec

from svc.gateway.accounting.record import RequestRecord, encode_record, escape_unprintable
from svc.gateway.observability.access_log import AccessLogEntry, encode_limit_field
from svc.gateway.observability.observer import RequestObserver
from svc.telemetry import LineWriter

MAX_BUFFERED_LOG_LINES: Final = 100
"""Lines that wait for the next `flush` at most. More would not fit the CPU's cache."""


class RequestLog(RequestObserver):
    """Buffers access log lines until `flush`."""

    def __init__(self, writer: LineWriter, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._writer = writer
        self._lines: list[bytes] = []
        self._encode_entry = msgspec.json.Encoder().encode

    @property
    def dropped_lines(self) -> int:
        """Lines lost because the reader of standard error was too slow."""
        return self._writer.dropped_lines

    def on_end(self, record: RequestRecord) -> None:
        if not self.is_enabled:
            return
        if not record.line:
            record.line = encode_record(record)
        lines = self._lines
        lines.append(
            record.line + encode_limit_field(record.limit_name) + record.client_field
            if record.limit_name
            else record.line + record.client_field
        )
        if len(lines) >= MAX_BUFFERED_LOG_LINES:
            self.flush()

    def on_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str) -> None:
        if self.is_enabled:
            if entry.message or entry.tags:
                entry = msgspec.structs.replace(entry, message=msgspec.UNSET, tags=msgspec.UNSET)
            self._lines.append(
                escape_unprintable(self._encode_entry(entry))[:-1]
                + (encode_limit_field(limit_name) if limit_name else b"")
                + client_field
            )

    def flush(self) -> None:
        """Hand the lines to the writer's thread."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._writer.write(b"".join(lines))
