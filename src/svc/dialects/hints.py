"""Fields that the other dialect lacks: which are left out and named, and which are refused. decisions.md, section 3."""

from __future__ import annotations

from typing import Any, Final

from svc.errors import InvalidRequest

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
    "context_management": None,
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
