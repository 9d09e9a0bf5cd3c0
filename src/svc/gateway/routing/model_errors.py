"""Error messages for models that are not offered, with the reason and the available models. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from svc.errors import ModelNotFound

MAX_LISTED_MODELS: Final = 10
"""The maximum number of models in a message."""
MAX_QUOTED_NAME_CHARS: Final = 100
"""The maximum number of characters of a name in a message."""


def quote_name(name: str) -> str:
    """Return a client's model name for use in a message: printable, of limited length, in quotes."""
    return f"'{_to_printable(name)}'"


def model_not_found(reason: str, available_models: Iterable[str]) -> ModelNotFound:
    """Return the error with `reason`, a sentence, and the models that the calling key may use."""
    return ModelNotFound(f"{reason} {_format_model_list(list(available_models))}", param="model")


def _format_model_list(names: list[str]) -> str:
    if not names:
        return "No models are available to this key."
    text = ", ".join(_to_printable(name) for name in names[:MAX_LISTED_MODELS])
    remaining = len(names) - MAX_LISTED_MODELS
    return f"Available: {text}" + (f", and {remaining} more (GET /v1/models)." if remaining > 0 else ".")


def _to_printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_QUOTED_NAME_CHARS])
