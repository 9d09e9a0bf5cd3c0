"""A key as a person names it: by its id, its name, or the first characters of its id or secret. No verb."""

from __future__ import annotations

import re
from typing import Final

from svc.cli._admin_client import AdminClient
from svc.errors import NotFound, UsageError
from svc.keys.lifecycle import ShownKey

KEY_ID: Final = re.compile(r"[\w-]{1,64}", re.ASCII)
"""The form of a key's id. Anything else is a name."""
MIN_KEY_PREFIX_LENGTH: Final = 8
"""Characters of an id or a secret from which on it may be cut short: `svc_sk_` and `key_` begin all of them."""


def find_key_id(admin: AdminClient, key_selector: str, *, prefer_unrevoked: bool = False) -> str | None:
    """Return the id of a key, or None if there is none. Raises UsageError when several keys are meant.

    An id comes before a name, and a name before a prefix. With `prefer_unrevoked`, the only key of a name that is not
    revoked comes before revoked keys of that name.
    """
    if KEY_ID.fullmatch(key_selector) and key_exists(admin, key_selector):
        return key_selector
    name_matches: list[str] = []
    unrevoked: list[str] = []
    prefix_matches: list[str] = []
    prefix = key_selector.rstrip("…")
    for key in admin.list_keys():
        if key.name == key_selector:
            name_matches.append(key.id)
            if key.revoked is None:
                unrevoked.append(key.id)
        elif len(prefix) >= MIN_KEY_PREFIX_LENGTH and _has_prefix(key, prefix):
            prefix_matches.append(key.id)
    if prefer_unrevoked and len(unrevoked) == 1:
        return unrevoked[0]
    matches, match_kind = (name_matches, "have the name") if name_matches else (prefix_matches, "begin with")
    if len(matches) > 1:
        ids = f"{', '.join(matches[:5])}{', …' if len(matches) > 5 else ''}"
        raise UsageError(
            f"{len(matches)} keys {match_kind} {printable_label(key_selector)!r}: give the id of one ({ids})."
        )
    return matches[0] if matches else None


def key_exists(admin: AdminClient, key_selector: str) -> bool:
    """Whether a key has this id."""
    try:
        admin.get_key(key_selector)
    except NotFound as error:
        if error.param != "id":  # an address, not a key
            raise
        return False
    return True


def printable_label(text: str) -> str:
    """The text as one short line of printable characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:60]


def _has_prefix(key: ShownKey, prefix: str) -> bool:
    return key.id.startswith(prefix) or key.prefix.startswith(prefix)
