"""The settings of `svc.toml`, from `svc/settings.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from svc import settings
from svc.wire.chat import UpstreamOverrides
from tests.documentation.reference.markdown import struct_rows, table

TABLES: dict[str, type[Any]] = {
    "gateway": settings.GatewaySettings,
    "routing": settings.RoutingSettings,
    "providers": settings.ProviderSettings,
    "models": settings.ModelSettings,
    "aliases": settings.AliasSettings,
    "accounts": settings.AccountSettings,
    "quirks": UpstreamOverrides,
    "local": settings.LocalSettings,
    "local.models": settings.LocalModelSettings,
    "speech": settings.SpeechSettings,
    "limits": settings.LimitSettings,
    "ledger": settings.LedgerSettings,
    "cache": settings.CacheSettings,
    "responses": settings.ResponsesSettings,
    "telemetry": settings.TelemetrySettings,
}


def settings_table(struct: type[Any]) -> str:
    """One table of the file."""
    return table(("Key", "Type", "Default", "Meaning"), struct_rows(struct))


REGIONS: dict[str, Callable[[], str]] = {
    f"settings.{name}": partial(settings_table, struct) for name, struct in TABLES.items()
}
