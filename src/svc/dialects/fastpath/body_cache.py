"""Bodies of requests that are the last one of their connection again, but for one text: compared, not read. Pure.

{"model":"m","messages":[{"role":"system","content":"Sum up."},{"role":"user","content":"It was a dark …"}]}
└───────────────────────────────────── before ────────────────────────────────────────┘└── text ───┘└ after ┘

Programs ask the same of many texts. What lies around the text is, byte for byte, what was read once with all checks,
and the text is one JSON string as before: so both mean the same to every reader of JSON, but for what the text says.
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
"""Bytes of a body that is remembered: as long as the connection lasts."""
MAX_BODY_MISMATCHES: Final = 3
"""So many bodies in a row unlike the one before, and a connection's bodies are not compared any more."""

_TEXT_VALUE_START: Final = re.compile(rb'(?<!\\)"(?:content|text)"\s*:\s*"')
"""The name of a field whose text means nothing to routing. With a backslash before it, it would be a name's end."""
_STRING_CONTENT: Final = re.compile(rb'(?:[^"\\]|\\.)*+')
_STRING_DECODER: Final = msgspec.json.Decoder(str)


class BodyCache:
    """Of one connection."""

    __slots__ = ("_body", "_endpoint", "_mismatches", "_prefix", "_routing_info", "_suffix")

    def __init__(self, *, is_enabled: bool = True) -> None:
        self._endpoint: Endpoint | None = None
        self._body: RequestBody | None = None
        """The last body; None when it is not remembered."""
        self._routing_info: RoutingInfo | None = None
        self._prefix = b""
        self._suffix = b""
        self._mismatches = 0 if is_enabled else MAX_BODY_MISMATCHES

    def decode_routing_info(self, endpoint: Endpoint, body: RequestBody) -> RoutingInfo:
        """As `Endpoint.decode_routing_info`, for the connection's next body. Raises InvalidRequest."""
        last, routing_info = self._body, self._routing_info
        if last is not None and routing_info is not None and endpoint is self._endpoint and self._matches(body.raw):
            self._mismatches = 0
            body.skeleton, body.passthrough_check = body.raw, last.passthrough_check
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
            _STRING_DECODER.decode(raw[start - 1 : stop + 1])  # with its quotes: one string, and nothing else
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return True

    def _store(self, endpoint: Endpoint, body: RequestBody, routing_info: RoutingInfo) -> None:
        """The last text of the body is the one that will be another."""
        raw, self._body = body.raw, None
        field_index = max(raw.rfind(b'"content"'), raw.rfind(b'"text"')) if len(raw) <= MAX_CACHED_BODY_BYTES else -1
        value_start = _TEXT_VALUE_START.match(raw, field_index) if field_index >= 0 else None
        if value_start is None or self._mismatches >= MAX_BODY_MISMATCHES:
            return
        content = _STRING_CONTENT.match(raw, value_start.end())
        if content is not None:
            self._endpoint, self._body, self._routing_info = endpoint, body, routing_info
            self._prefix, self._suffix = raw[: content.start()], raw[content.end() :]
