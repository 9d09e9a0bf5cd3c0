"""Settings: one frozen object, every default embedded. Command line > environment > svc.toml > default.

The keys of the file are those of docs/reference/configuration.md; times in seconds, sizes in MiB.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from svc.errors import UsageError
from svc.wire.chat import UpstreamOverrides

Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0)]
NonEmptySetting = Annotated[str, msgspec.Meta(min_length=1)]
UsdPerMillionTokens = Annotated[float, msgspec.Meta(ge=0)]


class _SettingsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file: frozen, and an unknown key is an error that names it."""


class GatewaySettings(_SettingsTable, frozen=True):
    """`[gateway]`."""

    host: NonEmptySetting = "127.0.0.1"
    port: Port = 3000
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    connect_timeout: Positive = 5
    first_byte_timeout: Positive = 60
    idle_timeout: Positive = 30
    total_timeout: Positive = 600
    write_timeout: Positive = 60
    """A client that reads nothing for so long is dropped."""
    header_timeout: Positive = 10
    """Until the whole head of a request has come."""
    body_timeout: Positive = 60
    """Until the whole body of a request has come."""
    keep_alive: Positive = 75
    """An unused client connection is kept so long."""
    max_header: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    """KiB of a request's head, its line included."""
    max_body: Positive = 32
    drain_timeout: Seconds = 30
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[NonEmptySetting, ...] = ()
    """`Host` values beside loopback ones that a loopback listener answers without a key."""
    access_log: bool = True


class RoutingSettings(_SettingsTable, frozen=True):
    """`[routing]`."""

    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    retry_share: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.2
    """Retries at a provider, as a share of its requests of the last 10 s; 10 are always allowed."""
    hedge_after: Seconds = 0
    breaker: bool = True
    slow_after: Seconds = 0
    """Seconds to the first byte that count against a target like a failure; 0 goes by its own usual time."""
    min_pace: Seconds = 0
    """Tokens per second over 5 s, below which a stream is broken off; 0 is no floor."""
    resume: bool = False
    """A stream that breaks in its text goes on at the next target."""
    fallbacks: dict[str, tuple[str, ...]] = {}


class ModelSettings(_SettingsTable, frozen=True):
    """One entry of `providers.models`; prices in USD per million tokens."""

    id: NonEmptySetting
    upstream_id: NonEmptySetting | None = None
    """The name at the provider, if it is another."""
    context_window: Annotated[int, msgspec.Meta(ge=1)] = 128_000
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Tokens of the model's longest answer. None: not known."""
    use_case: str | None = None
    input_price: UsdPerMillionTokens | None = None
    output_price: UsdPerMillionTokens | None = None


class AccountSettings(_SettingsTable, frozen=True):
    """One entry of `providers.accounts`: another key, or another address, of the same provider."""

    api_key_env: str | None = None
    api_key_file: str | None = None
    base_url: str | None = None
    weight: Positive = 1


class ProviderSettings(_SettingsTable, frozen=True):
    """One entry of `[[providers]]`; what is None keeps the built-in entry's value."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
    dialect: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    """A file that holds the key; it is read before `api_key_env`."""
    models: tuple[ModelSettings, ...] | None = None
    accounts: tuple[AccountSettings, ...] | None = None
    """Beside the provider's own key and address."""
    quirks: UpstreamOverrides | None = None


class LocalSettings(_SettingsTable, frozen=True):
    """`[local]`: the embedded model."""

    enabled: bool = False
    model: str = "smollm2-135m"


class SpeechSettings(_SettingsTable, frozen=True):
    """`[speech]`."""

    default_model: str = "moonshine-tiny-en"
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    max_sessions: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Per worker."""
    model_dirs: tuple[str, ...] = ()
    """Folders of which a session may name a model folder."""
    idle_timeout: Positive = 120
    """A session without any message for so long is closed."""
    max_duration: Positive = 14400
    """A session is closed after so long."""
    max_upload_seconds: Positive = 3600
    """Seconds of sound in an uploaded file. A longer file is refused."""


class LimitSettings(_SettingsTable, frozen=True):
    """`[limits]`, for keys that carry none of their own; 0 is no limit."""

    rpm: Count = 0
    tpm: Count = 0


class LedgerSettings(_SettingsTable, frozen=True):
    """`[ledger]`."""

    retain_days: Seconds = 90
    """So long entries are kept one by one; their hourly and daily sums stay. 0 is for good."""
    journal_max: Positive = 1024
    """MiB of journals that may wait for a database that is down."""
    when_full: Literal["continue", "refuse"] = "continue"
    """When there is no room for an entry: answer all the same, or refuse requests."""


class CacheSettings(_SettingsTable, frozen=True):
    """`[cache]`: answers that are given again to the same request."""

    enabled: bool = False
    ttl: Positive = 3600
    max_size: Annotated[float, msgspec.Meta(gt=0, le=65_536)] = 64
    """MiB in each process."""
    max_answer: Annotated[float, msgspec.Meta(gt=0, le=32)] = 1
    """MiB of one answer; a longer one is not kept."""
    shared_by: NonEmptySetting = ""
    """Keys with the same value of this tag share answers; without it each key has its own."""


class FileSettings(_SettingsTable, frozen=True):
    """The whole file."""

    gateway: GatewaySettings = GatewaySettings()
    routing: RoutingSettings = RoutingSettings()
    providers: tuple[ProviderSettings, ...] = ()
    local: LocalSettings = LocalSettings()
    speech: SpeechSettings = SpeechSettings()
    limits: LimitSettings = LimitSettings()
    ledger: LedgerSettings = LedgerSettings()
    cache: CacheSettings = CacheSettings()


class Settings(FileSettings, frozen=True):
    """Everything that configures a process. `environ` is kept for the names that the file may mention."""

    home: Path = Path("~/.svc")
    api_keys: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}
    path: Path | None = None
    """The file that was read."""

    def __repr__(self) -> str:
        return f"Settings(home={self.home})"  # never the keys, nor the environment

    @property
    def registry_root(self) -> Path:
        """Where bundles lie."""
        return Path(self.environ.get("SVC_REGISTRY_ROOT") or self.home / "registry").expanduser()

    def source_location(self, table: str, name: str) -> str:
        """`svc.toml, line 12`, or as much of it as is known, of a name that stands below the head of a table."""
        if self.path is None:
            return "settings"
        is_below_table = False
        for number, line in enumerate(self.path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            is_below_table = is_below_table or table in line
            if is_below_table and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", line.partition("#")[0]):
                return f"{self.path}, line {number}"
        return str(self.path)


def load(
    environ: Mapping[str, str],
    *,
    config: str | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Settings of this process; `overrides` are tables of values from the command line (None is "not given").

    `defaults` hold where the file says nothing.

    Raises UsageError that names the file and the key.
    """
    home = Path(environ.get("SVC_HOME") or "~/.svc").expanduser()
    path = _find_file(config, home)
    tables = _read_toml(path) if path else {}
    for table, values in (defaults or {}).items():
        file_values = tables.get(table, {})
        tables = {**tables, table: {**values, **file_values}} if isinstance(file_values, dict) else tables
    file_settings = _parse_tables(tables, str(path) if path else "settings")
    port_option = (overrides or {}).get("gateway", {}).get("port")
    if port_option is None and (port := environ.get("PORT")):
        tables = _merge_table(tables, "gateway", {"port": _parse_integer("PORT", port)})
        file_settings = _parse_tables(tables, "PORT")
    if overrides:
        for table, values in overrides.items():
            tables = _merge_table(tables, table, {key: value for key, value in values.items() if value is not None})
        file_settings = _parse_tables(tables, "the command line")
    keys = tuple(key.strip() for key in environ.get("SVC_API_KEYS", "").split(",") if key.strip())
    fields = {name: getattr(file_settings, name) for name in FileSettings.__struct_fields__}
    return Settings(**fields, home=home, api_keys=keys, environ=environ, path=path)


def _find_file(config: str | None, home: Path) -> Path | None:
    if config is not None:
        path = Path(config).expanduser()
        if not path.is_file():
            raise UsageError(f"There is no configuration file at {path}.")
        return path
    return next((path for path in (Path("svc.toml"), home / "svc.toml") if path.is_file()), None)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def _merge_table(tables: dict[str, Any], name: str, values: dict[str, Any]) -> dict[str, Any]:
    table = tables.get(name, {})
    return {**tables, name: {**table, **values}} if isinstance(table, dict) else tables


def _parse_tables(tables: dict[str, Any], where: str) -> FileSettings:
    try:
        return msgspec.convert(tables, FileSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_describe_validation_error(str(error))}.") from error


def _describe_validation_error(message: str) -> str:
    """Turns msgspec's "Object contains unknown field `x` - at `$.gateway`" into words of the file."""
    text, _, path = message.partition(" - at `$")
    where = path.rstrip("`").removeprefix(".")
    text = text.replace("Object contains unknown field", "unknown key").replace("Object missing", "there is no")
    return f"{text} in [{where}]" if where else text


def _parse_integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name} is not a number: {value!r}.") from None
