"""A client's key, as those who serve it see it. Data only; who finds it by its secret is `security`."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from svc.errors import PermissionDenied

Scope = Literal["chat", "speech", "registry:read", "registry:write", "admin", "metrics"]
SCOPES: tuple[str, ...] = get_args(Scope)

CONFIGURED_SCOPES = frozenset({"chat", "speech", "registry:read", "metrics"})
"""What a key of `SVC_API_KEYS` may do, at the gateway and at the registry."""
PUBLISHER_SCOPES = frozenset({"registry:read", "registry:write"})
"""What a key of `SVC_REGISTRY_KEYS` may do, at the registry."""


class Key(msgspec.Struct, frozen=True, eq=False):
    """A client's key, without its secret."""

    id: str
    name: str
    scopes: frozenset[str] = CONFIGURED_SCOPES
    models: frozenset[str] | None = None
    """The models it may use; None is all."""
    rpm: int = 0
    tpm: int = 0
    concurrency: int = 0
    """0 is no limit, of all three."""
    budget_usd: float | None = None
    budget_period: str = "total"
    tags: dict[str, str] = {}
    expires: float = math.inf
    """Unix seconds."""

    def may_use(self, model: str) -> bool:
        """Whether the key's allow-list has the model."""
        return self.models is None or model in self.models

    def require(self, scope: str) -> None:
        """Raises PermissionDenied for a key without the scope."""
        if scope not in self.scopes:
            raise PermissionDenied(f"This API key lacks the scope '{scope}'.")
