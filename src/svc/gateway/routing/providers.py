"""Providers with their keys and accounts, from `providers.toml` and the configuration. No sockets.

`backends` combines a provider and a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, quote

import msgspec

from svc.dialects.base import Dialect
from svc.errors import UsageError
from svc.gateway.routing.outbound_proxy import OutboundProxy, select_proxy
from svc.gateway.routing.presets import configured_entries
from svc.gateway.routing.provider_addresses import MODEL_PLACEHOLDER, parse_base_url
from svc.gateway.routing.provider_checks import check_aliases, check_entries, check_fallbacks
from svc.gateway.routing.provider_dialects import load_dialect
from svc.gateway.routing.provider_entries import configures_key, merge_entries, models_by_provider
from svc.gateway.routing.provider_keys import resolve_key
from svc.gateway.routing.strategy_settings import check_strategies
from svc.settings import AccountSettings, ModelSettings, ProviderSettings, Settings
from svc.wire.chat import UpstreamOverrides

DEFAULT_ACCOUNT_NAME: Final = "default"
"""The name of the account with the key and the address of the provider's own entry."""
ACCOUNT_NAME_CHARS: Final = 12


class Provider(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One upstream: its address, dialect, key and models."""

    name: str
    dialect: Dialect
    address: SplitResult
    key: str = msgspec.field(default="", name="key")
    models: tuple[ModelSettings, ...] = ()
    overrides: UpstreamOverrides = UpstreamOverrides()
    weight: float = 1.0
    has_responses: bool = False
    """Whether it serves the Responses API."""
    key_header: str = ""
    """The request header with the key alone. Empty for the header of the dialect."""
    query: str = ""
    """The query of each request, with its `?`, or an empty string."""
    proxy: OutboundProxy | None = None
    """The proxy of its requests, or None for direct connections."""
    accounts: tuple[Provider, ...] = ()
    """All accounts of the provider, including this one, if there are several."""
    account_name: str = DEFAULT_ACCOUNT_NAME
    """Names the account among those of its provider. It depends on neither its position nor its key."""
    local_model: str = ""
    """The model of this machine that it stands for, or empty text. Its address has no port until it is loaded."""

    def __repr__(self) -> str:
        return f"Provider({self.name})"  # without the key

    def auth_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the request headers with the key, and others that the dialect requires."""
        headers = self.dialect.auth_headers(self.key)
        if not self.key_header or not self.key:
            return headers
        others = tuple((name, value) for name, value in headers if not value.endswith(self.key))
        return (*others, (self.key_header, self.key))

    def base_path(self, upstream_model: str) -> str:
        """Return the path of the address for a model, by its name at the provider."""
        return self.address.path.replace(MODEL_PLACEHOLDER, quote(upstream_model, safe=""))

    def models_target(self) -> str:
        """Return the path and query of the model list."""
        path = self.address.path.partition(f"/deployments/{MODEL_PLACEHOLDER}")[0]
        model = self.models[0].upstream_id or self.models[0].id if self.models else ""
        return f"{path.replace(MODEL_PLACEHOLDER, quote(model, safe=''))}{self.dialect.models_path}{self.query}"


class UpstreamOrigin(msgspec.Struct, frozen=True, cache_hash=True):
    """The origin of an upstream. Backends with the same origin share connections."""

    host: str
    port: int
    uses_tls: bool
    proxy: OutboundProxy | None = None
    local_model: str = ""
    """The model of this machine, whose port is known once it is loaded, or empty text."""


def build_providers(settings: Settings) -> list[Provider]:
    """Return the built-in providers that have a key, with configured changes, then the other configured providers.

    Raises UsageError for an invalid configuration.
    """
    check_entries(settings, configured_entries(settings))
    merged = merge_entries(settings)
    entries = [entry for entry, _ in merged]
    check_fallbacks(settings, entries)
    check_aliases(settings, entries)
    if settings.routing.strategies or settings.routing.weights:
        check_strategies(settings, models_by_provider(settings))
    providers = []
    for entry, letter in merged:
        providers += _build_builtin(settings, entry, letter) if letter else _build_configured(settings, entry)
    return providers


def _build_builtin(settings: Settings, entry: ProviderSettings, letter: str) -> list[Provider]:
    key = resolve_key(entry, settings.environ, letter=letter)
    base_url = settings.environ.get(f"PROVIDER_{letter}_BASE_URL") or entry.base_url
    return _build_accounts(entry, base_url, [key] if key else [], settings.environ)


def _build_configured(settings: Settings, entry: ProviderSettings) -> list[Provider]:
    key = resolve_key(entry, settings.environ)
    is_keyless = not configures_key(entry) and not _has_keyed_account(entry)
    try:
        return _build_accounts(entry, entry.base_url, [key] if key or is_keyless else [], settings.environ)
    except UsageError as error:
        location = f"{settings.source_location('[[providers]]', entry.name)}: " if settings.path else ""
        raise UsageError(f"{location}{error.message}") from error


def _build_accounts(
    entry: ProviderSettings, base_url: str | None, keys: list[str], environ: Mapping[str, str]
) -> list[Provider]:
    """Return a list of the provider with its accounts. The list is empty if a required key is missing."""
    accounts = [build_provider(entry, base_url, key, environ) for key in keys]
    for account in entry.accounts or ():
        key = resolve_key(account, environ) if configures_key(account) else (keys or [""])[0]
        if key or not (configures_key(account) or configures_key(entry)):
            other = build_provider(entry, account.base_url or base_url, key, environ)
            accounts.append(msgspec.structs.replace(other, weight=account.weight, account_name=_name_account(account)))
    if len(accounts) < 2:
        return accounts
    return [msgspec.structs.replace(accounts[0], accounts=tuple(accounts))]


def _name_account(account: AccountSettings) -> str:
    """Return a short digest of the account's address and of where its key is read. It stays when the key changes."""
    parts = (account.base_url, account.api_key_env, account.api_key_file)
    return hashlib.sha256("\0".join(str(part or "") for part in parts).encode()).hexdigest()[:ACCOUNT_NAME_CHARS]


def _has_keyed_account(entry: ProviderSettings) -> bool:
    """Return whether an account at the entry's own address has a key. If so, no request goes there without a key."""
    return any(configures_key(account) and account.base_url is None for account in entry.accounts or ())


def build_provider(
    entry: ProviderSettings,
    base_url: str | None,
    key: str,
    environ: Mapping[str, str] | None = None,
    *,
    local_model: str = "",
) -> Provider:
    """Return a provider. Raises UsageError for an unknown dialect, or an invalid address, key or proxy.

    `environ` has the variables of a proxy, if they apply to it. `local_model` is the model of this machine that it
    stands for.
    """
    dialect = load_dialect(entry)
    if base_url is None:
        raise UsageError(f"Provider {entry.name} needs a base_url.")
    if any(ord(letter) < 33 or ord(letter) > 126 for letter in key):
        raise UsageError(f"The key of provider {entry.name} has characters that are not allowed in a header.")
    address = parse_base_url(entry.name, base_url, dialect)
    return Provider(
        name=entry.name,
        dialect=dialect,
        address=address,
        key_header=(entry.api_key_header or "").lower(),
        query=f"?api-version={entry.api_version}" if entry.api_version else "",
        proxy=select_proxy(entry.proxy, f"The proxy of provider {entry.name}", address, environ or {}),
        key=key,
        models=entry.models or (),
        overrides=entry.quirks or UpstreamOverrides(),
        has_responses=bool(entry.responses),
        local_model=local_model,
    )
