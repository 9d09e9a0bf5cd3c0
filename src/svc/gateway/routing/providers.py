"""Providers, their models and their keys, from `providers.toml` and the configuration. No sockets.

`backends` combines a provider and a model.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
import tomllib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from svc import plugins
from svc.dialects.base import Dialect
from svc.errors import UsageError
from svc.gateway.routing.outbound_proxy import OutboundProxy, select_proxy
from svc.gateway.routing.presets import configured_entries
from svc.gateway.routing.provider_keys import resolve_key
from svc.gateway.routing.strategy_settings import check_strategies
from svc.settings import DEFAULT_DIALECT, AccountSettings, ModelSettings, ProviderSettings, Settings
from svc.stores.local_models import installed_kinds
from svc.wire.chat import UpstreamOverrides

AMBIGUOUS_IDNA_CHARACTERS: Final = re.compile("[\u00df\u1e9e\u03c2\u200c\u200d]")
"""Sharp s, final sigma, and joiners: IDNA 2003 removes or replaces them, IDNA 2008 does not (RFC 5894, section 7.2)."""
HOST_NAME_PATTERN: Final = re.compile("[A-Za-z0-9._-]+")
EXAMPLE_BASE_URL: Final = urlsplit("https://api.example.com")
API_VERSION_PATH: Final = re.compile(r"(?:^|/v[0-9]+)$")
MODEL_PLACEHOLDER: Final = "{model}"
"""The part of an address that stands for the model's name at the provider."""
RESERVED_KEY_HEADERS: Final = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that cannot hold a key, because they describe the message or its destination."""
DEFAULT_ACCOUNT_NAME: Final = "default"
"""The name of the account with the key and the address of the provider's own entry."""
ACCOUNT_NAME_CHARS: Final = 12
MAX_ALIAS_CHARS: Final = 512
"""Maximum length of an alias, which is that of `model` in a request."""
LOCAL_PROVIDER: Final = "local"
"""The provider of the embedded model."""


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


class _BuiltinProvider(ProviderSettings, frozen=True, kw_only=True):
    letter: str


class _ProvidersFile(msgspec.Struct, frozen=True):
    providers: tuple[_BuiltinProvider, ...]


def build_providers(settings: Settings) -> list[Provider]:
    """Return the built-in providers that have a key, with configured changes, then the other configured providers.

    Raises UsageError for an invalid configuration.
    """
    expanded = configured_entries(settings)
    configured: dict[str, ProviderSettings] = {}
    for entry in expanded:
        if entry.name in configured:
            location = _second_location(settings, entry)
            raise UsageError(f"{location}: two [[providers]] have the same name {entry.name!r}: give one another name.")
        configured[entry.name] = entry
        _check_entry(settings, entry)
    builtins = [
        (builtin, _merge_entry(builtin, configured.pop(builtin.name, None))) for builtin in _load_builtin_providers()
    ]
    entries = [*(entry for _, entry in builtins), *configured.values()]
    _check_fallbacks(settings, entries)
    _check_aliases(settings, entries)
    if settings.routing.strategies or settings.routing.weights:
        check_strategies(settings, models_by_provider(settings))
    providers = []
    for builtin, entry in builtins:
        key = resolve_key(entry, settings.environ, letter=builtin.letter)
        url = settings.environ.get(f"PROVIDER_{builtin.letter}_BASE_URL")
        providers += _build_accounts(entry, url or entry.base_url, [key] if key else [], settings.environ)
    for entry in configured.values():
        key = resolve_key(entry, settings.environ)
        keyless = not _configures_key(entry) and not _has_keyed_account(entry)
        try:
            providers += _build_accounts(entry, entry.base_url, [key] if key or keyless else [], settings.environ)
        except UsageError as error:
            location = f"{settings.source_location('[[providers]]', entry.name)}: " if settings.path else ""
            raise UsageError(f"{location}{error.message}") from error
    return providers


def _second_location(settings: Settings, entry: ProviderSettings) -> str:
    """Return the location of the second entry with a name, which may be that of its preset."""
    same_name = [other for other in settings.providers if other.name == entry.name]
    key = "preset" if all(other.preset == entry.name for other in same_name) else "name"
    return settings.source_location("providers", entry.name, key=key, occurrence=2)


def _check_entry(settings: Settings, entry: ProviderSettings) -> None:
    """Raise UsageError for duplicate models, and for an account with neither a key nor an address of its own."""
    seen = set()
    for model in entry.models or ():
        if model.id in seen:
            earlier = itertools.takewhile(lambda other: other.name != entry.name, settings.providers)
            count = sum(other.id == model.id for provider in earlier for other in provider.models or ())
            location = settings.source_location("providers", model.id, key="id", occurrence=count + 2)
            raise UsageError(f"{location}: provider {entry.name} has the model {model.id!r} twice.")
        seen.add(model.id)
    if entry.preset is not None and any(entry.name == builtin.name for builtin in _load_builtin_providers()):
        raise UsageError(f"Provider {entry.name} is built in, so its entry cannot have a preset: give it another name.")
    if (entry.api_key_header or "").lower() in RESERVED_KEY_HEADERS:
        raise UsageError(f"The api_key_header of provider {entry.name} cannot be {entry.api_key_header!r}.")
    if any(not _configures_key(account) and account.base_url is None for account in entry.accounts or ()):
        raise UsageError(f"An account of provider {entry.name} has neither a key nor a base_url of its own.")


def _check_fallbacks(settings: Settings, entries: Iterable[ProviderSettings]) -> None:
    """Raise UsageError for a fallback to itself, to an unknown model, or to a model of another kind."""
    kinds: dict[str, str] = {model.id: model.kind for entry in entries for model in entry.models or ()}
    if settings.routing.fallbacks:
        kinds = {**installed_kinds(settings), **kinds}
    model_names = set(kinds)
    for name, fallback_ids in settings.routing.fallbacks.items():
        if name in fallback_ids:
            location = settings.source_location("fallbacks", name)
            raise UsageError(f"{location}: [routing.fallbacks] of {name!r} contains the model itself.")
        if len({kinds.get(model_id) for model_id in (name, *fallback_ids)} - {None}) > 1:
            location = settings.source_location("fallbacks", name)
            raise UsageError(f"{location}: [routing.fallbacks] of {name!r} names a model of another kind.")
        for model_id in (name, *fallback_ids):
            if model_id not in model_names:
                location = settings.source_location("fallbacks", model_id)
                raise UsageError(
                    f"{location}: [routing.fallbacks] names a model that no provider has: "
                    f"{model_id!r}{_suggest(model_id, model_names)}"
                )


def _check_aliases(settings: Settings, entries: Iterable[ProviderSettings]) -> None:
    """Raise UsageError for an alias that occurs twice, that names itself, or whose model no provider has."""
    if not settings.aliases:
        return
    model_names = {*installed_kinds(settings), *(model.id for entry in entries for model in entry.models or ())}
    names: set[str] = set()
    for alias in settings.aliases:
        if len(alias.name) > MAX_ALIAS_CHARS or not alias.name.isprintable():
            location = settings.source_location("aliases", alias.name, key="name")
            raise UsageError(
                f"{location}: the name of an alias has 1 to {MAX_ALIAS_CHARS} printable characters, unlike "
                f"{alias.name[:40]!r}."
            )
        if alias.name in names:
            location = settings.source_location("aliases", alias.name, key="name", occurrence=2)
            raise UsageError(f"{location}: two [[aliases]] have the name {alias.name!r}.")
        names.add(alias.name)
        if alias.name == alias.model:
            location = settings.source_location("aliases", alias.name, key="name")
            raise UsageError(f"{location}: the alias {alias.name!r} names itself.")
        if alias.model not in model_names:
            location = settings.source_location("aliases", alias.model, key="model")
            raise UsageError(
                f"{location}: [[aliases]] names a model that no provider has: "
                f"{alias.model!r}{_suggest(alias.model, model_names)}"
            )


def _suggest(name: str, known_names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name, with the most similar known one."""
    close_matches = difflib.get_close_matches(name, known_names, 1)
    return f"; did you mean {close_matches[0]!r}?" if close_matches else "."


def _build_accounts(
    entry: ProviderSettings, base_url: str | None, keys: list[str], environ: Mapping[str, str]
) -> list[Provider]:
    """Return a list of the provider with its accounts. The list is empty if a required key is missing."""
    accounts = [build_provider(entry, base_url, key, environ) for key in keys]
    for account in entry.accounts or ():
        key = resolve_key(account, environ) if _configures_key(account) else (keys or [""])[0]
        if key or not (_configures_key(account) or _configures_key(entry)):
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
    return any(_configures_key(account) and account.base_url is None for account in entry.accounts or ())


def _configures_key(entry: ProviderSettings | AccountSettings) -> bool:
    return bool(entry.api_key_env or entry.api_key_file)


def _key_entries(entry: ProviderSettings) -> list[ProviderSettings | AccountSettings]:
    return [entry, *(entry.accounts or ())]


def check_entries_without_keys(settings: Settings, providers: Iterable[Provider]) -> Iterator[str]:
    """Yield the errors that a start would report if the keys of all configured providers were set.

    `providers` are those of `build_providers`, which omits a provider without its key.
    """
    built_names = {provider.name for provider in providers}
    builtins = {builtin.name: builtin for builtin in _load_builtin_providers()}
    for entry in configured_entries(settings):
        if entry.name in built_names:
            continue
        merged = _merge_entry(builtins[entry.name], entry) if entry.name in builtins else entry
        urls: list[str | None] = [each.base_url for each in _key_entries(merged) if each.base_url is not None]
        try:
            for url in urls or [None]:
                build_provider(merged, url, "", settings.environ)
        except UsageError as error:
            yield f"{settings.source_location('[[providers]]', entry.name)}: {error.message}"


def missing_keys(settings: Settings) -> list[tuple[str, str]]:
    """Return provider and environment variable of each configured key whose variable is not set."""
    return [
        (entry.name, key_entry.api_key_env)
        for entry in configured_entries(settings)
        for key_entry in _key_entries(entry)
        if key_entry.api_key_env and not key_entry.api_key_file and not settings.environ.get(key_entry.api_key_env)
    ]


def models_by_provider(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the built-in and configured models by provider, with or without a key, and their aliases. No network."""
    configured = {entry.name: entry for entry in configured_entries(settings)}
    entries = [_merge_entry(builtin, configured.pop(builtin.name, None)) for builtin in _load_builtin_providers()]
    models = {entry.name: tuple(model.id for model in entry.models or ()) for entry in (*entries, *configured.values())}
    models[LOCAL_PROVIDER] = (*installed_kinds(settings), *models.get(LOCAL_PROVIDER, ()))
    return {provider: (*ids, *_aliases_of(settings, ids)) for provider, ids in models.items()}


def _aliases_of(settings: Settings, model_ids: Collection[str]) -> list[str]:
    return [alias.name for alias in settings.aliases if alias.model in model_ids]


class UnconfiguredProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that has no key. One of the variables would give it one."""

    name: str
    dialect: str
    base_url: str
    variables: tuple[str, ...]
    models: tuple[ModelSettings, ...]


def unconfigured_providers(settings: Settings, present: Container[str]) -> list[UnconfiguredProvider]:
    """Return the providers that are not offered because they have no key. `present` are the names of the others."""
    configured = {entry.name: entry for entry in configured_entries(settings)}
    entries: list[tuple[ProviderSettings, tuple[str, ...]]] = []
    for builtin in _load_builtin_providers():
        entry = _merge_entry(builtin, configured.pop(builtin.name, None))
        entries.append((entry, (f"PROVIDER_{builtin.letter}_API_KEY",)))
    entries += [(entry, ()) for entry in configured.values()]
    missing = []
    for entry, first in entries:
        if entry.name not in present:
            accounts = (account.api_key_env for account in entry.accounts or ())
            missing.append(
                UnconfiguredProvider(
                    name=entry.name,
                    dialect=entry.dialect or DEFAULT_DIALECT,
                    base_url=entry.base_url or "",
                    variables=tuple(dict.fromkeys(filter(None, (entry.api_key_env, *first, *accounts)))),
                    models=tuple(entry.models or ()),
                )
            )
    return missing


def models_without_key(settings: Settings, providers: Iterable[Provider]) -> dict[str, str]:
    """Return the models that are not offered because their provider has no key, each with the reason."""
    missing: dict[str, str] = {}
    for provider in unconfigured_providers(settings, {provider.name for provider in providers}):
        # Clients get the reason: a name that is not in upper case may be a key that is in the wrong place.
        names = " or ".join(name for name in provider.variables if name.isupper())
        reason = f"the provider {provider.name} has no API key{f' (set {names})' if names else ''}"
        for model in provider.models:
            missing.setdefault(model.id, reason)
    return missing


def key_variables() -> dict[str, tuple[str, ...]]:
    """Return the environment variables for the key of each built-in provider, in order of precedence."""
    return {
        builtin.name: (f"PROVIDER_{builtin.letter}_API_KEY", *filter(None, (builtin.api_key_env,)))
        for builtin in _load_builtin_providers()
    }


def _load_builtin_providers() -> tuple[_BuiltinProvider, ...]:
    text = resources.files("svc.gateway").joinpath("providers.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _ProvidersFile).providers


def _merge_entry(builtin: _BuiltinProvider, change: ProviderSettings | None) -> ProviderSettings:
    if change is None:
        return builtin
    fields: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(change).items() if value is not None
    }
    return msgspec.structs.replace(builtin, **fields)


def _load_dialect(entry: ProviderSettings) -> Dialect:
    name = entry.dialect or DEFAULT_DIALECT
    module = plugins.load("dialects", name) if name in plugins.names("dialects") else None
    dialect: Dialect | None = getattr(module, "dialect", None)
    if dialect is None:
        known_names = ", ".join(known_dialect.name for known_dialect in _load_usable_dialects())
        raise UsageError(f"Provider {entry.name}: there is no dialect {name[:64]!r}; known: {known_names}.")
    return dialect


def _load_usable_dialects() -> list[Dialect]:
    """Return all dialects. The package also contains modules that are not dialects."""
    found = [getattr(module, "dialect", None) for module in plugins.load_usable("dialects")]
    return [dialect for dialect in found if dialect is not None]


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
    dialect = _load_dialect(entry)
    if base_url is None:
        raise UsageError(f"Provider {entry.name} needs a base_url.")
    if any(ord(letter) < 33 or ord(letter) > 126 for letter in key):
        raise UsageError(f"The key of provider {entry.name} has characters that are not allowed in a header.")
    address = _parse_base_url(entry.name, base_url, dialect)
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


def _parse_base_url(name: str, base_url: str, dialect: Dialect) -> SplitResult:
    try:
        address = _encode_host(urlsplit(base_url.rstrip("/")))
        valid = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except UnicodeError:
        raise UsageError(
            f"The host name in the address of provider {name} has no unambiguous ASCII form: "
            "write it in its ASCII form (xn--…)."
        ) from None
    except ValueError:
        valid = False
    if not valid or not address.geturl().isascii() or not base_url.isprintable() or " " in base_url:
        example = _with_api_path(EXAMPLE_BASE_URL, "", dialect)
        raise UsageError(f"The address of provider {name} is not an http or https address, such as {example}.")
    if address.query or address.fragment or "@" in address.netloc or address.port == 0:
        hint = " Write its api-version as api_version." if "api-version=" in address.query else ""
        raise UsageError(f"The address of provider {name} may have only a host, a port and a path.{hint}")
    if "{" in (rest := address.path.replace(MODEL_PLACEHOLDER, "")) or "}" in rest:
        raise UsageError(
            f"The address of provider {name} may contain no braces except {MODEL_PLACEHOLDER} in its path."
        )
    _check_host(name, address.hostname or "")
    _check_path_suffix(name, address, dialect)
    return address


def _check_path_suffix(name: str, address: SplitResult, dialect: Dialect) -> None:
    """Raise UsageError for an address that ends in the chat path of a dialect."""
    if API_VERSION_PATH.search(address.path):  # the common case: the other dialects need not be loaded
        return
    for other in (
        dialect,
        *(candidate for candidate in _load_usable_dialects() if candidate is not dialect),
    ):
        suffix = other.chat_path.removeprefix("/v1")
        if not address.path.endswith(suffix):
            continue
        path = address.path.removesuffix(suffix)
        example = _with_api_path(address, path, dialect)
        message_start = f"The address of provider {name} ends in {suffix}, which "
        if other is dialect:
            raise UsageError(f"{message_start}each request adds: it should look like {example}.")
        raise UsageError(
            f"{message_start}belongs to the dialect {other.name}, and the provider's is {dialect.name}: "
            f'if it speaks {other.name}, write dialect = "{other.name}" and the address '
            f"{_with_api_path(address, path, other)}; "
            f"if it speaks {dialect.name}, the address should look like {example}."
        )


def _with_api_path(address: SplitResult, path: str, dialect: Dialect) -> str:
    """Return the address with a path. It includes `/v1` unless the dialect's request paths begin with it."""
    path = path.removesuffix("/v1") if dialect.chat_path.startswith("/v1/") else path or "/v1"
    return address._replace(path=path).geturl()


def _check_host(name: str, host: str) -> None:
    """Raise UsageError for an invalid host name, such as `a..b`."""
    try:
        is_valid = bool(host.encode("idna")) and (":" in host or HOST_NAME_PATTERN.fullmatch(host) is not None)
    except UnicodeError:  # an empty or too long label
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"The host name {host[:64]!r} in the address of provider {name} is not valid: "
            "it should look like api.example.com or 10.0.0.5."
        )


def _encode_host(address: SplitResult) -> SplitResult:
    """Return the address with an encoded international host name (IDNA 2003).

    Raises UnicodeError for an invalid name, and for letters that IDNA 2008 encodes differently. With the latter, the
    gateway could send the key to the owner of another name.
    """
    if address.netloc.isascii():
        return address
    user, at_sign, host_and_port = address.netloc.rpartition("@")
    host, colon, port = host_and_port.partition(":")
    encoded = host.encode("idna").decode()
    if AMBIGUOUS_IDNA_CHARACTERS.search(host) or not HOST_NAME_PATTERN.fullmatch(encoded):
        raise UnicodeError(host)
    return address._replace(netloc=f"{user}{at_sign}{encoded}{colon}{port}")
