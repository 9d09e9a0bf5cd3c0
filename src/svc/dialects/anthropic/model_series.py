"""The sampling parameters that each Claude series rejects, by model name.

From 4.1 on, a request may have `temperature` or `top_p` ("cannot both be specified for this model"). From Opus 4.7 on,
it may have none ("`temperature` is deprecated for this model"):
platform.claude.com/docs/en/about-claude/models/migration-guide.
"""

from __future__ import annotations

import re
from typing import Final

_VERSION_WITHOUT_SAMPLING: Final = r"(?:4[-.](?:[7-9]|[1-9]\d)|[5-9]|[1-9]\d)(?:[-.]\d{1,2})?(?!\d)"
_VERSION_WITH_ONE: Final = r"4[-.][1-6](?!\d)"
_NO_SAMPLING_MODELS: Final = re.compile(
    rf"claude-(?:fable|mythos|[a-z]+-{_VERSION_WITHOUT_SAMPLING}|{_VERSION_WITHOUT_SAMPLING}-[a-z])"
)
_ONE_PARAMETER_MODELS: Final = re.compile(rf"claude-(?:[a-z]+-{_VERSION_WITH_ONE}|{_VERSION_WITH_ONE}-[a-z])")


def rejects_sampling(model: str) -> bool:
    """Return whether the model rejects `temperature`, `top_p` and `top_k`."""
    return _NO_SAMPLING_MODELS.search(model) is not None


def takes_one_sampling_parameter(model: str) -> bool:
    """Return whether the model rejects `top_p` beside `temperature`."""
    return _ONE_PARAMETER_MODELS.search(model) is not None
