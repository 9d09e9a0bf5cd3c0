"""The response to `POST /v1/responses/input_tokens` (platform.openai.com/docs/api-reference/responses/input-tokens)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from svc.dialects.base import EncodedResponse
from svc.dialects.token_count import NO_USAGE
from svc.dialects.upstream_errors import map_upstream_error
from svc.dialects.validation import decode_upstream_json, decode_upstream_object
from svc.errors import ProviderFailed


class InputTokensPayload(msgspec.Struct):
    input_tokens: Annotated[int, Meta(ge=0)]
    object: str = "response.input_tokens"


_INPUT_TOKENS_DECODER: Final = msgspec.json.Decoder(InputTokensPayload)


def pass_through_input_tokens(raw: bytes) -> EncodedResponse:
    """Return the upstream's response unchanged. Raises ProviderFailed if it has no count."""
    try:
        decode_upstream_json(_INPUT_TOKENS_DECODER, raw)
    except ProviderFailed:
        error = decode_upstream_object(raw).get("error")
        if error:
            raise map_upstream_error(error) from None
        raise
    return EncodedResponse(raw, NO_USAGE, "stop", "")


def encode_input_tokens(tokens: int) -> bytes:
    """Return the response body for a number of tokens."""
    return msgspec.json.encode(InputTokensPayload(tokens))
