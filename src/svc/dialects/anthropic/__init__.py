"""The dialect of Anthropic's messages.

routing_info                          the checked fields of a request that routing needs
request_decoder, request_encoder      a client's request to canonical chat; canonical chat to an upstream's request
response_codec                        complete responses: to and from canonical chat, and for the same dialect
stream_passthrough                    a stream for clients of the same dialect
stream_decoder, stream_encoder        an upstream's stream to deltas; deltas to a client's stream
"""

from __future__ import annotations

from svc.dialects.anthropic.request_decoder import decode_request
from svc.dialects.anthropic.request_encoder import encode_request
from svc.dialects.anthropic.response_codec import decode_response, encode_response
from svc.dialects.anthropic.stream_decoder import AnthropicStreamDecoder
from svc.dialects.anthropic.stream_encoder import AnthropicStreamEncoder
from svc.dialects.base import (
    Dialect,
    EncodedRequest,
    ModelProfile,
    StreamDecoder,
    StreamEncoder,
)
from svc.dialects.subclassing import mypyc_attr
from svc.dialects.upstream_errors import decode_error_message
from svc.wire.chat import ChatRequest, ChatResponse


@mypyc_attr(allow_interpreted_subclasses=True)
class AnthropicDialect(Dialect):
    """`Dialect` for `POST {base}/v1/messages`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(
            "anthropic",
            chat_path="/v1/messages",
            models_path="/v1/models",
            request_id_header=b"request-id",
            requires_usage=True,
        )

    def decode_request(self, raw: bytes) -> ChatRequest:
        return decode_request(raw)

    def encode_response(self, response: ChatResponse) -> bytes:
        return encode_response(response)

    def create_stream_encoder(self, *, include_usage: bool) -> StreamEncoder:
        return AnthropicStreamEncoder()  # its clients always get the usage

    def map_field_name(self, name: str) -> str:
        return "output_config.format" if name == "response_format" else name

    def auth_headers(self, api_key: str) -> tuple[tuple[str, str], ...]:
        version = ("anthropic-version", "2023-06-01")
        return (("x-api-key", api_key), version) if api_key else (version,)

    def encode_request(self, request: ChatRequest, profile: ModelProfile) -> EncodedRequest:
        return encode_request(request, profile)

    def decode_response(self, raw: bytes) -> ChatResponse:
        return decode_response(raw)

    def create_stream_decoder(self) -> StreamDecoder:
        return AnthropicStreamDecoder()

    def decode_error_message(self, raw: bytes) -> str | None:
        return decode_error_message(raw)


dialect: Dialect = AnthropicDialect()
