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


class ApiKey:
    """An API key without its secret. Immutable, and compared by identity."""

    __slots__ = (
        "budget_period",
        "budget_usd",
        "concurrency",
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

    def may_use(self, model: str) -> bool:
        """Return whether the key may use the model."""
        return self.models is None or model in self.models

    def require_scope(self, scope: str) -> None:
        """Raise PermissionDenied if the key lacks the scope."""
        if scope not in self.scopes:
            raise PermissionDenied(f"This API key lacks the scope '{scope}'.")
