"""Error messages for models that are not offered: the reason, and the models that are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from svc.errors import ModelNotFound

MAX_NAMES: Final = 10
"""Models that a message lists."""
MAX_NAME: Final = 100
"""Characters of a name in a message."""


def shown(model: str) -> str:
    """A name of a client's, fit for a message: no control characters, not endless."""
    return f"'{_printable(model)}'"


def model_not_found(reason: str, offered: Iterable[str]) -> ModelNotFound:
    """The error for `reason`, a sentence, with the models that the calling key may use."""
    return ModelNotFound(f"{reason} {_listed(list(offered))}", param="model")


def _listed(names: list[str]) -> str:
    if not names:
        return "No model is offered to this key."
    text = ", ".join(_printable(name) for name in names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    return f"Offered: {text}" + (f", and {more} more (GET /v1/models)." if more > 0 else ".")


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_NAME])
