"""The base classes of chat endpoints, and of codecs that translate between dialects through the canonical chat."""

from __future__ import annotations

from typing import ClassVar

from svc.dialects.base import (
    Dialect,
    EncodedRequest,
    EncodedResponse,
    ModelProfile,
    RequestBody,
    StreamDecoder,
    StreamEncoder,
)
from svc.dialects.endpoint import Codec, Endpoint, RequestDecoder
from svc.dialects.resume import ResumableTranslation, supports_resume
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.subclassing import mypyc_attr
from svc.dialects.tool_names import LongNameStreamDecoder, find_long_names, restore_tool_names
from svc.dialects.translation import MeteredTranslation, StreamTranslation
from svc.errors import SvcError
from svc.wire.chat import ChatRequest, ChatResponse
from svc.wire.sse import KEEP_ALIVE_COMMENT
from svc.wire.usage import TokenUsage


@mypyc_attr(allow_interpreted_subclasses=True)
class TranslatingCodec(Codec):
    """Translates requests and streams through the canonical chat. Subclasses know the client's dialect."""

    __slots__ = ("_upstream",)

    def __init__(self, upstream: Dialect, *, forwards_head: bool = False) -> None:
        super().__init__(upstream.chat_path, forwards_head=forwards_head)
        self._upstream = upstream

    def _canonical_request(self, decode: RequestDecoder) -> ChatRequest:
        """Return the client's request as canonical chat. Raises InvalidRequest."""
        request: ChatRequest = decode()
        return request

    def _create_encoder(self, routing_info: RoutingInfo) -> StreamEncoder:
        """Create the encoder of the client's stream."""
        raise NotImplementedError

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        return self._upstream.encode_request(self._canonical_request(decode), profile)

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        decoder, encoder = self._create_decoder(), self._create_encoder(routing_info)
        return MeteredTranslation(decoder, encoder) if self.requires_usage else StreamTranslation(decoder, encoder)

    def _create_decoder(self) -> StreamDecoder:
        return self._upstream.create_stream_decoder()

    def decode_error_message(self, raw: bytes) -> str | None:
        return self._upstream.decode_error_message(raw)

    def create_resumable_transform(
        self, routing_info: RoutingInfo, decode: RequestDecoder
    ) -> ResumableTranslation | None:
        try:
            if not supports_resume(self._canonical_request(decode)):
                return None
        except SvcError:  # the request has no canonical form, so no other dialect can continue it
            return None
        return ResumableTranslation(self._upstream.create_stream_decoder(), self._create_encoder(routing_info))

    def continue_stream(self, interrupted: ResumableTranslation) -> ResumableTranslation:
        return interrupted.continue_with(self._upstream)

    def encode_resume_request(
        self, interrupted: ResumableTranslation, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        request = interrupted.resume_request(self._canonical_request(decode))
        return self._upstream.encode_request(request, profile)


@mypyc_attr(allow_interpreted_subclasses=True)
class ChatCodec(TranslatingCodec):
    """Converts for clients of one dialect. Subclasses for upstreams of that dialect forward bytes unchanged."""

    __slots__ = ("_client",)

    def __init__(self, client: Dialect, upstream: Dialect, *, forwards_head: bool = False) -> None:
        super().__init__(upstream, forwards_head=forwards_head)
        self._client = client

    def decode_response(self, raw: bytes) -> EncodedResponse:
        return self._encode_response(self._decode_response(raw))

    def map_field_name(self, name: str) -> str:
        return self._client.map_field_name(name)

    def _decode_response(self, raw: bytes) -> ChatResponse:
        return self._upstream.decode_response(raw)

    def _encode_response(self, response: ChatResponse) -> EncodedResponse:
        return EncodedResponse(self._client.encode_response(response), response.usage, response.finish, response.model)

    def _create_encoder(self, routing_info: RoutingInfo) -> StreamEncoder:
        return self._client.create_stream_encoder(include_usage=routing_info.include_usage)


@mypyc_attr(allow_interpreted_subclasses=True)
class ChatTranslation(ChatCodec):
    """Translates between two dialects. Tools whose names are too long for the upstream have shorter ones there."""

    __slots__ = ()

    needs_request: ClassVar[bool] = True

    def __init__(self, client: Dialect, upstream: Dialect) -> None:
        super().__init__(client, upstream)
        self.requires_usage = client.requires_usage

    def decode_response_with_usage(self, raw: bytes, usage: TokenUsage) -> EncodedResponse:
        response = self._decode_response(raw)
        response.usage = usage
        return self._encode_response(response)

    def for_request(self, decode: RequestDecoder, profile: ModelProfile) -> Codec:
        if long_names := find_long_names(self._canonical_request(decode)):
            return _LongNameTranslation(self._client, self._upstream, long_names)
        return self


class _LongNameTranslation(ChatTranslation):
    """The codec of one request with long names of tools."""

    __slots__ = ("_long_names",)

    needs_request: ClassVar[bool] = False

    def __init__(self, client: Dialect, upstream: Dialect, long_names: dict[str, str]) -> None:
        super().__init__(client, upstream)
        self._long_names = long_names

    def _decode_response(self, raw: bytes) -> ChatResponse:
        return restore_tool_names(self._upstream.decode_response(raw), self._long_names)

    def _create_decoder(self) -> StreamDecoder:
        return LongNameStreamDecoder(self._upstream.create_stream_decoder(), self._long_names)


@mypyc_attr(allow_interpreted_subclasses=True)
class ChatEndpoint(Endpoint):
    """An endpoint for clients of one dialect and upstreams of any dialect."""

    __slots__ = ("_client",)

    def __init__(
        self,
        path: str,
        client: Dialect,
        passthrough: Codec,
        *,
        forwarded_headers: frozenset[bytes] = frozenset(),
        request_id_header: str = "",
        client_header: bytes = b"",
        keep_alive_event: bytes = KEEP_ALIVE_COMMENT,
    ) -> None:
        """`passthrough` is the codec for upstreams of the client's own dialect."""
        super().__init__(
            path,
            {client: passthrough},
            cache_route=client.name,
            forwarded_headers=forwarded_headers,
            request_id_header=request_id_header,
            client_header=client_header,
            keep_alive_event=keep_alive_event,
        )
        self._client = client

    def add_codec(self, upstream: Dialect) -> Codec:
        codec = self.codecs[upstream] = ChatTranslation(self._client, upstream)
        return codec

    def decode_request(self, body: RequestBody) -> ChatRequest:
        return self._client.decode_request(body.raw)

    def find_chat(self, decode: RequestDecoder) -> ChatRequest | None:
        chat: ChatRequest = decode()
        return chat

    def encode_stream_error(self, error: SvcError) -> bytes:
        return self._client.create_stream_encoder(include_usage=False).encode_failure(error)
