"""Fields that the other dialect does not have or limits. The gateway drops, lowers or rejects them."""

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
    "compaction": None,
    "container": None,
    "mcp_servers": [],
}
"""Fields that change the format of the response, with their defaults."""


def reject_shaping_field(name: str, value: Any) -> None:
    """Raise InvalidRequest if the response would have another format without this field."""
    if name in RESPONSE_SHAPING_DEFAULTS and value is not None and value != RESPONSE_SHAPING_DEFAULTS[name]:
        raise InvalidRequest(f"The provider of this model does not support `{name}`.", param=name)


def find_dropped_fields(extra: dict[str, Any]) -> list[str]:
    """Return the names of fields that translation drops. Raises InvalidRequest for RESPONSE_SHAPING_DEFAULTS."""
    for name, value in extra.items():
        reject_shaping_field(name, value)
    return [name for name, value in extra.items() if value is not None]


def lower_max_tokens(request: ChatRequest, profile: ModelProfile, dropped: list[str]) -> int | None:
    """Lower `max_tokens` to the model's maximum, and add it to `dropped` if it was higher.

    Agents send the limit of their own vendor's model. Within a dialect, the provider checks the value.
    """
    requested, limit = request.max_tokens, profile.max_output_tokens
    if requested is None or limit is None or requested <= limit:
        return requested
    dropped.append("max_tokens")
    return limit
