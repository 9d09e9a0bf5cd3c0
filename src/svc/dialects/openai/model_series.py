"""The parameters that OpenAI's series of models refuse, by the names of the models.

Newer series refuse `max_tokens` ("Use 'max_completion_tokens' instead"), older ones refuse `reasoning_effort`
("Unrecognized request argument supplied"): platform.openai.com/docs/guides/reasoning.
"""

from __future__ import annotations

import re
from typing import Final

_OWNER_PREFIX: Final = r"(?:[\w.-]+/|ft:)*"
"""`openai/` as resellers write it, `ft:` for a model that was trained further."""
_COMPLETION_TOKENS_MODELS: Final = re.compile(_OWNER_PREFIX + r"(?:o[1-9]\d*|gpt-[5-9]|gpt-[12]\d)(?![a-z\d])")
_NO_EFFORT_MODELS: Final = re.compile(_OWNER_PREFIX + r"(?:gpt-3|gpt-4|chatgpt-|gpt-5-chat|o1-mini|o1-preview)")


def requires_max_completion_tokens(model: str) -> bool:
    """Whether the model refuses `max_tokens`, and takes `max_completion_tokens`."""
    return _COMPLETION_TOKENS_MODELS.match(model) is not None


def rejects_reasoning_effort(model: str) -> bool:
    """Whether the model is known to refuse `reasoning_effort`."""
    return _NO_EFFORT_MODELS.match(model) is not None
