"""Reuse the routing facts of a connection's previous body if the next body differs in one text only. No I/O.

{"model":"m","messages":[{"role":"system","content":"Sum up."},{"role":"user","content":"It was a dark …"}]}
└───────────────────────────────────── prefix ────────────────────────────────────────┘└── text ───┘└ suffix ┘

Programs often send the same prompt with many texts. If the prefix and the suffix equal those of a body that was parsed
and checked, and the text is one JSON string, then every JSON parser reads both bodies alike, except for the text.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from svc.dialects.base import RequestBody
from svc.dialects.endpoint import Endpoint
from svc.dialects.json_skeleton import MIN_SKELETON_BODY_BYTES
from svc.dialects.routing_info import RoutingInfo

MAX_CACHED_BODY_BYTES: Final = 8 * 1024
"""Maximum size of a cached body. It is cached until the connection closes."""
MAX_BODY_MISMATCHES: Final = 3
"""Consecutive bodies that differ, after which the connection no longer compares bodies."""

_TEXT_VALUE_START: Final = re.compile(rb'(?<!\\)"(?:content|text)"\s*:\s*"')
"""A field that routing ignores. After a backslash, the quote would not start a field name."""
_STRING_CONTENT: Final = re.compile(rb'(?:[^"\\]|\\.)*+')
_STRING_DECODER: Final = msgspec.json.Decoder(str)


class BodyCache:
    """The cached body of one connection."""

    __slots__ = ("_body", "_endpoint", "_mismatches", "_prefix", "_routing_info", "_suffix")

    def __init__(self, *, is_enabled: bool = True) -> None:
        self._endpoint: Endpoint | None = None
        self._body: RequestBody | None = None
        """The previous body. None if it is not cached."""
        self._routing_info: RoutingInfo | None = None
        self._prefix = b""
        self._suffix = b""
        self._mismatches = 0 if is_enabled else MAX_BODY_MISMATCHES

    def decode_routing_info(self, endpoint: Endpoint, body: RequestBody) -> RoutingInfo:
        """Return what `Endpoint.decode_routing_info` returns for the next body. Raises InvalidRequest."""
        last, routing_info = self._body, self._routing_info
        if last is not None and routing_info is not None and endpoint is self._endpoint and self._matches(body.raw):
            self._mismatches = 0
            body.skeleton = body.raw
            if last.field_spans is not None:
                body.field_spans = _shift_spans(last.field_spans, len(self._prefix), len(body.raw) - len(last.raw))
            return routing_info
        routing_info = endpoint.decode_routing_info(body)
        if self._mismatches < MAX_BODY_MISMATCHES:
            self._mismatches += 1
            self._store(endpoint, body, routing_info)
        return routing_info

    def _matches(self, raw: bytes) -> bool:
        start, stop = len(self._prefix), len(raw) - len(self._suffix)
        if (
            not start <= stop < MIN_SKELETON_BODY_BYTES
            or not raw.startswith(self._prefix)
            or not raw.endswith(self._suffix)
        ):
            return False
        try:
            _STRING_DECODER.decode(raw[start - 1 : stop + 1])  # with its quotes: exactly one string
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return True

    def _store(self, endpoint: Endpoint, body: RequestBody, routing_info: RoutingInfo) -> None:
        """Cache the body. The last text of the body is expected to differ in the next one."""
        raw, self._body = body.raw, None
        field_index = max(raw.rfind(b'"content"'), raw.rfind(b'"text"')) if len(raw) <= MAX_CACHED_BODY_BYTES else -1
        value_start = _TEXT_VALUE_START.match(raw, field_index) if field_index >= 0 else None
        if value_start is None or self._mismatches >= MAX_BODY_MISMATCHES:
            return
        content = _STRING_CONTENT.match(raw, value_start.end())
        if content is not None:
            self._endpoint, self._body, self._routing_info = endpoint, body, routing_info
            self._prefix, self._suffix = raw[: content.start()], raw[content.end() :]


def _shift_spans(spans: dict[str, tuple[int, int]], text_start: int, shift: int) -> dict[str, tuple[int, int]]:
    """Return the spans in a body whose text is longer by `shift` bytes."""
    if shift == 0:
        return spans
    return {
        name: (start + shift if start > text_start else start, stop + shift if stop > text_start else stop)
        for name, (start, stop) in spans.items()
    }
