"""The dialect of errors for paths below the endpoint of a dialect, where its clients send requests by mistake.

POST /v1/messages/unknown, GET /v1/messages  ->  Anthropic's shape
everything else                              ->  the gateway's own, which is OpenAI's
"""

from __future__ import annotations

from svc.dialects.anthropic import dialect as anthropic
from svc.dialects.base import Dialect


def dialect_for_path(path: str) -> Dialect | None:
    """The dialect whose endpoint `path` is, or lies below; None for the gateway's own shape."""
    return anthropic if f"{path}/".startswith(f"{anthropic.endpoint}/") else None
