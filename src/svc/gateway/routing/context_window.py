"""Estimates from the size of a prompt whether it fits the context window of a model. Pure."""

from __future__ import annotations

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import MIN_BYTES_PER_TOKEN, estimate_prompt_tokens
from svc.gateway.routing.backends import Backend


def fits_context_window(backend: Backend, body: RequestBody, routing_info: RoutingInfo) -> bool:
    """Return False if the estimated prompt tokens plus the output tokens exceed the context window."""
    if not routing_info.has_single_prompt:
        return True
    window = backend.context_window
    output_tokens = routing_info.max_tokens or 0
    if backend.profile.max_output_tokens is not None:
        output_tokens = min(output_tokens, backend.profile.max_output_tokens)
    if len(body.raw) <= (window - output_tokens) * MIN_BYTES_PER_TOKEN:  # the common case, without an estimate
        return True
    return estimate_prompt_tokens(body.raw, body.skeleton) + output_tokens <= window
