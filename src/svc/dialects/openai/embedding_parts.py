"""Divides an embeddings request into parts for a model of this machine, and joins their responses."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.base import RequestParts
from svc.dialects.upstream_errors import decode_error_object
from svc.dialects.validation import decode_client_fields
from svc.errors import InvalidRequest, ProviderFailed
from svc.wire.usage import MAX_USAGE_TOKENS

MAX_PART_INPUTS: Final = 16
MAX_PART_BYTES: Final = 1024
"""Maximum bytes of the inputs of a part, unless a single input is longer. A small model reads them in 0.2 s."""
_OMITTED_FIELDS: Final = ("input", "user")
"""`user` has no meaning for a model of this machine."""
_NULL: Final = b"null"
_EMPTY_STRING: Final = b'""'
_INPUTS_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ROWS_DECODER: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_PAYLOAD_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError)


class EmbeddingParts(RequestParts):
    """A request in parts of consecutive inputs, with the responses so far.

    An input that could be too long for the model has a part of its own, so that an error can name it.
    """

    __slots__ = ("_head", "_inputs", "_prompt_tokens", "_response_head", "_rows", "_single_response", "_starts")

    def __init__(self, fields: dict[str, msgspec.Raw], input_window: int) -> None:
        """`fields` are those of the request's body. `input_window` is the longest input in tokens.

        Raises InvalidRequest for an empty text, which the skeleton of a long body does not show.
        """
        kept = [(name, bytes(raw)) for name, raw in fields.items() if name not in _OMITTED_FIELDS]
        self._head = b"".join([b"%b:%b," % (msgspec.json.encode(name), raw) for name, raw in kept if raw != _NULL])
        raw_input = bytes(fields["input"]).strip()
        self._inputs: list[msgspec.Raw] | None = (
            _INPUTS_DECODER.decode(raw_input) if raw_input.startswith(b"[") else None
        )
        if self._inputs is None:
            self._head += b'"input":' + raw_input
        self._starts = [0] if self._inputs is None else _divide(self._inputs, input_window)
        self._single_response = b""
        self._response_head: dict[str, msgspec.Raw] = {}
        self._rows: list[bytes] = []
        self._prompt_tokens = 0

    @property
    def count(self) -> int:
        return len(self._starts)

    def encode_part(self, number: int) -> bytes:
        if self._inputs is None:
            return b"{%b}" % self._head
        return b'{%b"input":[%b]}' % (self._head, b",".join(self._inputs_of(number)))

    def _inputs_of(self, number: int) -> list[msgspec.Raw]:
        inputs = self._inputs or []
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(inputs)
        return inputs[self._starts[number] : end]

    def add_response(self, number: int, raw: bytes) -> None:
        if self.count == 1:
            self._single_response = raw
            return
        try:
            payload = _FIELDS_DECODER.decode(raw)
            rows = _ROWS_DECODER.decode(payload["data"])
            tokens = msgspec.json.decode(payload["usage"])["prompt_tokens"]
        except _PAYLOAD_FAULTS:
            raise ProviderFailed("The local model sent an invalid response.") from None
        if len(rows) != len(self._inputs_of(number)) or type(tokens) is not int or not 0 <= tokens <= MAX_USAGE_TOKENS:
            raise ProviderFailed("The local model sent an invalid response.")
        self._response_head = self._response_head or payload
        self._prompt_tokens += tokens
        for index, row in enumerate(rows, self._starts[number]):
            row["index"] = msgspec.Raw(b"%d" % index)
            self._rows.append(msgspec.json.encode(row))

    def join_responses(self) -> bytes:
        if self.count == 1:
            return self._single_response
        usage = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        joined = {
            **self._response_head,
            "usage": msgspec.Raw(msgspec.json.encode(usage)),
            "data": msgspec.Raw(b"[%b]" % b",".join(self._rows)),
        }
        return msgspec.json.encode(joined)

    def name_input(self, number: int, raw: bytes) -> bytes:
        error = decode_error_object(raw)
        if not isinstance(error, dict):
            return raw
        param = "input"
        if self._inputs is not None and len(self._inputs_of(number)) == 1:
            param = f"input[{self._starts[number]}]"
        return msgspec.json.encode({"error": {**error, "param": param}})


def divide_request(body: bytes, input_window: int) -> EmbeddingParts:
    """Return the parts of a request, whose body was checked before. Raises InvalidRequest for an empty text."""
    fields: dict[str, Any] = decode_client_fields(body)
    return EmbeddingParts(fields, input_window)


def _divide(inputs: list[msgspec.Raw], input_window: int) -> list[int]:
    """Return the index of the first input of each part.

    A text has no more tokens than bytes. So a text with fewer bytes than the model has tokens is never too long.
    """
    max_shared_bytes = min(MAX_PART_BYTES, max(1, input_window // 2))
    starts: list[int] = []
    part_bytes, part_inputs = 0, 0
    for index, text in enumerate(inputs):
        size = memoryview(text).nbytes
        if size == len(_EMPTY_STRING):
            raise InvalidRequest(f"`input[{index}]` is empty.", param=f"input[{index}]")
        is_alone = size > max_shared_bytes
        if (
            not starts
            or is_alone
            or part_bytes > MAX_PART_BYTES
            or part_bytes + size > MAX_PART_BYTES
            or part_inputs >= MAX_PART_INPUTS
        ):
            starts.append(index)
            part_bytes, part_inputs = 0, 0
        part_bytes += MAX_PART_BYTES + 1 if is_alone else size
        part_inputs += 1
    return starts
