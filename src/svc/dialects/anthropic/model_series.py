"""The parameters that each Claude series rejects, by model name.

Opus 4.5 and Sonnet 4.6 are the first models of Claude 4 with an effort. Others reject it ("This model does not support
the effort parameter"). 4.6 added `max`, and Opus 4.7 `xhigh`: platform.claude.com/docs/en/build-with-claude/effort.

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
_NO_EFFORT_MODELS: Final = re.compile(
    r"claude-(?:(?:opus|sonnet)-4(?:[-.][01])?(?![-.]?\d(?!\d{3}))|(?:sonnet|haiku)-4[-.]5"
    r"|4(?:[-.][01])?-[a-z]|4[-.]5-(?:sonnet|haiku))"
)
"""Models of Claude 4. Older ones are retired, and not listed."""
_MAX_EFFORT_IS_HIGH: Final = re.compile(r"claude-(?:opus-4[-.]5|4[-.]5-opus)")
_XHIGH_EFFORT_IS_HIGH: Final = re.compile(r"claude-(?:(?:opus|sonnet)-4[-.][56]|4[-.][56]-(?:opus|sonnet))(?!\d)")


def supported_effort(model: str, effort: str) -> str | None:
    """Return the effort, the highest one below it that the model accepts, or None if it accepts no effort."""
    if _NO_EFFORT_MODELS.search(model) is not None:
        return None
    if effort == "xhigh" and _XHIGH_EFFORT_IS_HIGH.search(model) is not None:
        return "high"
    if effort == "max" and _MAX_EFFORT_IS_HIGH.search(model) is not None:
        return "high"
    return effort


def rejects_sampling(model: str) -> bool:
    """Return whether the model rejects `temperature`, `top_p` and `top_k`."""
    return _NO_SAMPLING_MODELS.search(model) is not None


def takes_one_sampling_parameter(model: str) -> bool:
    """Return whether the model rejects `top_p` beside `temperature`."""
    return _ONE_PARAMETER_MODELS.search(model) is not None
