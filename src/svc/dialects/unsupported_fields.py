"""Fields that the other dialect lacks, or limits: the gateway leaves them out, lowers or refuses them."""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.base import ModelProfile
from svc.errors import InvalidRequest
from svc.wire.chat import ChatRequest

RESPONSE_SHAPING_DEFAULTS: Final[dict[str, Any]] = {
    # OpenAI's
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "tools": [],
    "functions": [],
    "tool_choice": "none",
    "function_call": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "audio": None,
    "stop": [],
    # Anthropic's
    "container": None,
    "mcp_servers": [],
}
"""Fields without which the answer would have another form, and their defaults."""


def reject_shaping_field(name: str, value: Any) -> None:
    """Raises InvalidRequest when the answer would have another form without this field."""
    if name in RESPONSE_SHAPING_DEFAULTS and value is not None and value != RESPONSE_SHAPING_DEFAULTS[name]:
        raise InvalidRequest(f"The provider of this model does not take `{name}`.", param=name)


def find_dropped_fields(extra: dict[str, Any]) -> list[str]:
    """Names of the fields that are left out on the way to another dialect; raises InvalidRequest (see `FORMING`)."""
    for name, value in extra.items():
        reject_shaping_field(name, value)
    return [name for name, value in extra.items() if value is not None]


def lower_max_tokens(request: ChatRequest, profile: ModelProfile, dropped: list[str]) -> int | None:
    """Lower `max_tokens` to what the model gives, and name it in `dropped` if it was more.

    Agents send the limit of their own vendor's model. Within a dialect the provider judges the value.
    """
    requested, limit = request.max_tokens, profile.max_output_tokens
    if requested is None or limit is None or requested <= limit:
        return requested
    dropped.append("max_tokens")
    return limit
