"""The response to `POST /v1/messages/count_tokens` (docs.anthropic.com, "Count tokens in a Message")."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from svc.dialects.anthropic.response_codec import decode_payload
from svc.dialects.base import EncodedResponse
from svc.dialects.token_count import NO_USAGE


class TokenCountPayload(msgspec.Struct):
    input_tokens: Annotated[int, Meta(ge=0)]


_TOKEN_COUNT_DECODER: Final = msgspec.json.Decoder(TokenCountPayload)


def pass_through_count(raw: bytes) -> EncodedResponse:
    """Return the upstream's response unchanged. Raises ProviderFailed if it has no count."""
    decode_payload(_TOKEN_COUNT_DECODER, raw)
    return EncodedResponse(raw, NO_USAGE, "stop", "")


def encode_count(tokens: int) -> bytes:
    """Return the response body for a number of tokens."""
    return msgspec.json.encode(TokenCountPayload(tokens))
