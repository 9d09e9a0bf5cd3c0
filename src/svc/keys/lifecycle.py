"""Create, show, change, rotate and revoke keys, for the command line and for the admin API.

The JSON of requests and responses is that of the structs. Each change runs in one transaction with the read that it
depends on, so that a concurrent change and revocation both apply. No HTTP, and no command line.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from svc.errors import InvalidRequest, NotFound
from svc.security import generate_secret, hash_secret
from svc.stores.budget_period import BudgetPeriod, budget_period_start
from svc.stores.database.base import Database, StoredKey
from svc.wire.form import Form, parse_form
from svc.wire.key import SCOPES, Scope

DEFAULT_ROTATION_GRACE_SECONDS = 86400.0
MAX_ROTATION_GRACE_SECONDS = 366 * 86400.0
MAX_KEYS_PER_PAGE = 1000
MAX_MODELS_PER_KEY = 1000

KeyName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
LimitValue = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
BudgetUsd = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
KeyScopes = Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=16)]
KeyModels = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=256)], ...],
    msgspec.Meta(min_length=1, max_length=MAX_MODELS_PER_KEY),
]
TagName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
KeyTags = Annotated[dict[TagName, Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=32)]
KEY_NAME_RULE = "a key's name must have 1 to 200 printable characters"


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create."""

    name: KeyName
    """The name of the key, 1 to 200 printable characters."""
    scopes: KeyScopes = ("chat", "speech", "registry:read")
    """The scopes of the key."""
    models: KeyModels | None = None
    """The models that the key may use. Null means all."""
    rpm: LimitValue | None = None
    """Requests per minute. Null means no limit."""
    tpm: LimitValue | None = None
    """Tokens per minute. Null means no limit."""
    concurrency: LimitValue | None = None
    """Concurrent requests. Null means no limit."""
    budget_usd: BudgetUsd | None = None
    """The budget in USD. Null means no limit."""
    budget_period: BudgetPeriod | None = None
    """When the budget refills, in UTC. `total` never refills."""
    expires: str | None = None
    """When the key expires: ISO 8601. Null means never."""
    tags: KeyTags = {}
    """Tags for reports, at most 32."""


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a key. Missing fields stay unchanged, and null removes a limit."""

    name: KeyName | UnsetType = UNSET
    """The name of the key, 1 to 200 printable characters."""
    scopes: KeyScopes | UnsetType = UNSET
    """The scopes of the key."""
    models: KeyModels | UnsetType | None = UNSET
    """The models that the key may use. Null means all."""
    rpm: LimitValue | UnsetType | None = UNSET
    """Requests per minute. Null means no limit."""
    tpm: LimitValue | UnsetType | None = UNSET
    """Tokens per minute. Null means no limit."""
    concurrency: LimitValue | UnsetType | None = UNSET
    """Concurrent requests. Null means no limit."""
    budget_usd: BudgetUsd | UnsetType | None = UNSET
    """The budget in USD. Null means no limit."""
    budget_period: BudgetPeriod | UnsetType | None = UNSET
    """When the budget refills, in UTC. `total` never refills."""
    expires: str | UnsetType | None = UNSET
    """When the key expires: ISO 8601. Null means never."""
    tags: KeyTags | UnsetType = UNSET
    """Tags for reports, at most 32."""


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a rotation."""

    grace: Annotated[float, msgspec.Meta(ge=0, le=MAX_ROTATION_GRACE_SECONDS)] = DEFAULT_ROTATION_GRACE_SECONDS
    """Seconds that the previous secret stays valid."""


class ShownKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. Times are ISO 8601, UTC."""

    id: str
    """The id of the key."""
    name: str
    """The name of the key, 1 to 200 printable characters."""
    prefix: str
    """The first characters of the secret."""
    created: str
    """When the key was created: ISO 8601, UTC."""
    expires: str | None
    """When the key expires: ISO 8601. Null means never."""
    revoked: str | None
    """When the key was revoked. Null if it is valid."""
    old_until: str | None
    """Until when the previous secret stays valid."""
    scopes: tuple[str, ...]
    """The scopes of the key."""
    models: tuple[str, ...] | None
    """The models that the key may use. Null means all."""
    rpm: int | None
    """Requests per minute. Null means no limit."""
    tpm: int | None
    """Tokens per minute. Null means no limit."""
    concurrency: int | None
    """Concurrent requests. Null means no limit."""
    budget_usd: float | None
    """The budget in USD. Null means no limit."""
    budget_period: BudgetPeriod | None
    """When the budget refills, in UTC. `total` never refills."""
    spent_usd: float
    """USD spent in the budget period, or in total without a budget."""
    tags: dict[str, str]
    """Tags for reports, at most 32."""
    last_used: str | None = None
    """The time of the key's newest ledger entry."""


class MadeKey(ShownKey, frozen=True, kw_only=True):
    """A key with its secret, which is shown only once."""

    key: str
    """The secret."""


def parse_key_request(kind: type[Form], fields: Any) -> Form:
    """Parse a request from JSON or a command line. Raises InvalidRequest with the name of the invalid field."""
    return parse_form(kind, fields, _explain_key_rule)


def _explain_key_rule(name: str, text: str) -> str:
    if name == "name" and text.startswith("Expected a text of"):
        return KEY_NAME_RULE
    return f"{text}; scopes are {', '.join(SCOPES)}" if name == "scopes" else text


def create_key(database: Database, request: NewKey) -> MadeKey:
    """Create a key. Raises InvalidRequest and StoreUnavailable."""
    _reject_wildcards(request.models)
    secret = generate_secret()
    fields = msgspec.structs.asdict(request) | {"expires": _parse_expiry(request.expires)}
    if request.budget_usd is not None and request.budget_period is None:
        fields["budget_period"] = "total"
    key = StoredKey(
        id=f"key_{secrets.token_hex(8)}",
        digest=hash_secret(secret).hex(),
        prefix=secret[:12],
        created=time.time(),
        **fields,
    )
    _validate_key(key)
    return MadeKey(key=secret, **_shown_fields(database.put_key(key), 0.0, None))


def list_keys(
    database: Database,
    *,
    after: str = "",
    limit: int = MAX_KEYS_PER_PAGE,
    search: str = "",
    revoked: bool | None = None,
) -> list[ShownKey]:
    """Return a page of keys, ordered by id. `after` is the last id of the previous page.

    `search` selects keys with this text in the name, the id, the prefix or a tag, without regard to case. `revoked`
    selects revoked keys, or those that are not.
    """
    keys = _select_keys(database, after, limit, search.casefold(), revoked)
    spent = database.get_spent_usd({key.id: budget_period_start(key.budget_period) for key in keys})
    last_used_at = database.get_last_used_times([key.id for key in keys])
    return [_to_shown_key(key, spent.get(key.id, 0.0), last_used_at.get(key.id)) for key in keys]


def _select_keys(database: Database, after: str, limit: int, search: str, revoked: bool | None) -> list[StoredKey]:
    if not search and revoked is None:
        return database.list_keys(after=after, limit=limit)
    selected: list[StoredKey] = []
    while len(selected) < limit:
        page = database.list_keys(after=after, limit=MAX_KEYS_PER_PAGE)
        selected += [
            key
            for key in page
            if (revoked is None or revoked == (key.revoked is not None)) and (not search or _matches(key, search))
        ]
        if len(page) < MAX_KEYS_PER_PAGE:
            break
        after = page[-1].id
    return selected[:limit]


def _matches(key: StoredKey, search: str) -> bool:
    texts = (key.name, key.id, key.prefix, *(f"{name}={value}" for name, value in key.tags.items()))
    return any(search in text.casefold() for text in texts)


def get_key(database: Database, id: str) -> ShownKey:
    """Return a key. Raises NotFound and StoreUnavailable."""
    return _with_usage(database, _require_key(database.get_key(id), id))


def update_key(database: Database, id: str, request: Change) -> ShownKey:
    """Change the given fields. Raises NotFound, InvalidRequest and StoreUnavailable."""
    fields = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
    if isinstance(request.expires, str):
        fields["expires"] = _parse_expiry(request.expires)
    if request.models is not UNSET:
        _reject_wildcards(request.models)

    def apply_changes(key: StoredKey) -> StoredKey:
        new = msgspec.structs.replace(key, **fields)
        if new.budget_usd is None and "budget_period" not in fields:
            new = msgspec.structs.replace(new, budget_period=None)
        elif new.budget_usd is not None and new.budget_period is None:
            new = msgspec.structs.replace(new, budget_period="total")
        _validate_key(new, checks_expiry="expires" in fields)
        return new

    return _with_usage(database, _require_key(database.update_key(id, apply_changes), id))


def revoke_key(database: Database, id: str) -> ShownKey:
    """Revoke a key permanently. Idempotent. Raises NotFound and StoreUnavailable."""
    now = time.time()

    def set_revoked(key: StoredKey) -> StoredKey:
        return key if key.revoked is not None else msgspec.structs.replace(key, revoked=now)

    return _with_usage(database, _require_key(database.update_key(id, set_revoked), id))


def rotate_key(database: Database, id: str, request: Rotation) -> MadeKey:
    """Replace the secret. The previous one expires later. Raises NotFound, InvalidRequest, StoreUnavailable."""
    secret = generate_secret()

    def replace_secret(key: StoredKey) -> StoredKey:
        if key.revoked is not None:
            raise InvalidRequest(f"The key {key.id} is revoked; create another.")
        return msgspec.structs.replace(
            key,
            digest=hash_secret(secret).hex(),
            prefix=secret[:12],
            old_digest=key.digest if request.grace > 0 else None,
            old_until=time.time() + request.grace if request.grace > 0 else None,
        )

    key = _require_key(database.update_key(id, replace_secret), id)
    return MadeKey(key=secret, **msgspec.structs.asdict(_with_usage(database, key)))


def _require_key(key: StoredKey | None, id: str) -> StoredKey:
    if key is None:
        printable_id = "".join(character if character.isprintable() else "?" for character in id[:64])
        raise NotFound(f"There is no key {printable_id!r}.", param="id")
    return key


def _validate_key(key: StoredKey, *, checks_expiry: bool = True) -> None:
    """Check rules that field types do not express. Raises InvalidRequest."""
    if not key.name.isprintable() or not key.name.strip():
        raise InvalidRequest(f"name: {KEY_NAME_RULE}.", param="name")
    if key.budget_period is not None and key.budget_usd is None:
        raise InvalidRequest("budget_period requires budget_usd.", param="budget_period")
    if checks_expiry and key.expires is not None and key.expires <= time.time():
        raise InvalidRequest("expires is in the past.", param="expires")
    check_tags(key.tags)


def _reject_wildcards(models: Sequence[str] | None) -> None:
    """Raise InvalidRequest for a name such as `openai/*`, because a key with it could use no model."""
    for name in models or ():
        if "*" in name:
            raise InvalidRequest(
                f"models: there are no wildcards such as {name[:64]!r}. Name each model, or none for all models.",
                param="models",
            )


def check_tags(tags: dict[str, str]) -> None:
    """Raise InvalidRequest if a tag has unprintable characters."""
    if not all(text.isprintable() for pair in tags.items() for text in pair):
        raise InvalidRequest("tags: a tag must have only printable characters.", param="tags")


def _parse_expiry(text: str | None) -> float | None:
    """Parse an ISO 8601 time into Unix seconds. The default zone is UTC. Raises InvalidRequest."""
    if text is None:
        return None
    try:
        expiry = datetime.fromisoformat(text)
        return (expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        message = f"expires must be a time such as 2027-01-31T00:00:00Z, not {text[:40]!r}."
        raise InvalidRequest(message, param="expires") from None


def _with_usage(database: Database, key: StoredKey) -> ShownKey:
    spent = database.get_spent_usd({key.id: budget_period_start(key.budget_period)})[key.id]
    return _to_shown_key(key, spent, database.get_last_used_times([key.id]).get(key.id))


def _to_shown_key(key: StoredKey, spent: float, last_used_at: float | None) -> ShownKey:
    return ShownKey(**_shown_fields(key, spent, last_used_at))


def _shown_fields(key: StoredKey, spent: float, last_used_at: float | None) -> dict[str, Any]:
    unchanged_names = (
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
    times["last_used"] = last_used_at
    if (key.old_until or 0.0) <= time.time():
        times["old_until"] = None
    return {
        **{name: getattr(key, name) for name in unchanged_names},
        **{name: _to_iso(unix_seconds) for name, unix_seconds in times.items()},
        "spent_usd": round(spent, 9),
    }


def _to_iso(unix_seconds: float | None) -> str | None:
    if unix_seconds is None:
        return None
    return datetime.fromtimestamp(math.floor(unix_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
