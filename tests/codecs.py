"""The endpoints' codecs, selected by dialect."""

from __future__ import annotations

from svc.dialects import openai
from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.endpoint import Codec, Endpoint
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.gateway.endpoints import chat_completions, messages, responses_api

ENDPOINTS: dict[str, Endpoint] = {"openai": chat_completions.endpoint, "anthropic": messages.endpoint}


def codec_between(client: Dialect, upstream: Dialect) -> Codec:
    endpoint = ENDPOINTS[client.name]
    return endpoint.codecs.get(upstream) or endpoint.add_codec(upstream)


def decode_routing_info(client: Dialect, raw: bytes) -> RoutingInfo:
    return ENDPOINTS[client.name].decode_routing_info(RequestBody(raw))


def pass_through_request(dialect: Dialect, raw: bytes, profile: ModelProfile) -> EncodedRequest:
    body, endpoint = RequestBody(raw), ENDPOINTS[dialect.name]
    routing_info = endpoint.decode_routing_info(body)
    return endpoint.codecs[dialect].encode_request(
        body, routing_info, profile, lambda: endpoint.decode_request(RequestBody(raw))
    )


def pass_through_response(dialect: Dialect, raw: bytes) -> EncodedResponse:
    return codec_between(dialect, dialect).decode_response(raw)


def create_stream_transform(
    upstream: Dialect, client: Dialect, *, include_usage: bool, profile: ModelProfile | None = None
) -> StreamTransform:
    routing_info = RoutingInfo(model="m", stream=True, include_usage=include_usage)
    return codec_between(client, upstream).create_stream_transform(routing_info, profile or ModelProfile("m"))


def create_stream_passthrough(
    dialect: Dialect, *, include_usage: bool, profile: ModelProfile | None = None
) -> StreamTransform:
    return create_stream_transform(dialect, dialect, include_usage=include_usage, profile=profile)


def responses_codec(upstream: Dialect | None, raw: bytes, profile: ModelProfile) -> Codec:
    """Return the codec of a Responses request. Without `upstream`, that of an upstream with the Responses API."""
    endpoint = responses_api.endpoint
    if upstream is None:
        return endpoint.select_codec(openai.dialect, ModelProfile(profile.model, has_responses=True))
    return endpoint.select_codec(upstream, profile).for_request(
        lambda: endpoint.decode_request(RequestBody(raw)), profile
    )


def encode_responses_request(upstream: Dialect | None, raw: bytes, profile: ModelProfile) -> EncodedRequest:
    body, endpoint = RequestBody(raw), responses_api.endpoint
    routing_info = endpoint.decode_routing_info(body)
    codec = responses_codec(upstream, raw, profile)
    return codec.encode_request(body, routing_info, profile, lambda: endpoint.decode_request(body))


def create_responses_stream(
    upstream: Dialect | None, raw: bytes, profile: ModelProfile | None = None
) -> StreamTransform:
    routing_info = RoutingInfo(model="m", stream=True, include_usage=True)
    profile = profile or ModelProfile("m")
    return responses_codec(upstream, raw, profile).create_stream_transform(routing_info, profile)
