"""The parameters that each OpenAI model series rejects, by model name.

Newer series reject `max_tokens` ("Use 'max_completion_tokens' instead"), and older ones reject `reasoning_effort`
("Unrecognized request argument supplied"). While a model reasons, it rejects `temperature` and `top_p` ("Only the
default (1) value is supported"): platform.openai.com/docs/guides/reasoning and .../guides/latest-model.
"""

from __future__ import annotations

import re
from typing import Final

_OWNER_PREFIX: Final = r"(?:[\w.-]+/|ft:)*"
"""`openai/` is the prefix of resellers, and `ft:` that of a fine-tuned model."""
_COMPLETION_TOKENS_MODELS: Final = re.compile(_OWNER_PREFIX + r"(?:o[1-9]\d*|gpt-[5-9]|gpt-[12]\d)(?![a-z\d])")
_NO_EFFORT_MODELS: Final = re.compile(_OWNER_PREFIX + r"(?:gpt-3|gpt-4|chatgpt-|gpt-5-chat|o1-mini|o1-preview)")
_REASONING_MODELS: Final = re.compile(
    _OWNER_PREFIX
    + r"(?:o[1-9]\d*(?![a-z\d])|gpt-5(?![.\d]|-chat)|gpt-5\.\d+-(?:chat|pro)|gpt-(?:[6-9]|[12]\d)(?![a-z\d]))"
)
_REASONS_ON_REQUEST: Final = re.compile(_OWNER_PREFIX + r"gpt-5\.[1-4](?!\d)")
_REASONS_BY_DEFAULT: Final = re.compile(_OWNER_PREFIX + r"gpt-5\.\d")
_HIGHEST_EFFORT_IS_HIGH: Final = re.compile(
    _OWNER_PREFIX + r"(?:o[1-9]\d*(?![a-z\d])|gpt-5(?![.\d])|gpt-5\.1(?!\d|-codex-max))"
)
_HIGHEST_EFFORT_IS_XHIGH: Final = re.compile(_OWNER_PREFIX + r"gpt-5\.(?:[2-5](?!\d)|1-codex-max)")


def requires_max_completion_tokens(model: str) -> bool:
    """Return whether the model rejects `max_tokens` and accepts `max_completion_tokens`."""
    return _COMPLETION_TOKENS_MODELS.match(model) is not None


def rejects_reasoning_effort(model: str) -> bool:
    """Return whether the model is known to reject `reasoning_effort`."""
    return _NO_EFFORT_MODELS.match(model) is not None


def lower_effort(model: str, effort: str) -> str:
    """Return the `reasoning_effort`, or the highest one of the model if that is lower."""
    if effort in ("xhigh", "max") and _HIGHEST_EFFORT_IS_HIGH.match(model) is not None:
        return "high"
    return "xhigh" if effort == "max" and _HIGHEST_EFFORT_IS_XHIGH.match(model) is not None else effort


def rejects_sampling(model: str, effort: str | None) -> bool:
    """Return whether the model rejects `temperature` and `top_p` at a `reasoning_effort`."""
    if _REASONING_MODELS.match(model) is not None:
        return True
    if _REASONS_ON_REQUEST.match(model) is not None:
        return effort not in (None, "none")
    return _REASONS_BY_DEFAULT.match(model) is not None and effort != "none"
