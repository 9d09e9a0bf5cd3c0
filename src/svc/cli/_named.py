"""A key as a person names it: by its id, its name, or the first characters of its id or secret. No verb."""

from __future__ import annotations

import re
from typing import Final

from svc.cli._desk import Desk
from svc.errors import NotFound, UsageError
from svc.keys.issuing import ShownKey

ID: Final = re.compile(r"[\w-]{1,64}", re.ASCII)
"""The form of a key's id. Anything else is a name."""
MIN_PREFIX: Final = 8
"""Characters of an id or a secret from which on it may be cut short: `svc_sk_` and `key_` begin all of them."""


def find_id(desk: Desk, wanted: str, *, prefer_unrevoked: bool = False) -> str | None:
    """Return the id of a key, or None if there is none. Raises UsageError when several keys are meant.

    An id comes before a name, and a name before a prefix. With `prefer_unrevoked`, the only key of a name that is not
    revoked comes before revoked keys of that name.
    """
    if ID.fullmatch(wanted) and is_id(desk, wanted):
        return wanted
    named: list[str] = []
    unrevoked: list[str] = []
    begun: list[str] = []
    prefix = wanted.rstrip("…")
    for key in desk.every():
        if key.name == wanted:
            named.append(key.id)
            if key.revoked is None:
                unrevoked.append(key.id)
        elif len(prefix) >= MIN_PREFIX and _begins(key, prefix):
            begun.append(key.id)
    if prefer_unrevoked and len(unrevoked) == 1:
        return unrevoked[0]
    found, how = (named, "have the name") if named else (begun, "begin with")
    if len(found) > 1:
        ids = f"{', '.join(found[:5])}{', …' if len(found) > 5 else ''}"
        raise UsageError(f"{len(found)} keys {how} {plain(wanted)!r}: give the id of one ({ids}).")
    return found[0] if found else None


def is_id(desk: Desk, wanted: str) -> bool:
    """Whether a key has this id."""
    try:
        desk.one(wanted)
    except NotFound as error:
        if error.param != "id":  # an address, not a key
            raise
        return False
    return True


def plain(text: str) -> str:
    """The text as one short line of printable characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:60]


def _begins(key: ShownKey, prefix: str) -> bool:
    return key.id.startswith(prefix) or key.prefix.startswith(prefix)
