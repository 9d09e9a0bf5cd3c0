"""What routing needs of an OpenAI request, and the checks before any upstream is called. On the hot path.

decisions.md (section 3) lists what is checked.
"""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.base import Head
from svc.dialects.openai.asked import Body
from svc.dialects.reading import FIELDS, decode_outline
from svc.errors import InvalidRequest

_BODY: Final = msgspec.json.Decoder(Body)


def read_head(raw: bytes) -> Head:
    """Raises InvalidRequest that names the field."""
    body, outline = decode_outline(_BODY, raw)
    model, messages, stream, options, max_tokens, max_completion_tokens, _, _, answers, predicted = FIELDS(body)
    for index, message in enumerate(messages):
        if message.content is None and message.role not in ("assistant", "function"):
            path = f"messages[{index}].content"
            raise InvalidRequest(f"`{path}` is required for the role `{message.role}`.", param=path)
    return Head(
        model=model,
        stream=bool(stream),
        include_usage=bool(stream and options and options.include_usage),
        max_tokens=_most(max_tokens, max_completion_tokens, predicted),
        answers=answers or 1,
        outline=outline,
    )


def _most(max_tokens: int | None, max_completion_tokens: int | None, predicted: float | None) -> int | None:
    """What the answer may have: upstreams differ in which name they know. None: nothing was said, or no end."""
    if predicted is None:
        return max(max_tokens or 0, max_completion_tokens or 0) or None
    return None if predicted < 0 else max(max_tokens or 0, max_completion_tokens or 0, int(predicted)) or None
