"""Fields that the other dialect lacks, or limits: the gateway leaves them out, lowers or refuses them."""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.base import Target
from svc.errors import InvalidRequest
from svc.wire.chat import ChatRequest

FORMING: Final[dict[str, Any]] = {
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


def refuse_forming(name: str, value: Any) -> None:
    """Raises InvalidRequest when the answer would have another form without this field."""
    if name in FORMING and value is not None and value != FORMING[name]:
        raise InvalidRequest(f"The provider of this model does not take `{name}`.", param=name)


def drop_extra(extra: dict[str, Any]) -> list[str]:
    """Names of the fields that are left out on the way to another dialect; raises InvalidRequest (see `FORMING`)."""
    for name, value in extra.items():
        refuse_forming(name, value)
    return [name for name, value in extra.items() if value is not None]


def lowered_max_tokens(request: ChatRequest, target: Target, dropped: list[str]) -> int | None:
    """Lower `max_tokens` to what the model gives, and name it in `dropped` if it was more.

    Agents send the limit of their own vendor's model. Within a dialect the provider judges the value.
    """
    asked, most = request.max_tokens, target.max_output_tokens
    if asked is None or most is None or asked <= most:
        return asked
    dropped.append("max_tokens")
    return most
