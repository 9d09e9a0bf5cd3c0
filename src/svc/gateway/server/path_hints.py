"""Finds the path that a client probably meant by one that does not exist. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from svc.errors import NotFound
from svc.gateway.routing.model_errors import quote_name

_API_PREFIX: Final = "/v1"


def path_not_found(path: str, known_paths: Iterable[str]) -> NotFound:
    """Return the error for a path that does not exist, with the known path that is most like it."""
    message = f"There is no path {quote_name(path)} here."
    for known in known_paths:
        if is_variant(path, known):
            return NotFound(f"{message} Did you mean {known!r}?")
    return NotFound(message)


def is_variant(path: str, known: str) -> bool:
    """Return whether a path differs from a known one only in what stands before it, or in a slash at its end.

    Clients omit `/v1`, repeat it, or add a prefix such as `/openai/deployments/NAME` or `/v1/engines/NAME`.
    """
    if not known.startswith(f"{_API_PREFIX}/"):
        return False
    path, end = path.rstrip("/"), known[len(_API_PREFIX) :]
    if not path.endswith(end):
        return False
    # Other APIs have paths below /v1 that end in a word of ours, such as /v1/threads/NAME/messages.
    return not path.startswith(f"{_API_PREFIX}/") or end.count("/") > 1 or path in (known, _API_PREFIX + known)
