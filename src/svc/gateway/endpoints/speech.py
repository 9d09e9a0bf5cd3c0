"""`POST /v1/audio/speech` of the OpenAI API, for models of the kind `speech`: a provider's, or voices of this machine.

The voices of this machine are behind a loopback address in the same dialect (`svc.speech.synthesis`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from svc.dialects import openai
from svc.dialects.base import EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.endpoint import Codec, Endpoint, RequestDecoder
from svc.dialects.openai.speech_passthrough import SpeechPassthrough
from svc.dialects.openai.speech_request import decode_routing_info
from svc.dialects.request_passthrough import pass_through_request
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.upstream_errors import decode_error_object, map_upstream_error
from svc.errors import ProviderFailed, UpstreamError

_ACCEPT_HEADER: Final = (b"accept: */*",)
_REQUEST_FIELDS: Final = ("model", "input", "voice", "response_format", "speed", "instructions", "stream_format")
_VOICES_BUSY: Final = "voices_busy"
"""The code of the error of a voice of this machine that has no free thread."""


class _SpeechUpstream(Codec):
    """Forwards requests and audio unchanged, except the model name."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        encoded = pass_through_request(body, routing_info, profile, ask_usage=False)
        return EncodedRequest(encoded.body, encoded.dropped_fields, _ACCEPT_HEADER)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        """Raise the error of a 200 response that is not audio."""
        error = decode_error_object(raw)
        raise map_upstream_error(error) if error else ProviderFailed("The provider's response is not audio.")

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        return SpeechPassthrough(routing_info, profile.model)

    def decode_error_param(self, raw: bytes) -> str | None:
        error = decode_error_object(raw)
        param = error.get("param") if isinstance(error, dict) else None
        return param if param in _REQUEST_FIELDS else None

    def decode_upstream_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        """Keep the message of a voice of this machine that is busy."""
        error = decode_error_object(raw) if status == 429 else None
        if not isinstance(error, dict) or error.get("code") != _VOICES_BUSY:
            return None
        return UpstreamError(status, "rate_limit_error", {})


class Speech(Endpoint):
    """The endpoint for clients of the OpenAI speech API."""

    __slots__ = ()

    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        return decode_routing_info(body)


endpoint: Endpoint = Speech(
    "/v1/audio/speech",
    {openai.dialect: _SpeechUpstream("/audio/speech")},
    cache_route="",
    model_kind="speech",
    scope="speech",
)
