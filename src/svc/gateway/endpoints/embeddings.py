"""`POST /v1/embeddings` of the OpenAI API, for models of the kind `embedding` at providers with that dialect."""

from __future__ import annotations

from svc.dialects import openai
from svc.dialects.base import EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.endpoint import Codec, Endpoint, RequestDecoder
from svc.dialects.openai.embedding_parts import divide_request
from svc.dialects.openai.embeddings import check_supported, decode_response, decode_routing_info
from svc.dialects.request_passthrough import pass_through_request
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.upstream_errors import decode_error_param


class _EmbeddingsUpstream(Codec):
    """Forwards requests and responses unchanged, except the model name."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        check_supported(body, profile.overrides)
        encoded = pass_through_request(body, routing_info, profile, ask_usage=False)
        if profile.input_window:
            encoded.parts = divide_request(encoded.body, profile.input_window)
        return encoded

    def decode_response(self, raw: bytes) -> EncodedResponse:
        return decode_response(raw)

    def decode_error_param(self, raw: bytes) -> str | None:
        return decode_error_param(raw)

    def map_field_name(self, name: str) -> str:
        return "input" if name == "messages" else name


class Embeddings(Endpoint):
    """The endpoint for clients of the OpenAI embeddings API."""

    __slots__ = ()

    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        return decode_routing_info(body)


endpoint: Endpoint = Embeddings(
    "/v1/embeddings",
    {openai.dialect: _EmbeddingsUpstream("/embeddings")},
    cache_route="embeddings",
    model_kind="embedding",
)
