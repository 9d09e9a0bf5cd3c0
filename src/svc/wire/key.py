"""Define an API key as the services see it. Data only. `svc.security` looks keys up by secret."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

from svc.errors import PermissionDenied

Scope = Literal["chat", "speech", "registry:read", "registry:write", "admin", "metrics"]
SCOPES: tuple[str, ...] = get_args(Scope)

CONFIGURED_SCOPES: Final = frozenset({"chat", "speech", "registry:read", "metrics"})
"""Scopes of a key in `SVC_API_KEYS`, at the gateway and at the registry."""
PUBLISHER_SCOPES: Final = frozenset({"registry:read", "registry:write"})
"""Scopes of a key in `SVC_REGISTRY_KEYS`, at the registry."""

CONSOLE_SCOPES: Final = frozenset(SCOPES)
"""Scopes of the key behind the link that `svc up` prints."""


class ApiKey:
    """An API key without its secret. Immutable, and compared by identity."""

    __slots__ = (
        "budget_period",
        "budget_usd",
        "concurrency",
        "ephemeral_id",
        "expires",
        "id",
        "models",
        "name",
        "rpm",
        "scopes",
        "tags",
        "tpm",
    )

    def __init__(
        self,
        id: str,
        name: str,
        scopes: frozenset[str] = CONFIGURED_SCOPES,
        *,
        models: frozenset[str] | None = None,
        rpm: int = 0,
        tpm: int = 0,
        concurrency: int = 0,
        budget_usd: float | None = None,
        budget_period: str = "total",
        tags: dict[str, str] | None = None,
        expires: float = math.inf,
    ) -> None:
        self.id = id
        self.name = name
        self.scopes = scopes
        self.models = models
        """The allowed models. None allows all."""
        self.rpm = rpm
        self.tpm = tpm
        self.concurrency = concurrency
        """For `rpm`, `tpm` and `concurrency`, 0 means no limit."""
        self.budget_usd = budget_usd
        self.budget_period = budget_period
        self.tags = tags or {}
        self.expires = expires
        """Unix time in seconds."""
        self.ephemeral_id: str | None = None
        """The id of an ephemeral key, see `EphemeralKey`."""

    @property
    def owner_id(self) -> str:
        """The id of the key that owns what a request stores. Ephemeral keys of one parent do not share it."""
        return self.id if self.ephemeral_id is None else self.ephemeral_id

    def may_use(self, model: str) -> bool:
        """Return whether the key may use the model."""
        return self.models is None or model in self.models

    def require_scope(self, scope: str) -> None:
        """Raise PermissionDenied if the key lacks the scope."""
        if scope not in self.scopes:
            raise PermissionDenied(f"This API key lacks the scope '{scope}'.")


class EphemeralKey(ApiKey):
    """A short-lived key that another key, its parent, made. It may do no more than its parent.

    `id`, `name` and the limits of `ApiKey` are the parent's. `own_rpm` (0 means no limit) and `own_budget_usd` apply in
    addition.
    """

    __slots__ = ("issued_at", "own_budget_usd", "own_rpm", "parent", "parent_digest")

    def __init__(
        self,
        ephemeral_id: str,
        parent: ApiKey,
        parent_digest: bytes,
        *,
        scopes: frozenset[str],
        models: frozenset[str] | None,
        own_rpm: int,
        own_budget_usd: float | None,
        tags: dict[str, str],
        issued_at: int,
        expires: float,
    ) -> None:
        super().__init__(
            parent.id,
            parent.name,
            scopes & parent.scopes,
            models=models if parent.models is None else parent.models if models is None else models & parent.models,
            rpm=parent.rpm,
            tpm=parent.tpm,
            concurrency=parent.concurrency,
            budget_usd=parent.budget_usd,
            budget_period=parent.budget_period,
            tags={**tags, **parent.tags},
            expires=min(expires, parent.expires),
        )
        self.ephemeral_id = ephemeral_id
        self.parent = parent
        self.parent_digest = parent_digest
        """The digest by which the keyring finds the parent."""
        self.own_rpm = own_rpm
        self.own_budget_usd = own_budget_usd
        self.issued_at = issued_at
        """Unix time in seconds."""
