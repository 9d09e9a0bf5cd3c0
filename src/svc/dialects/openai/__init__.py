"""The dialect of OpenAI's chat completions, which most providers use with deviations.

routing_info                          the checked fields of a request that routing needs
request_decoder, request_encoder      a client's request to canonical chat; canonical chat to an upstream's request
response_passthrough, response_codec  complete responses: normalized; to and from canonical chat
forced_tools                          tool calls of upstreams that do not enforce `tool_choice`
stream_passthrough                    a stream for clients of the same dialect, normalized
stream_decoder, stream_encoder        an upstream's stream to deltas; deltas to a client's stream
"""

from __future__ import annotations

import msgspec

from svc.dialects.base import (
    Dialect,
    EncodedRequest,
    ModelProfile,
    StreamDecoder,
    StreamEncoder,
)
from svc.dialects.openai.forced_tools import ForcedToolDialect
from svc.dialects.openai.model_series import requires_max_completion_tokens
from svc.dialects.openai.request_decoder import decode_request
from svc.dialects.openai.request_encoder import encode_request
from svc.dialects.openai.response_codec import decode_response, encode_response
from svc.dialects.openai.stream_decoder import OpenAIStreamDecoder
from svc.dialects.openai.stream_encoder import OpenAIStreamEncoder
from svc.dialects.subclassing import mypyc_attr
from svc.dialects.upstream_errors import decode_error_message
from svc.wire.chat import ChatRequest, ChatResponse, UpstreamOverrides


@mypyc_attr(allow_interpreted_subclasses=True)
class OpenAIDialect(Dialect):
    """`Dialect` for `POST {base}/chat/completions`. A plug-in may inherit from it, with another name and path."""

    __slots__ = ()

    def __init__(self, name: str = "openai", *, chat_path: str = "/chat/completions") -> None:
        super().__init__(name, chat_path=chat_path, models_path="/models")
        self.forced_tool_variant = ForcedToolDialect(self)

    def decode_request(self, raw: bytes) -> ChatRequest:
        return decode_request(raw)

    def encode_response(self, response: ChatResponse) -> bytes:
        return encode_response(response)

    def create_stream_encoder(self, *, include_usage: bool) -> StreamEncoder:
        return OpenAIStreamEncoder(include_usage=include_usage)

    def auth_headers(self, api_key: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {api_key}"),) if api_key else ()

    def model_overrides(self, model: str, overrides: UpstreamOverrides) -> UpstreamOverrides:
        if not requires_max_completion_tokens(model) or "max_tokens" in overrides.rejects:
            return overrides
        return msgspec.structs.replace(overrides, rejects=(*overrides.rejects, "max_tokens"))

    def encode_request(self, request: ChatRequest, profile: ModelProfile) -> EncodedRequest:
        return encode_request(request, profile)

    def decode_response(self, raw: bytes) -> ChatResponse:
        return decode_response(raw)

    def create_stream_decoder(self) -> StreamDecoder:
        return OpenAIStreamDecoder()

    def decode_error_message(self, raw: bytes) -> str | None:
        return decode_error_message(raw)


dialect: Dialect = OpenAIDialect()
