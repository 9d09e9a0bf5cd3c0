"""Decodes the fields of a body that a type has. Long strings and other fields are validated, and not decoded.

    {"model":"m","tools":[…],"messages":[{"role":"user","content":"<a page>"},{"role":"user","content":"…"}]}
    {"model":"m","messages":[{"role":"user","content":""}]}

msgspec decodes the second line, the skeleton, at a fraction of the cost. Without the C module of `json_scan`, it
decodes the first one, and long bodies without their long strings.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Generic, TypeVar

import msgspec

from svc.dialects.base import RequestBody
from svc.dialects.json_scan import ScanObject, check_utf8, scan_object
from svc.dialects.json_skeleton import (
    MAX_BODY_BACKSLASHES,
    MAX_BODY_VALUES,
    MAX_SKELETON_STRING_BYTES,
    MIN_SKELETON_BODY_BYTES,
    has_excess_backslashes,
    has_excess_values,
    strip_long_strings,
)
from svc.dialects.validation import DECODE_ERRORS, decode_client_json
from svc.errors import InvalidRequest

T = TypeVar("T")

MAX_KEPT_NESTED_BYTES: Final = 102
"""Maximum length of a string at the third level of a chat or below that is decoded.

The longest name that is compared there has 17 letters (`redacted_thinking`), each of which may be an escape.
"""


class FieldsDecoder(Generic[T]):
    """Decodes bodies to a msgspec.Struct."""

    def __init__(
        self,
        fields_type: type[T],
        *,
        roles: Collection[str] = (),
        part_types: Collection[str] = (),
        max_nested_bytes: int | None = None,
    ) -> None:
        """Set what need not be decoded.

        Of `messages`, those with one of `roles`, and a string or parts with one of `part_types` as `content`. With
        `max_nested_bytes`, longer strings at the third level or below may be decoded as empty.
        """
        names: tuple[str, ...] = fields_type.__struct_encode_fields__  # type: ignore[attr-defined]
        self._decoder: Final = msgspec.json.Decoder(fields_type)
        self._names: Final = tuple([name.encode() for name in names])
        self._roles: Final = tuple([role.encode() for role in roles])
        self._part_types: Final = tuple([name.encode() for name in part_types])
        self._max_nested_bytes: Final = max_nested_bytes

    def decode_body(self, body: RequestBody) -> T:
        """Decode a client's body, and set its skeleton, and the names of its fields where they can be read.

        A long text may be decoded as empty, unless `body.skeleton` is the body. Raises InvalidRequest, also for a body
        with so many values that decoding it would block the event loop.
        """
        raw = body.raw
        if has_excess_backslashes(raw):
            raise InvalidRequest(f"The body has more than {MAX_BODY_BACKSLASHES} backslashes.")
        text = self._find_skeleton(body)
        if has_excess_values(text):
            raise InvalidRequest(f"The body has more than {MAX_BODY_VALUES} values (parts, keys, messages and others).")
        if text is not raw:
            try:
                if scan_object is None:
                    check_utf8(raw)
                return self._decoder.decode(text)
            except DECODE_ERRORS:
                body.skeleton = raw  # the error has to refer to the original body
        return decode_client_json(self._decoder, raw)

    def decode_complete_body(self, raw: bytes) -> T:
        """Decode all of a client's body, for the index of an invalid message. Raises InvalidRequest."""
        return decode_client_json(self._decoder, raw)

    def _find_skeleton(self, body: RequestBody) -> bytes:
        """Set what the scan of a body finds, and return what is to be decoded."""
        raw = body.raw
        body.skeleton = raw
        if scan_object is None:
            body.skeleton = strip_long_strings(raw)
            return body.skeleton
        if len(raw) >= MIN_SKELETON_BODY_BYTES:  # its skeleton is searched later, and needs all fields
            return self._scan_long_body(scan_object, body)
        max_nested_bytes = len(raw) if self._max_nested_bytes is None else self._max_nested_bytes
        scan = scan_object(raw, self._names, self._roles, self._part_types, len(raw), max_nested_bytes)
        if scan is None:
            return raw
        text, body.field_names, body.model_start, body.model_end = scan
        return text

    def _scan_long_body(self, scan_object: ScanObject, body: RequestBody) -> bytes:
        max_bytes = MAX_SKELETON_STRING_BYTES
        max_nested_bytes = max_bytes if self._max_nested_bytes is None else self._max_nested_bytes
        scan = scan_object(body.raw, None, (), (), max_bytes, max_nested_bytes)
        if scan is not None:
            body.skeleton, body.field_names, body.model_start, body.model_end = scan
        return body.skeleton
