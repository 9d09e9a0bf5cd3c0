"""OpenAI embeddings: decodes the routing information of a request and the usage of a response, but no vectors."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from svc.dialects.base import EncodedResponse, RequestBody
from svc.dialects.fields_decoder import FieldsDecoder
from svc.dialects.json_scan import check_utf8
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.upstream_errors import map_upstream_error
from svc.errors import InvalidRequest, ProviderFailed
from svc.wire.chat import UpstreamOverrides
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage

MAX_EMBEDDING_INPUTS: Final = 2048
"""Maximum number of inputs of one request (OpenAI's API reference, "Create embeddings")."""
MAX_EMBEDDING_DIMENSIONS: Final = 65_536
"""Maximum of `dimensions`, which no published model reaches."""
MAX_TOKEN_ID: Final = 2**31 - 1
_VECTOR_STARTS: Final = b'["'
"""The first byte of a vector: a list of numbers, or base64."""


class EmbeddingsBody(msgspec.Struct):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: Annotated[str, Meta(min_length=1)] | Annotated[list[Any], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MAX_EMBEDDING_DIMENSIONS)] | None = None
    user: str | None = None
    stream: bool | None = None


class _EmbeddingPayload(msgspec.Struct):
    embedding: msgspec.Raw


class EmbeddingsPayload(msgspec.Struct):
    data: Annotated[list[_EmbeddingPayload], Meta(min_length=1)]
    model: str = ""
    usage: Any = None


class _ErrorPayload(msgspec.Struct):
    error: Any = None


_EMBEDDINGS_ROUTING_DECODER: Final = FieldsDecoder(EmbeddingsBody)
_BODY_DECODER: Final = msgspec.json.Decoder(EmbeddingsBody)
_PAYLOAD_DECODER: Final = msgspec.json.Decoder(EmbeddingsPayload)
_ERROR_DECODER: Final = msgspec.json.Decoder(_ErrorPayload)
_EMBEDDINGS_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_routing_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information, and set the body's skeleton. Raises InvalidRequest with the field."""
    fields = _EMBEDDINGS_ROUTING_DECODER.decode_body(body)
    if fields.stream:
        raise InvalidRequest("Embeddings cannot be streamed: omit `stream`.", param="stream")
    if isinstance(fields.input, list):
        _check_inputs(fields.input, is_complete=body.skeleton is body.raw)
    return RoutingInfo(model=fields.model, has_completion=False, has_single_prompt=False)


def check_supported(body: RequestBody, overrides: UpstreamOverrides) -> None:
    """Raise InvalidRequest for a field that the provider does not support and that cannot be left out."""
    if overrides.token_input and "dimensions" not in overrides.rejects:
        return
    fields = _BODY_DECODER.decode(body.skeleton or body.raw)
    if fields.dimensions is not None and "dimensions" in overrides.rejects:
        raise InvalidRequest("This model has vectors of one size: omit `dimensions`.", param="dimensions")
    if not overrides.token_input and isinstance(fields.input, list) and not isinstance(fields.input[0], str):
        raise InvalidRequest("This model takes texts only: send strings as `input`, not tokens.", param="input")


def _check_inputs(inputs: list[Any], *, is_complete: bool) -> None:
    """Check that the inputs are strings, or tokens, or lists of tokens. Raises InvalidRequest.

    `is_complete`: long texts have their content, so that an empty text is one of the client's.
    """
    kind = type(inputs[0])
    if kind not in (str, int, list) or any(type(item) is not kind for item in inputs):
        index = next((index for index, item in enumerate(inputs) if type(item) is not kind), 0)
        raise _invalid_item_error(index, "expected strings, tokens, or lists of tokens")
    if kind is not int and len(inputs) > MAX_EMBEDDING_INPUTS:
        raise InvalidRequest(f"`input` has more than {MAX_EMBEDDING_INPUTS} entries.", param="input")
    if kind is str and is_complete and not all(inputs):
        raise _invalid_item_error(inputs.index(""), "it is empty")
    token_lists = [inputs] if kind is int else inputs if kind is list else []
    for index, tokens in enumerate(token_lists):
        if not tokens:
            raise _invalid_item_error(index, "it is empty")
        if any(type(token) is not int or not 0 <= token <= MAX_TOKEN_ID for token in tokens):
            reason = f"a token is an integer from 0 to {MAX_TOKEN_ID}"
            if kind is list:
                raise _invalid_item_error(index, reason)
            raise InvalidRequest(f"Invalid value for `input`: {reason}.", param="input")


def _invalid_item_error(index: int, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for `input[{index}]`: {reason}.", param=f"input[{index}]")


def decode_response(raw: bytes) -> EncodedResponse:
    """Return the response unchanged. Raises ProviderFailed if it has no vectors, or the error of its error object."""
    try:
        check_utf8(raw)
        payload = _PAYLOAD_DECODER.decode(raw)
    except _EMBEDDINGS_DECODE_ERRORS:
        raise _to_error(raw) from None
    if not all(memoryview(item.embedding)[0] in _VECTOR_STARTS for item in payload.data):
        raise ProviderFailed("The provider's response has an embedding that is not a vector.")
    return EncodedResponse(raw, _to_usage(payload.usage), "stop", payload.model)


def _to_usage(usage: Any) -> TokenUsage | None:
    """Return the usage. Some providers report only the total, which equals the prompt tokens."""
    counts = [usage.get(name) for name in ("prompt_tokens", "total_tokens")] if isinstance(usage, dict) else []
    valid = [count for count in counts if type(count) is int and 0 <= count <= MAX_USAGE_TOKENS]
    return TokenUsage(valid[0]) if valid else None


def _to_error(raw: bytes) -> Exception:
    try:
        error = _ERROR_DECODER.decode(raw).error
    except _EMBEDDINGS_DECODE_ERRORS:
        error = None
    return map_upstream_error(error) if error else ProviderFailed("The provider sent an invalid response.")
