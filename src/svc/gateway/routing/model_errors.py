"""Error messages for models that are not offered: the reason, and the models that are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from svc.errors import ModelNotFound

MAX_LISTED_MODELS: Final = 10
"""Models that a message lists."""
MAX_QUOTED_NAME_CHARS: Final = 100
"""Characters of a name in a message."""


def quote_name(name: str) -> str:
    """A name of a client's, fit for a message: no control characters, not endless."""
    return f"'{_to_printable(name)}'"


def model_not_found(reason: str, available_models: Iterable[str]) -> ModelNotFound:
    """The error for `reason`, a sentence, with the models that the calling key may use."""
    return ModelNotFound(f"{reason} {_format_model_list(list(available_models))}", param="model")


def _format_model_list(names: list[str]) -> str:
    if not names:
        return "No model is offered to this key."
    text = ", ".join(_to_printable(name) for name in names[:MAX_LISTED_MODELS])
    remaining = len(names) - MAX_LISTED_MODELS
    return f"Offered: {text}" + (f", and {remaining} more (GET /v1/models)." if remaining > 0 else ".")


def _to_printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_QUOTED_NAME_CHARS])
