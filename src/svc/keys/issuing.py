"""Issuing keys, showing, changing, rotating and revoking them: one source for the command and for the admin API.

What is asked for and what is shown are structs whose JSON is the API's. A change is made in one transaction with the
look that it rests on, so a change and a revocation at the same moment both hold. No HTTP, and no command line.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from svc.errors import InvalidRequest, NotFound
from svc.security import digest_of, new_secret
from svc.stores.base import Database, Period, StoredKey, midnight
from svc.wire.key import SCOPES, Scope

GRACE_SECONDS = 86400.0
MAX_GRACE = 366 * 86400.0
MAX_PAGE = 1000
MAX_MODELS = 1000

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Limit = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Usd = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
Scopes = Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=16)]
Models = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=256)], ...],
    msgspec.Meta(min_length=1, max_length=MAX_MODELS),
]
TagName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Tags = Annotated[dict[TagName, Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=32)]
Form = TypeVar("Form")
NAME_RULE = "a key's name has 1 to 200 printable characters"
_KINDS = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list"}
_KIND = re.compile(r"`(\w+)`")
"""How msgspec writes a kind of value."""


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked for. null is no limit; `expires` is a time in ISO 8601."""

    name: Name
    scopes: Scopes = ("chat", "speech", "registry:read")
    models: Models | None = None
    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrency: Limit | None = None
    budget_usd: Usd | None = None
    budget_period: Period | None = None
    expires: str | None = None
    tags: Tags = {}


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be different; what is not named stays, null takes a limit away."""

    name: Name | UnsetType = UNSET
    scopes: Scopes | UnsetType = UNSET
    models: Models | UnsetType | None = UNSET
    rpm: Limit | UnsetType | None = UNSET
    tpm: Limit | UnsetType | None = UNSET
    concurrency: Limit | UnsetType | None = UNSET
    budget_usd: Usd | UnsetType | None = UNSET
    budget_period: Period | UnsetType | None = UNSET
    expires: str | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many seconds the secret before stays valid."""

    grace: Annotated[float, msgspec.Meta(ge=0, le=MAX_GRACE)] = GRACE_SECONDS


class ShownKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is shown; times in ISO 8601, UTC. `spent_usd` is that of its budget period, or of ever."""

    id: str
    name: str
    prefix: str
    created: str
    expires: str | None
    revoked: str | None
    old_until: str | None
    """Until then the secret before the last rotation is valid too."""
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None
    rpm: int | None
    tpm: int | None
    concurrency: int | None
    budget_usd: float | None
    budget_period: Period | None
    spent_usd: float
    tags: dict[str, str]
    last_used: str | None = None
    """When the last request that the ledger has was made; null for none."""


class MadeKey(ShownKey, frozen=True, kw_only=True):
    """With its secret, which is shown this once."""

    key: str


def asked(kind: type[Form], fields: Any) -> Form:
    """What was asked for, from JSON or a command line. Raises InvalidRequest that names the field at fault."""
    try:
        if isinstance(fields, bytes):
            return msgspec.json.decode(fields or b"{}", type=kind)
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        text, _, place = str(error).partition(" - at `")
        name = re.sub(r"^(?:key` in `)?\$\.?|[.\[`].*$", "", place) or (re.findall(r"field `(\w+)`", text) or [""])[0]
        text = _KIND.sub(lambda kind: _KINDS.get(kind[1], kind[0]), text)
        if name == "name" and text.startswith("Expected a text of"):
            text = NAME_RULE
        if name == "scopes":
            text += f"; a scope is one of {', '.join(SCOPES)}"
        text = re.sub(r"^Object contains unknown field.*", "there is no such field", text)
        text = re.sub(r"^Object missing required field.*", "it is missing", text)
        raise InvalidRequest(f"{name or 'The body'}: {text[:1].lower()}{text[1:]}.", param=name or None) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def create(database: Database, wanted: NewKey) -> MadeKey:
    """Makes a key. Raises InvalidRequest for fields that make no sense, StoreDown."""
    secret = new_secret()
    fields = msgspec.structs.asdict(wanted) | {"expires": _seconds(wanted.expires)}
    if wanted.budget_usd is not None and wanted.budget_period is None:
        fields["budget_period"] = "total"
    key = StoredKey(
        id=f"key_{secrets.token_hex(8)}",
        digest=digest_of(secret).hex(),
        prefix=secret[:12],
        created=time.time(),
        **fields,
    )
    _check(key)
    return MadeKey(key=secret, **_fields(database.put_key(key), 0.0, None))


def page(database: Database, *, after: str = "", limit: int = MAX_PAGE) -> list[ShownKey]:
    """Keys in the order of ids, revoked ones too; `after` is the last id of the page before. Raises StoreDown."""
    found = database.list_keys(after=after, limit=limit)
    spent = database.spent({key.id: midnight(key.budget_period) for key in found})
    used = database.last_used([key.id for key in found])
    return [_shown(key, spent.get(key.id, 0.0), used.get(key.id)) for key in found]


def one(database: Database, id: str) -> ShownKey:
    """Raises NotFound, StoreDown."""
    return _with_spent(database, _existing(database.key(id), id))


def change(database: Database, id: str, wanted: Change) -> ShownKey:
    """Changes what is named. Raises NotFound, InvalidRequest, StoreDown."""
    fields = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not UNSET}
    if isinstance(wanted.expires, str):
        fields["expires"] = _seconds(wanted.expires)

    def changed(key: StoredKey) -> StoredKey:
        new = msgspec.structs.replace(key, **fields)
        if new.budget_usd is None and "budget_period" not in fields:
            new = msgspec.structs.replace(new, budget_period=None)
        elif new.budget_usd is not None and new.budget_period is None:
            new = msgspec.structs.replace(new, budget_period="total")
        _check(new, expires="expires" in fields)
        return new

    return _with_spent(database, _existing(database.change_key(id, changed), id))


def revoke(database: Database, id: str) -> ShownKey:
    """Ends a key for good; twice is the same as once. Raises NotFound, StoreDown."""
    now = time.time()

    def revoked(key: StoredKey) -> StoredKey:
        return key if key.revoked is not None else msgspec.structs.replace(key, revoked=now)

    return _with_spent(database, _existing(database.change_key(id, revoked), id))


def rotate(database: Database, id: str, wanted: Rotation) -> MadeKey:
    """Gives a key a new secret; the one before stays valid for a while. Raises NotFound, InvalidRequest, StoreDown."""
    secret = new_secret()

    def rotated(key: StoredKey) -> StoredKey:
        if key.revoked is not None:
            raise InvalidRequest(f"The key {key.id} is revoked; create another.")
        return msgspec.structs.replace(
            key,
            digest=digest_of(secret).hex(),
            prefix=secret[:12],
            old_digest=key.digest if wanted.grace > 0 else None,
            old_until=time.time() + wanted.grace if wanted.grace > 0 else None,
        )

    key = _existing(database.change_key(id, rotated), id)
    return MadeKey(key=secret, **msgspec.structs.asdict(_with_spent(database, key)))


def _existing(key: StoredKey | None, id: str) -> StoredKey:
    if key is None:
        shown = "".join(letter if letter.isprintable() else "?" for letter in id[:64])
        raise NotFound(f"There is no key {shown!r}.", param="id")
    return key


def _check(key: StoredKey, *, expires: bool = True) -> None:
    """What the types of the fields do not say."""
    if not key.name.isprintable() or not key.name.strip():
        raise InvalidRequest(f"name: {NAME_RULE}.", param="name")
    if key.budget_period is not None and key.budget_usd is None:
        raise InvalidRequest("budget_period goes with budget_usd.", param="budget_period")
    if expires and key.expires is not None and key.expires <= time.time():
        raise InvalidRequest("expires lies in the past.", param="expires")
    if not all(text.isprintable() for pair in key.tags.items() for text in pair):
        raise InvalidRequest("tags: a tag has printable characters.", param="tags")


def _seconds(text: str | None) -> float | None:
    """Unix seconds of a time in ISO 8601; without a zone it is UTC. Raises InvalidRequest."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        words = f"expires is a time like 2027-01-31T00:00:00Z, not {text[:40]!r}."
        raise InvalidRequest(words, param="expires") from None


def _with_spent(database: Database, key: StoredKey) -> ShownKey:
    spent = database.spent({key.id: midnight(key.budget_period)})[key.id]
    return _shown(key, spent, database.last_used([key.id]).get(key.id))


def _shown(key: StoredKey, spent: float, used: float | None) -> ShownKey:
    return ShownKey(**_fields(key, spent, used))


def _fields(key: StoredKey, spent: float, used: float | None) -> dict[str, Any]:
    same = (
        "id",
        "name",
        "prefix",
        "scopes",
        "models",
        "rpm",
        "tpm",
        "concurrency",
        "budget_usd",
        "budget_period",
        "tags",
    )
    times = {"created": key.created, "expires": key.expires, "revoked": key.revoked, "old_until": key.old_until}
    times["last_used"] = used
    if (key.old_until or 0.0) <= time.time():
        times["old_until"] = None
    return {
        **{name: getattr(key, name) for name in same},
        **{name: _iso(stamp) for name, stamp in times.items()},
        "spent_usd": round(spent, 9),
    }


def _iso(stamp: float | None) -> str | None:
    if stamp is None:
        return None
    return datetime.fromtimestamp(math.floor(stamp), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
