"""A client's key, as those who serve it see it. Data only; who finds it by its secret is `security`."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

from svc.errors import PermissionDenied

Scope = Literal["chat", "speech", "registry:read", "registry:write", "admin", "metrics"]
SCOPES: tuple[str, ...] = get_args(Scope)

CONFIGURED_SCOPES: Final = frozenset({"chat", "speech", "registry:read", "metrics"})
"""What a key of `SVC_API_KEYS` may do, at the gateway and at the registry."""
PUBLISHER_SCOPES: Final = frozenset({"registry:read", "registry:write"})
"""What a key of `SVC_REGISTRY_KEYS` may do, at the registry."""


class ApiKey:
    """A client's key, without its secret; two are never the same. Nothing in it changes."""

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
        """The models it may use; None is all."""
        self.rpm = rpm
        self.tpm = tpm
        self.concurrency = concurrency
        """0 is no limit, of all three."""
        self.budget_usd = budget_usd
        self.budget_period = budget_period
        self.tags = tags or {}
        self.expires = expires
        """Unix seconds."""

    def may_use(self, model: str) -> bool:
        """Whether the key's allow-list has the model."""
        return self.models is None or model in self.models

    def require_scope(self, scope: str) -> None:
        """Raises PermissionDenied for a key without the scope."""
        if scope not in self.scopes:
            raise PermissionDenied(f"This API key lacks the scope '{scope}'.")
