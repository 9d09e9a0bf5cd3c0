"""Decodes the fields of a client's body that a type has. Other fields and most texts are validated, but not decoded.

    {"model":"m","tools":[…],"messages":[{"role":"user","content":"<a page>"},{"role":"user","content":"…"}]}
    {"model":"m","messages":[{"role":"user","content":""}]}

msgspec decodes the second line, the reduced body, at a fraction of the cost. Without the C module of `json_scan`, it
decodes the first line, or the skeleton of a long body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
from svc.dialects.validation import DECODE_ERRORS, decode_client_json, to_invalid_request
from svc.errors import InvalidRequest

T = TypeVar("T")

MAX_KEPT_NESTED_BYTES: Final = 102
"""Maximum length of a string at the third level of a chat or below that is decoded.

The longest name that is compared there has 17 letters (`redacted_thinking`), each of which may be an escape.
"""

_TOO_MANY_VALUES: Final = f"The body has more than {MAX_BODY_VALUES} values (parts, keys, messages and others)."


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
        """Set which messages and texts need not be decoded.

        These are messages with one of `roles` and, as `content`, a string or parts with one of `part_types`. Strings
        at the third level or below that are longer than `max_nested_bytes` may be decoded as empty.
        """
        names: tuple[str, ...] = fields_type.__struct_encode_fields__  # type: ignore[attr-defined]
        self._decoder: Final = msgspec.json.Decoder(fields_type)
        self._names: Final = tuple([name.encode() for name in names])
        self._roles: Final = tuple([role.encode() for role in roles])
        self._part_types: Final = tuple([name.encode() for name in part_types])
        self._max_nested_bytes: Final = max_nested_bytes

    def decode_body(self, body: RequestBody) -> T:
        """Decode a client's body, and set its skeleton, and the names of its fields where they can be read.

        Without `max_nested_bytes`, all decoded strings are complete if `body.skeleton` is the body. Raises
        InvalidRequest, also for a body with so many values that decoding it would block the event loop.
        """
        raw = body.raw
        if has_excess_backslashes(raw):
            raise InvalidRequest(f"The body has more than {MAX_BODY_BACKSLASHES} backslashes.")
        body.skeleton = raw
        reduced = self._strip(body) if scan_object is None else self._scan(scan_object, body)
        if reduced is not raw:
            try:
                if scan_object is None:
                    check_utf8(raw)
                return self._decoder.decode(reduced)
            except DECODE_ERRORS:
                body.skeleton = raw  # the error has to refer to the original body
        return self.decode_complete_body(raw)

    def decode_complete_body(self, raw: bytes) -> T:
        """Decode a client's body with all messages and texts. Raises InvalidRequest."""
        return decode_client_json(self._decoder, raw)

    def check(self, check: Callable[[T], bool], fields: T, body: RequestBody) -> bool:
        """Return the result of a check of decoded fields. Raises InvalidRequest with the index of a message."""
        try:
            return check(fields)
        except InvalidRequest:
            if len(body.raw) < MIN_SKELETON_BODY_BYTES:  # messages may be left out, so that the index is wrong
                check(self.decode_complete_body(body.raw))
            raise

    def _strip(self, body: RequestBody) -> bytes:
        """Set and return the skeleton of a body."""
        body.skeleton = strip_long_strings(body.raw)
        if has_excess_values(body.skeleton):
            raise InvalidRequest(_TOO_MANY_VALUES)
        return body.skeleton

    def _scan(self, scan_object: ScanObject, body: RequestBody) -> bytes:
        """Set what the scan of a body finds, and return the reduced body, or the body if it is not reduced."""
        raw = body.raw
        kept_names: tuple[bytes, ...] | None
        kept_names, roles, part_types, max_bytes = self._names, self._roles, self._part_types, len(raw)
        is_long = len(raw) >= MIN_SKELETON_BODY_BYTES
        if is_long:  # the skeleton has all fields, since it is searched later
            kept_names, roles, part_types, max_bytes = None, (), (), MAX_SKELETON_STRING_BYTES
        max_nested_bytes = max_bytes if self._max_nested_bytes is None else self._max_nested_bytes
        try:
            scan = scan_object(raw, kept_names, roles, part_types, max_bytes, max_nested_bytes)
        except ValueError:
            raise InvalidRequest(_TOO_MANY_VALUES) from None
        except RecursionError as error:
            raise to_invalid_request(error) from None
        if scan is None:
            return raw
        reduced, body.field_names, body.model_start, body.model_end = scan
        if is_long:
            body.skeleton = reduced
        return reduced
