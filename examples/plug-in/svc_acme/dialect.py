"""Acme's API is that of OpenAI, with another path, another header for the key and another format of errors."""

from __future__ import annotations

import json

from svc.dialects.openai import OpenAIDialect


class AcmeDialect(OpenAIDialect):
    """`Dialect` for `POST {base_url}/generate`."""

    def __init__(self) -> None:
        super().__init__("acme", chat_path="/generate")

    def auth_headers(self, api_key: str) -> tuple[tuple[str, str], ...]:
        return (("x-acme-key", api_key),) if api_key else ()

    def decode_error_message(self, raw: bytes) -> str | None:
        try:
            detail = json.loads(raw)["detail"]
        except (ValueError, KeyError, TypeError):
            return None
        return detail if isinstance(detail, str) else None


dialect = AcmeDialect()
