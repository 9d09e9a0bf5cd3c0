"""The codec between Responses clients and upstreams of another dialect."""

from __future__ import annotations

import re
from typing import ClassVar, Final

import msgspec

from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody, StreamEncoder
from svc.dialects.chat_codec import TranslatingCodec
from svc.dialects.endpoint import Codec, RequestDecoder
from svc.dialects.responses.input_items import DecodedMessage
from svc.dialects.responses.request_decoder import ResponsesRequest
from svc.dialects.responses.response_codec import encode_response
from svc.dialects.responses.stream_encoder import ResponsesStreamEncoder
from svc.dialects.resume import ResumableTranslation
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.errors import InvalidRequest
from svc.wire.chat import ChatRequest, RedactedThinkingPart, ThinkingPart

_FIELD_NAMES: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "output_config": "reasoning.effort",
    "output_config.effort": "reasoning.effort",
    "messages[].thinking": "input[].reasoning",
    "messages[].is_error": "input[].is_error",
}
"""Names of fields in this dialect, by their names in the dialects of the upstreams."""
_MESSAGE_PATH: Final = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\])?")


class ResponsesCodec(TranslatingCodec):
    """Encodes requests. The responses of a request need its `BoundResponsesCodec`."""

    __slots__ = ()

    needs_request: ClassVar[bool] = True

    def for_request(self, decode: RequestDecoder, profile: ModelProfile) -> Codec:
        return BoundResponsesCodec(self._upstream, decode, profile)

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        return self._encode(decode(), profile, None)

    def encode_resume_request(
        self, interrupted: ResumableTranslation, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        return self._encode(decode(), profile, interrupted)

    def _encode(
        self, request: ResponsesRequest, profile: ModelProfile, interrupted: ResumableTranslation | None
    ) -> EncodedRequest:
        messages = _without_foreign_thinking(request.messages, describe_origin(self._upstream, profile))
        chat = msgspec.structs.replace(request.chat, messages=[decoded.message for decoded in messages])
        if interrupted is not None:
            chat = interrupted.resume_request(chat)
        try:
            encoded = self._upstream.encode_request(chat, profile)
        except InvalidRequest as error:
            raise _rename_field(error, messages) from None
        names = [name if name in chat.omitted else _FIELD_NAMES.get(name, name) for name in encoded.dropped_fields]
        encoded.dropped_fields = tuple(dict.fromkeys(names))
        return encoded

    def _canonical_request(self, decode: RequestDecoder) -> ChatRequest:
        request: ResponsesRequest = decode()
        return request.chat

    def decode_response(self, raw: bytes) -> EncodedResponse:
        raise NotImplementedError

    def map_field_name(self, name: str) -> str:
        return to_responses_field(name)


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
    """Return the origin of reasoning from a backend. The backend gets only blocks of the same origin back."""
    return f"{upstream.name}/{profile.model}"


def _without_foreign_thinking(messages: list[DecodedMessage], origin: str) -> list[DecodedMessage]:
    """Return the messages without the thinking of other backends."""
    filtered = [_filter_thinking(decoded, origin) for decoded in messages]
    return [decoded for decoded in filtered if decoded.message.parts]


def _filter_thinking(decoded: DecodedMessage, origin: str) -> DecodedMessage:
    all_parts = decoded.message.parts
    parts = [
        part for part in all_parts if not isinstance(part, ThinkingPart | RedactedThinkingPart) or part.origin == origin
    ]
    if len(parts) == len(all_parts):
        return decoded
    return DecodedMessage(msgspec.structs.replace(decoded.message, parts=parts), decoded.paths)


def _rename_field(error: InvalidRequest, messages: list[DecodedMessage]) -> InvalidRequest:
    """Return the error with the field of this dialect."""
    param = error.param or ""
    new_name = _find_message_field(param, messages) or to_responses_field(param)
    return InvalidRequest(error.message.replace(f"`{param}`", f"`{new_name}`"), param=new_name or None)


def _find_message_field(param: str, messages: list[DecodedMessage]) -> str:
    """Return the field that a path such as `messages[1].tool_calls[0].function.arguments` comes from, or nothing."""
    location = _MESSAGE_PATH.match(param)
    if location is None or int(location.group(1)) >= len(messages):
        return ""
    paths = messages[int(location.group(1))].paths
    position = int(location.group(2) or 0)
    return paths[position] if position < len(paths) else ""


def to_responses_field(param: str) -> str:
    """Return the Responses API's name of an upstream's field."""
    for name, new_name in _FIELD_NAMES.items():
        if param == name or param.startswith(f"{name}."):
            return new_name + param[len(name) :]
    return "input" if param.startswith("messages") else param
