"""What routing needs of an OpenAI request, and the checks before any upstream is called. On the hot path.

decisions.md (section 3) lists what is checked.
"""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.base import Head
from svc.dialects.openai.asked import Body
from svc.dialects.reading import decode_outline
from svc.errors import InvalidRequest

_BODY: Final = msgspec.json.Decoder(Body)


def read_head(raw: bytes) -> Head:
    """Raises InvalidRequest that names the field."""
    body, outline = decode_outline(_BODY, raw)
    for index, message in enumerate(body.messages):
        if message.content is None and message.role not in ("assistant", "function"):
            path = f"messages[{index}].content"
            raise InvalidRequest(f"`{path}` is required for the role `{message.role}`.", param=path)
    options = body.stream_options
    return Head(
        model=body.model,
        stream=bool(body.stream),
        include_usage=bool(body.stream and options and options.include_usage),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        answers=body.n or 1,
        outline=outline,
    )
