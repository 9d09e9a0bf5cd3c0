"""The codec between Responses clients and upstreams of another dialect."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody, StreamEncoder
from svc.dialects.chat_codec import TranslatingCodec
from svc.dialects.endpoint import Codec, RequestDecoder
from svc.dialects.responses.request_decoder import ResponsesRequest
from svc.dialects.responses.response_codec import encode_response
from svc.dialects.responses.stream_encoder import ResponsesStreamEncoder
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.errors import InvalidRequest
from svc.wire.chat import ChatMessage, ChatRequest, RedactedThinkingPart, ThinkingPart

_FIELD_NAMES: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "output_config": "reasoning.effort",
    "output_config.effort": "reasoning.effort",
    "messages[].thinking": "input[].reasoning",
    "messages[].is_error": "input[].is_error",
}
"""Names of fields in this dialect, by their names in the dialects of the upstreams."""


class ResponsesCodec(TranslatingCodec):
    """Encodes requests. The responses of a request need its `BoundResponsesCodec`."""

    __slots__ = ()

    needs_request: ClassVar[bool] = True

    def for_request(self, decode: RequestDecoder, profile: ModelProfile) -> Codec:
        return BoundResponsesCodec(self._upstream, decode, profile)

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        try:
            request = _without_foreign_thinking(
                self._canonical_request(decode), describe_origin(self._upstream, profile)
            )
            encoded = self._upstream.encode_request(request, profile)
        except InvalidRequest as error:
            raise _rename_field(error) from None
        encoded.dropped_fields = tuple(dict.fromkeys(_FIELD_NAMES.get(name, name) for name in encoded.dropped_fields))
        return encoded

    def _canonical_request(self, decode: RequestDecoder) -> ChatRequest:
        request: ResponsesRequest = decode()
        return request.chat

    def decode_response(self, raw: bytes) -> EncodedResponse:
        raise NotImplementedError


class BoundResponsesCodec(ResponsesCodec):
    """The codec of one request."""

    __slots__ = ("_decode", "_origin")

    needs_request: ClassVar[bool] = False

    def __init__(self, upstream: Dialect, decode: RequestDecoder, profile: ModelProfile) -> None:
        super().__init__(upstream)
        self._decode = decode
        self._origin = describe_origin(upstream, profile)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        response = self._upstream.decode_response(raw)
        request: ResponsesRequest = self._decode()
        encoded = encode_response(response, request, self._origin)
        return EncodedResponse(encoded, response.usage, response.finish, response.model)

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        transform = super().create_stream_transform(routing_info, profile)
        transform.disable_fast_paths()  # the last event repeats the text of all others
        return transform

    def _create_encoder(self, routing_info: RoutingInfo) -> StreamEncoder:
        return ResponsesStreamEncoder(self._decode(), self._origin)


def describe_origin(upstream: Dialect, profile: ModelProfile) -> str:
    """Return the name of a backend in opaque reasoning: blocks of another model or dialect are not sent to it."""
    return f"{upstream.name}/{profile.model}"


def _without_foreign_thinking(request: ChatRequest, origin: str) -> ChatRequest:
    """Return the request without the thinking of other backends."""
    messages = [_filter_thinking(message, origin) for message in request.messages]
    return msgspec.structs.replace(request, messages=[message for message in messages if message.parts])


def _filter_thinking(message: ChatMessage, origin: str) -> ChatMessage:
    parts = [
        part
        for part in message.parts
        if not isinstance(part, ThinkingPart | RedactedThinkingPart) or part.origin == origin
    ]
    return message if len(parts) == len(message.parts) else msgspec.structs.replace(message, parts=parts)


def _rename_field(error: InvalidRequest) -> InvalidRequest:
    """Return the error with the field of this dialect."""
    param = error.param or ""
    known = next((name for name in _FIELD_NAMES if param == name or param.startswith((f"{name}[", f"{name}."))), "")
    if not known:
        return error
    new_name = _FIELD_NAMES[known] if known == "messages" else _FIELD_NAMES[known] + param[len(known) :]
    return InvalidRequest(error.message.replace(f"`{param}`", f"`{new_name}`"), param=new_name)
