"""Find a key by its id, its name, or a prefix of its id or secret."""

from __future__ import annotations

import re
from typing import Final

from svc.cli._admin_client import AdminClient
from svc.errors import NotFound, UsageError
from svc.keys.lifecycle import ShownKey

KEY_ID: Final = re.compile(r"[\w-]{1,64}", re.ASCII)
"""The format of a key's id. Any other text is a name."""
MIN_KEY_PREFIX_LENGTH: Final = 8
"""Minimum length of a prefix: every id begins with `key_`, and every secret with `svc_sk_`."""


def find_key_id(admin: AdminClient, key_selector: str, *, prefer_unrevoked: bool = False) -> str | None:
    """Return the id of a key, or None. Raises UsageError if several keys match.

    An id takes precedence over a name, and a name over a prefix. With `prefer_unrevoked`, the only unrevoked key of
    a name takes precedence over revoked keys of that name.
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
    """Return whether a key has this id."""
    try:
        admin.get_key(key_selector)
    except NotFound as error:
        if error.param != "id":  # a 404 for the URL, not for the key
            raise
        return False
    return True


def printable_label(text: str) -> str:
    """Return the text as one line of at most 60 printable characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:60]


def _has_prefix(key: ShownKey, prefix: str) -> bool:
    return key.id.startswith(prefix) or key.prefix.startswith(prefix)
