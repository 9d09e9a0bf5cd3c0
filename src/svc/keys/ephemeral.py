"""Check requests for ephemeral keys against the key that makes them. No I/O.

`svc.ephemeral_tokens` signs and verifies the keys.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from svc.ephemeral_tokens import MAX_TOKEN_CHARACTERS, EphemeralClaims, generate_ephemeral_id
from svc.errors import InvalidRequest, PermissionDenied
from svc.keys.lifecycle import BudgetUsd, KeyModels, KeyTags, LimitValue, check_tags
from svc.wire.key import SCOPES, ApiKey, EphemeralKey

EPHEMERAL_SCOPES: Final = ("chat", "speech")
"""The scopes that an ephemeral key can have."""
EphemeralScopes = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=16)]
"""Names of scopes, unchecked: an error must not list those that an ephemeral key cannot have."""
MAX_EPHEMERAL_SECONDS: Final = 86_400
DEFAULT_EPHEMERAL_SECONDS: Final = 600


class NewEphemeralKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ephemeral key to create. Null has the same meaning as a missing field."""

    expires_in: Annotated[int, msgspec.Meta(ge=1, le=MAX_EPHEMERAL_SECONDS)] | None = DEFAULT_EPHEMERAL_SECONDS
    """Seconds until the key expires, at most 86400. It never outlives its parent."""
    scopes: EphemeralScopes | None = None
    """`chat`, `speech` or both. Null means those of its parent."""
    models: KeyModels | None = None
    """The models that the key may use. Null means those of its parent."""
    rpm: LimitValue | None = None
    """Requests per minute of this key alone. Those of its parent apply as well."""
    budget_usd: BudgetUsd | None = None
    """USD that this key can spend in total. The budget of its parent applies as well."""
    tags: KeyTags | None = None
    """Tags for reports, at most 32. The tags of its parent are added, and replace those with the same name."""


class MadeEphemeralKey(msgspec.Struct, frozen=True, kw_only=True):
    """An ephemeral key with its secret, which is shown only once."""

    id: str
    """The id of the key: `ephemeral_id` in the ledger."""
    object: str = "ephemeral_key"
    """Always `ephemeral_key`."""
    key: str
    """The secret."""
    key_id: str
    """The id of its parent: `key_id` in the ledger."""
    created_at: int
    """When the key was created: Unix seconds."""
    expires_at: int
    """When the key expires: Unix seconds."""
    scopes: tuple[str, ...]
    """The scopes of the key."""
    models: tuple[str, ...] | None
    """The models that the key may use. Null means all."""
    rpm: int | None
    """Requests per minute of this key alone. Null means no limit besides that of its parent."""
    budget_usd: float | None
    """USD that this key can spend in total. Null means no limit besides that of its parent."""
    tags: dict[str, str]
    """The tags of the key and of its parent."""


def check_can_make_keys(parent: ApiKey) -> None:
    """Raise PermissionDenied if the key cannot make ephemeral keys."""
    if isinstance(parent, EphemeralKey):
        raise PermissionDenied("An ephemeral key cannot make another key.")
    if parent.scopes.isdisjoint(EPHEMERAL_SCOPES):
        raise PermissionDenied("This API key lacks the scopes 'chat' and 'speech'.")


def create_claims(
    request: NewEphemeralKey, parent: ApiKey, default_rpm: int, resolve_alias: Callable[[str], str] = str
) -> EphemeralClaims:
    """Return the claims of a new ephemeral key.

    `default_rpm` limits a parent without its own limit, or is 0. `resolve_alias` returns the model of an alias, or the
    name itself.

    Raises PermissionDenied for what the parent may not do, and InvalidRequest.
    """
    check_can_make_keys(parent)
    scopes = tuple(scope for scope in EPHEMERAL_SCOPES if scope in parent.scopes)
    if request.scopes is not None:
        for scope in request.scopes:
            if scope not in EPHEMERAL_SCOPES:
                message = f"scopes: an ephemeral key can have only {' and '.join(map(repr, EPHEMERAL_SCOPES))}."
                error_type = PermissionDenied if scope in SCOPES else InvalidRequest
                raise error_type(message, param="scopes")
            if scope not in scopes:
                raise PermissionDenied(f"scopes: this API key lacks the scope '{scope}'.", param="scopes")
        scopes = tuple(scope for scope in EPHEMERAL_SCOPES if scope in request.scopes)
    models = request.models
    if models is not None:  # a parent that may use the model of an alias may use the alias
        models = tuple(name if parent.may_use(name) else resolve_alias(name) for name in models)
    for model in models or ():
        if not parent.may_use(model):
            raise PermissionDenied(f"models: this API key may not use the model {model[:64]!r}.", param="models")
    max_rpm = parent.rpm or default_rpm
    if request.rpm is not None and 0 < max_rpm < request.rpm:
        raise PermissionDenied(f"rpm: this API key has only {max_rpm} requests per minute.", param="rpm")
    if request.budget_usd is not None and parent.budget_usd is not None and request.budget_usd > parent.budget_usd:
        raise PermissionDenied(f"budget_usd: this API key has only {parent.budget_usd:g} USD.", param="budget_usd")
    tags = request.tags or {}
    check_tags(tags)
    now = time.time()
    expires_in = DEFAULT_EPHEMERAL_SECONDS if request.expires_in is None else request.expires_in
    return EphemeralClaims(
        id=generate_ephemeral_id(),
        issued_at=int(now),
        expires_at=math.floor(min(now + expires_in, parent.expires)),
        scopes=scopes,
        models=models,
        rpm=request.rpm or 0,
        budget_usd=request.budget_usd,
        tags=tags,
    )


def describe_ephemeral_key(claims: EphemeralClaims, parent: ApiKey, token: str) -> MadeEphemeralKey:
    """Return the new key as its maker sees it. Raises InvalidRequest if the token is too long."""
    if len(token) > MAX_TOKEN_CHARACTERS:
        name = "models" if len(str(claims.models)) > len(str(claims.tags)) else "tags"
        raise InvalidRequest(
            f"{name}: the key would have {len(token)} characters, and HTTP headers have room for "
            f"{MAX_TOKEN_CHARACTERS}. Use fewer or shorter names.",
            param=name,
        )
    models = claims.models if claims.models is not None or parent.models is None else tuple(sorted(parent.models))
    return MadeEphemeralKey(
        id=claims.id,
        key=token,
        key_id=parent.id,
        created_at=claims.issued_at,
        expires_at=claims.expires_at,
        scopes=claims.scopes,
        models=models,
        rpm=claims.rpm or None,
        budget_usd=claims.budget_usd,
        tags={**claims.tags, **parent.tags},
    )
