"""Token counts of requests without a completion, for endpoints such as Anthropic's `count_tokens`.

An upstream that can count is asked. For any other one, LocalTokenCount returns the gateway's estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from svc.dialects.base import EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.endpoint import Codec, RequestDecoder
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import estimate_body_tokens
from svc.errors import ProviderFailed
from svc.wire.usage import TokenUsage

ESTIMATED_HEADER_LINE: Final = "x-svc-estimated: true\r\n"
"""Marks a count that no provider has made."""
NO_USAGE: Final = TokenUsage()
"""The usage of a count, which costs nothing."""


class LocalTokenCount(Codec):
    """Returns the estimate of the prompt tokens, without an upstream request.

    `encode_count` returns the response body of the endpoint for a number of tokens.
    """

    __slots__ = ("_encode_count",)

    def __init__(self, encode_count: Callable[[int], bytes]) -> None:
        super().__init__("")
        self._encode_count = encode_count

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        count = self._encode_count(estimate_body_tokens(body) + body.earlier_tokens)
        response = EncodedResponse(count, NO_USAGE, "stop", profile.model, ESTIMATED_HEADER_LINE)
        return EncodedRequest(b"", local_response=response)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        raise ProviderFailed("The gateway counts the tokens of this model itself.")
