"""Load the settings into one frozen object. Precedence: command line > environment > svc.toml > default.

The keys of the file are described in docs/reference/configuration.md. Each docstring names the unit.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from svc.config_file import INCLUDE_KEY, VARIABLE_NAME_PATTERN, ConfigTables, read_config_file
from svc.errors import UsageError
from svc.setting_hints import hint_for_error
from svc.state_folder import find_state_folder
from svc.wire.chat import UpstreamOverrides
from svc.wire.toml_errors import find_error_path, list_allowed_values
from svc.wire.type_names import with_json_types

Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
TokensPerSecond = Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0)]
LimitPerMinute = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
NonEmptySetting = Annotated[str, msgspec.Meta(min_length=1)]
UsdPerMillionTokens = Annotated[float, msgspec.Meta(ge=0)]
_TABLE_HEADER_PATTERN = re.compile(r"""\s*\[\[?[\w.\s"'-]+\]\]?\s*(?:#.*)?$""")
_LINE_WITHOUT_COMMENT_PATTERN = re.compile(r"""(?:[^#"']|"(?:\\.|[^"\\])*"|'[^']*'|["'])*""")
_SIZE_PATTERN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([KMGT])(i?)B", re.ASCII)
RoutingStrategy = Literal["order", "weighted", "least_busy", "cheapest"]
GatewayRole = Literal["all", "data", "admin"]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
PROVIDER_NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
DEFAULT_DIALECT = "openai"
"""The dialect of a provider without `dialect`."""


class _SettingsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file. An unknown key is an error that names the key."""


class GatewaySettings(_SettingsTable, frozen=True):
    """`[gateway]`."""

    host: NonEmptySetting = "127.0.0.1"
    """Address to listen on."""
    port: Port = 3000
    """Port to listen on. `0` selects a free one."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    """Processes that share the port."""
    role: GatewayRole = "all"
    """The routes that this gateway serves.

    `data` serves the model endpoints and speech. `admin` serves the console, the admin API and usage.
    """
    tls_cert: NonEmptySetting | None = None
    """A PEM file with the certificate of this gateway, and those between it and the root. Turns TLS on.

    `SIGHUP` reads it again, for new connections.
    """
    tls_key: NonEmptySetting | None = None
    """A PEM file with the private key of `tls_cert`, without a password."""
    connect_timeout: Positive = 5
    """Seconds until a connection to a provider is established."""
    first_byte_timeout: Positive = 60
    """Seconds until the first byte of a provider's response.

    For a model of this machine, it limits only streams: another response begins when it is complete.
    """
    idle_timeout: Positive = 30
    """Seconds between two chunks of a provider's response."""
    stream_keep_alive: Positive = 15
    """Seconds without a byte for the client after which a stream gets a keep-alive.

    It is a comment, or `ping` in the Anthropic dialect, and does not extend `idle_timeout`.
    """
    total_timeout: Positive = 600
    """Seconds for a whole response, over all attempts."""
    write_timeout: Positive = 60
    """Seconds until the gateway closes the connection of a client that reads nothing, WebSockets included.

    Meanwhile the gateway does not read from this client.
    """
    header_timeout: Positive = 10
    """Seconds until the whole head of a request has arrived."""
    body_timeout: Positive = 60
    """Seconds until the whole body of a request has arrived."""
    keep_alive: Positive = 75
    """Seconds that an idle client connection stays open."""
    max_header: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    """KiB of the head of a request, with the request line.

    A longer head, or more than 100 headers, gets 431.
    """
    max_body: Positive = 32
    """MiB of the body of a request. A larger body gets 413."""
    drain_timeout: Seconds = 30
    """Seconds that in-flight requests get after SIGTERM."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the gateway, such as `["https://app.example"]`, or `["*"]`.

    They may also read bundles of the registry.
    """
    hosts: tuple[NonEmptySetting, ...] = ()
    """Values of `Host` that a listener on a loopback address accepts without a key, in addition to loopback names."""
    trusted_proxies: tuple[NonEmptySetting, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` counts, such as `10.0.0.0/8`.

    It limits login attempts of the console for each client address.
    """
    access_log: bool = True
    """Write one line for each response to standard error."""

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_cert" if self.tls_cert is None else "tls_key"
            raise ValueError(f"`tls_cert` and `tls_key` belong together, and `{missing}` is missing")


class RoutingSettings(_SettingsTable, frozen=True):
    """`[routing]`."""

    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    """Retries at one backend. The gateway retries only until it has sent the first byte to the client."""
    retry_share: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.2
    """Retries at a provider, as a share of its requests in the last 10 seconds.

    10 retries are always allowed.
    """
    hedge_after: Seconds = 0
    """Seconds without a first byte after which the gateway also tries the next backend.

    `0` turns hedging off.
    """
    breaker: bool = True
    """Skip a backend if half of its requests in the last 10 seconds failed or were slow.

    At least 20 requests are needed.
    """
    slow_after: Seconds = 0
    """Seconds to the first byte from which a request counts as slow.

    `0` means five times the usual time of the backend, and at least 2 seconds.
    """
    min_pace: TokensPerSecond = 0
    """Tokens per second, over 5 seconds, below which the gateway aborts a stream. `0` means no minimum."""
    resume: bool = False
    """Continue an interrupted text stream at the next backend.

    The backend gets the text so far as the beginning of the assistant's message. Tool calls are never resumed.
    """
    fallbacks: dict[str, tuple[str, ...]] = {}
    """For each model, the models to try next, in order.

    A name that no provider has is an error that names its line.
    """
    strategy: RoutingStrategy = "order"
    """The provider that a request tries first, if several have its model. The others follow if it fails.

    `order` is the order of the file. `weighted` is random, by `weights`. `least_busy` is the provider with the fewest
    requests in flight in this process, then the fastest. `cheapest` is the one with the lowest price of the request.
    """
    strategies: dict[str, RoutingStrategy] = {}
    """For each model, its own strategy."""
    weights: dict[str, dict[str, Weight]] = {}
    """For each model with the strategy `weighted`, the share of each provider.

    A provider that is not named has the weight 1. A provider with the weight 0 gets a request only after the others.
    """


def _reject_wildcard(key: str, name: str) -> None:
    if "*" in name:
        raise ValueError(f"`{key}` must be one name, because there are no wildcards such as {name!r}")


class ModelSettings(_SettingsTable, frozen=True):
    """One entry of `providers.models`. Prices are in USD per million tokens."""

    id: NonEmptySetting
    """The name that clients use. There are no wildcards: a `*` is an error."""
    upstream_id: NonEmptySetting | None = None
    """The name at the provider, if it differs."""
    context_window: Annotated[int, msgspec.Meta(ge=1)] = 128_000
    """Tokens of prompt and response together."""
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The maximum number of tokens of a response.

    Without it, providers with the dialect `anthropic` get `max_tokens: 4096`, and others get no limit. A request that
    sets none reserves 1,024 tokens for each of its `n` responses, but at most a tenth of the key's limit.
    """
    use_case: str | None = None
    """Free text for the list of models."""
    kind: Literal["chat", "embedding", "speech"] = "chat"
    """The purpose of the model. An endpoint returns 400 for a model of another kind."""
    input_price: UsdPerMillionTokens | None = None
    """USD per million input tokens. A speech model counts characters, unless its name begins with `gpt-`."""
    output_price: UsdPerMillionTokens | None = None
    """USD per million output tokens."""
    cached_input_price: UsdPerMillionTokens | None = None
    """USD per million input tokens that the provider read from its cache. Default: `input_price`."""
    cache_write_price: UsdPerMillionTokens | None = None
    """USD per million input tokens that the provider wrote to its cache. Default: `input_price`."""

    def __post_init__(self) -> None:
        _reject_wildcard("id", self.id)


class AccountSettings(_SettingsTable, frozen=True):
    """One entry of `providers.accounts`: another key, or another address, of the same provider."""

    api_key_env: str | None = None
    """The environment variable with the key. An account whose variable is not set is ignored."""
    api_key_file: str | None = None
    """A file with the key. It has precedence over `api_key_env`."""
    base_url: str | None = None
    """The address, if it differs from that of the entry."""
    weight: Positive = 1
    """The share of requests, relative to the other accounts."""


class ProviderSettings(_SettingsTable, frozen=True):
    """One entry of `[[providers]]`. None keeps the value of the built-in entry."""

    name: Annotated[str, msgspec.Meta(pattern=PROVIDER_NAME_PATTERN)]
    """The name, in lower case. The list of models has it as `owned_by`. An entry with a preset may omit it."""
    preset: str | None = None
    """The vendor whose values apply where the entry has none: azure, gemini, mistral, openrouter, ollama or vllm."""
    dialect: str | None = None
    """`openai` (the default), `anthropic`, or the dialect of an installed plug-in."""
    base_url: str | None = None
    """The address as the vendor's SDK takes it: with `/v1` for `openai`, without for `anthropic`.

    `{model}` in its path stands for the model's name at the provider. An address that ends in `/chat/completions` or
    `/messages` is rejected.
    """
    api_version: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None = None
    """The value of the query parameter `api-version`, which Azure requires. Without it, requests have no query."""
    api_key_env: str | None = None
    """The name of the environment variable with the key. Without a key, requests carry none."""
    api_key_file: str | None = None
    """A file with the key, such as a mounted secret. It has precedence over `api_key_env`.

    `SIGHUP` reads it again. A file that is empty or cannot be read is an error.
    """
    api_key_header: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """The request header with the key alone, such as `api-key`. Without it, the key is sent as the dialect requires."""
    proxy: str | None = None
    """The HTTP proxy of its requests, such as `http://user:password@proxy.example:3128`, or `direct` for none.

    Without it, `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` apply.
    """
    models: tuple[ModelSettings, ...] | None = None
    """The models: a list of tables."""
    accounts: tuple[AccountSettings, ...] | None = None
    """More keys or addresses: a list of tables."""
    responses: bool | None = None
    """Whether the provider serves the Responses API at `/responses`.

    Then it gets requests for `/v1/responses` unchanged. For other providers the gateway translates them.
    """
    quirks: UpstreamOverrides | None = None
    """Differences from the dialect: a table."""


class AliasSettings(_SettingsTable, frozen=True):
    """One entry of `[[aliases]]`: another name of a model."""

    name: NonEmptySetting
    """The name that clients use. It has precedence over a model of the same name."""
    model: NonEmptySetting
    """The model. A name that no provider has is an error that names its line."""

    def __post_init__(self) -> None:
        _reject_wildcard("name", self.name)


class LocalModelSettings(_SettingsTable, frozen=True):
    """One entry of `[[local.models]]`: how to run an installed model."""

    name: NonEmptySetting
    """The name of the model, as in `svc models ls`."""
    context_window: Annotated[int, msgspec.Meta(ge=128, le=1 << 24)] | None = None
    """Tokens of prompt and response together, which requests at the same time share.

    Without it, what the model was trained for, but at most 8,192. Memory grows with it.
    """
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The maximum number of tokens of a response. Without it 2,048."""
    gpu_layers: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None
    """Layers that run on the GPU. `0` uses the CPU alone. Without it, as many as fit."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=512)] | None = None
    """Threads of the CPU. Without it, all cores but one, and at most 8. A CPU quota counts as that many cores."""
    parallel: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    """Requests that run at the same time. More requests wait. Without it 4."""


class LocalSettings(_SettingsTable, frozen=True):
    """`[local]`: the models of this machine."""

    enabled: bool = False
    """Offer the installed models of this machine. `svc up` does so unless the file says `false`."""
    model: str = "smollm2-135m"
    """The model that is loaded at the start. `idle_timeout` does not unload it.

    Other models are loaded by their first request."""
    memory: str | None = None
    """Memory of all loaded models together, such as `"4GiB"`. Each of several workers has an equal part.

    If a model does not fit, the least recently used one that is idle is unloaded. Without this setting, three quarters
    of the memory of the machine, container or systemd unit.
    """
    idle_timeout: Seconds = 900
    """Seconds without a request after which a model is unloaded. `0` means never."""
    load_timeout: Positive = 120
    """Seconds that a request waits until its model is loaded."""
    max_queue: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 128
    """Embeddings requests that one model has in progress or waiting. Further ones get 429.

    A key may have as many requests there as there are free places, so that one key alone has half of them.
    """
    models: tuple[LocalModelSettings, ...] = ()
    """How to run single models: a list of tables."""

    def __post_init__(self) -> None:
        if self.memory is not None and not self.memory_bytes(0):
            raise ValueError('`memory` must be a size such as "4GiB" or "512MiB"')
        names = [row.name for row in self.models]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"`models` has two entries for {twice!r}")

    def memory_bytes(self, default: int) -> int:
        """Return `memory` in bytes, 0 if it is no size, or `default` if it is not set."""
        if self.memory is None:
            return default
        match = _SIZE_PATTERN.fullmatch(self.memory)
        if match is None:
            return 0
        base = 1024 if match[3] else 1000
        return int(float(match[1]) * base ** (1 + "KMGT".index(match[2])))


class SpeechSettings(_SettingsTable, frozen=True):
    """`[speech]`."""

    default_model: str = "moonshine-tiny-en"
    """The speech model of a session without `model`."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Speech worker processes."""
    max_sessions: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Live sessions for each worker."""
    model_dirs: tuple[str, ...] = ()
    """Folders with models for `model_dir` of a session, in addition to `$SVC_HOME/models` and the registry."""
    idle_timeout: Positive = 120
    """Seconds without a message from the client after which a live session is closed."""
    max_duration: Positive = 14400
    """Seconds after which a live session is closed."""
    default_voice: str = "piper-joe-en-us"
    """The voice that is loaded at the start, or when it is installed. Others are loaded at their first request."""
    max_syntheses: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Texts that voices of this machine speak at a time. One key may have all but one of them. More wait."""
    max_queue: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 32
    """Texts that voices of this machine speak, or that wait for a voice. Further ones get 429.

    A key may have as many texts there as there are free places, so that one key alone has half of them.
    """
    max_upload_seconds: Positive = 3600
    """Seconds of audio in an uploaded file. A longer file gets 400."""


class LimitSettings(_SettingsTable, frozen=True):
    """`[limits]`: defaults for keys without their own limits. 0 means no limit."""

    rpm: LimitPerMinute = 0
    """Requests per minute of a key without its own limit. `0` means no limit."""
    tpm: LimitPerMinute = 0
    """Tokens per minute of a key without its own limit. `0` means no limit."""
    on_redis_down: Literal["local", "refuse"] = "local"
    """The behaviour while Redis does not reply in time, for keys with limits.

    `local` applies the limits on each machine separately. `refuse` returns 503.
    """


class LedgerSettings(_SettingsTable, frozen=True):
    """`[ledger]`."""

    retain_days: Seconds = 90
    """Days that single entries are kept. Hourly and daily sums stay. `0` keeps entries forever."""
    journal_max: Positive = 1024
    """MiB of journals that may wait on disk for an unavailable database."""
    when_full: Literal["continue", "refuse"] = "continue"
    """The behaviour while entries can be written to neither the database nor the disk.

    `continue` serves requests without entries. `refuse` returns 507.
    """


class CacheSettings(_SettingsTable, frozen=True):
    """`[cache]`: the cache of responses."""

    enabled: bool = False
    """Store responses, and send a stored response for the same request."""
    ttl: Positive = 3600
    """Seconds that a response is stored."""
    max_size: Annotated[float, msgspec.Meta(gt=0, le=65_536)] = 64
    """MiB in the memory of each process. The least recently used response is removed first."""
    max_answer: Annotated[float, msgspec.Meta(gt=0, le=32)] = 1
    """MiB of one response. A larger response is not stored."""
    shared_by: NonEmptySetting = ""
    """The name of a tag. Keys with the same value of this tag share responses.

    A key without the tag shares with no other key. Without this setting, no keys share responses.
    """


class ResponsesSettings(_SettingsTable, frozen=True):
    """`[responses]`: responses of `/v1/responses` that later requests can refer to."""

    store: bool = False
    """Keep responses in the database, for `previous_response_id` and `GET /v1/responses/{id}`.

    Only the key that made a response can read it. A request with `store: false` is not kept.
    """
    retain_days: Seconds = 30
    """Days that a response is kept after the last response that continues it. `0` keeps responses forever."""


class ConsoleSettings(_SettingsTable, frozen=True):
    """`[console]`."""

    enabled: bool = False
    """Serve the web console at `/console/`. `svc up` turns it on."""


class TelemetrySettings(_SettingsTable, frozen=True):
    """`[telemetry]`."""

    level: Literal["debug", "info", "warning", "error"] = "warning"
    """The lowest level of log records on standard error. The access log has no level."""
    log: Literal["json", "text"] = "json"
    """The format of log records and of the access log. `text`: time, level, logger, message, key=value."""
    access_log_file: NonEmptySetting | None = None
    """A file for the access log instead of standard error.

    The gateway opens it again after it was renamed, and after SIGUSR1.
    """
    content: bool = False
    """Put prompts and answers into the spans of sampled chats, up to 64 KiB each. They may have personal data."""


class FileSettings(_SettingsTable, frozen=True):
    """The tables of the file."""

    gateway: GatewaySettings = GatewaySettings()
    routing: RoutingSettings = RoutingSettings()
    providers: tuple[ProviderSettings, ...] = ()
    aliases: tuple[AliasSettings, ...] = ()
    local: LocalSettings = LocalSettings()
    speech: SpeechSettings = SpeechSettings()
    limits: LimitSettings = LimitSettings()
    ledger: LedgerSettings = LedgerSettings()
    cache: CacheSettings = CacheSettings()
    responses: ResponsesSettings = ResponsesSettings()
    console: ConsoleSettings = ConsoleSettings()
    telemetry: TelemetrySettings = TelemetrySettings()


class Settings(FileSettings, frozen=True):
    """All settings of a process. `environ` has the variables that the file refers to."""

    fast_paths: bool = True
    """Whether bytes that equal earlier ones are compared instead of parsed. See SVC_FASTPATH."""
    home: Path = Path("~/.svc")
    api_keys: tuple[str, ...] = ()
    console_key: str | None = None
    """The key behind the login link of `svc up`, with all scopes."""
    environ: Mapping[str, str] = {}
    path: Path | None = None
    """The main file that was read, or None."""
    config: ConfigTables = ConfigTables()
    """The tables of all files that were read, with the origin of each value."""

    def __repr__(self) -> str:
        return f"Settings(home={self.home})"  # never contains keys or environment variables

    @property
    def models_by_alias(self) -> dict[str, str]:
        """Return the model of each alias."""
        return {alias.name: alias.model for alias in self.aliases}

    @property
    def registry_root(self) -> Path:
        """Return the folder of bundles."""
        return Path(self.environ.get("SVC_REGISTRY_ROOT") or self.home / "registry").expanduser()

    def source_location(self, table: str, name: str, *, key: str = "", occurrence: int = 1) -> str:
        """Return the location of a name in a table, such as `svc.toml, line 12`, as far as it can be determined.

        With `key`, the name is the value of this key. `occurrence` counts from 1.
        """
        if self.path is None:
            return "settings"
        is_below_table = False
        pattern = rf"(?<![\w.-]){re.escape(name)}(?![\w.-])"
        if key:
            pattern = rf"""(?<![\w.-]){key}["']?\s*=\s*["']{re.escape(name)}["']"""
        for file, number, line in self.config.read_lines():
            is_header = _TABLE_HEADER_PATTERN.match(line) is not None
            is_below_table = (is_below_table and number > 1 and not is_header) or table in line
            if is_below_table:
                occurrence -= len(re.findall(pattern, _strip_comment(line)))
                if occurrence <= 0:
                    return f"{file}, line {number}"
        return str(self.path)


def _strip_comment(line: str) -> str:
    match = _LINE_WITHOUT_COMMENT_PATTERN.match(line)
    return match[0] if match is not None else line


def load(
    environ: Mapping[str, str],
    *,
    config: str | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Return the settings. `overrides` are tables of command line values, where None means "not given".

    `defaults` apply where the file has no value. Raises UsageError with the file and the key.
    """
    home = find_state_folder(environ)
    path = _find_file(config, home)
    config_tables = read_config_file(path, environ) if path else ConfigTables()
    tables = _add_preset_names(config_tables.tables)
    for table, values in (defaults or {}).items():
        file_values = tables.get(table, {})
        tables = {**tables, table: {**values, **file_values}} if isinstance(file_values, dict) else tables
    file_settings = _parse_tables(tables, config_tables)
    _check_key_variables(file_settings, config_tables, environ)
    port_option = (overrides or {}).get("gateway", {}).get("port")
    if port_option is None and (port := environ.get("PORT")):
        tables = _merge_table(tables, "gateway", {"port": _parse_integer("PORT", port)})
        file_settings = _parse_override(tables, "PORT")
    if overrides:
        for table, values in overrides.items():
            tables = _merge_table(tables, table, {key: value for key, value in values.items() if value is not None})
        file_settings = _parse_override(tables, None)
    keys = tuple(key.strip() for key in environ.get("SVC_API_KEYS", "").split(",") if key.strip())
    if file_settings.gateway.role == "admin":  # without model endpoints, no local model gets a request
        file_settings = msgspec.structs.replace(
            file_settings, local=msgspec.structs.replace(file_settings.local, enabled=False)
        )
    fields = {name: getattr(file_settings, name) for name in FileSettings.__struct_fields__}
    return Settings(
        **fields,
        home=home,
        api_keys=keys,
        environ=environ,
        path=path,
        config=config_tables,
        fast_paths=_parse_switch("SVC_FASTPATH", environ),
    )


def _find_file(config: str | None, home: Path) -> Path | None:
    if config is not None:
        path = Path(config).expanduser()
        if not path.is_file():
            raise UsageError(f"There is no configuration file at {path}.")
        return path
    return next((path for path in (Path("svc.toml"), home / "svc.toml") if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    """Return whether a file exists. Raises UsageError if that is not known, because a folder denies access."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Check the owner and the permissions of the file and of its "
            "folders."
        ) from error


def _add_preset_names(tables: dict[str, Any]) -> dict[str, Any]:
    """Give each entry of `[[providers]]` without a name the name of its preset."""
    entries = tables.get("providers")
    if not isinstance(entries, list):
        return tables
    return {**tables, "providers": [_add_preset_name(entry) for entry in entries]}


def _add_preset_name(entry: Any) -> Any:
    if not isinstance(entry, dict) or "name" in entry or not isinstance(entry.get("preset"), str):
        return entry
    name = entry["preset"] if re.fullmatch(PROVIDER_NAME_PATTERN, entry["preset"]) else "unnamed"
    return {**entry, "name": name}  # the check of the preset reports an invalid one


def _merge_table(tables: dict[str, Any], name: str, values: dict[str, Any]) -> dict[str, Any]:
    table = tables.get(name, {})
    return {**tables, name: {**table, **values}} if isinstance(table, dict) else tables


def _parse_tables(tables: dict[str, Any], config_tables: ConfigTables) -> FileSettings:
    try:
        return msgspec.convert(tables, FileSettings)
    except msgspec.ValidationError as error:
        message = str(error)
        table_path, named_key = find_error_path(message), re.match("`([a-z_]+)`", message)
        path = f"{table_path}.{named_key[1]}" if named_key is not None and table_path else table_path
        origin = config_tables.find_origin(path)
        location = origin or (config_tables.files[-1] if config_tables.files else "settings")
        allowed = list_allowed_values(FileSettings, message) if message.startswith("Invalid enum value") else ""
        end = f"; allowed: {allowed}" if allowed else ""
        hint = hint_for_error(FileSettings, message)
        raise UsageError(f"{location}: {_describe_validation_error(message)}{end}. {hint}".rstrip()) from error


def _check_key_variables(file_settings: FileSettings, config_tables: ConfigTables, environ: Mapping[str, str]) -> None:
    """Raise UsageError if `api_key_env` has a key in place of the name of its variable. The message has no value."""
    for number, provider in enumerate(file_settings.providers):
        names = {f"providers[{number}].api_key_env": provider.api_key_env}
        for account_number, account in enumerate(provider.accounts or ()):
            names[f"providers[{number}].accounts[{account_number}].api_key_env"] = account.api_key_env
        for path, name in names.items():
            origin = config_tables.find_origin(path)
            # The value of `${NAME}` may be a key. The name of a variable that is not set appears in errors.
            is_expanded_key = bool(name and origin and origin.variables and name not in environ)
            if name and (is_expanded_key or not VARIABLE_NAME_PATTERN.fullmatch(name)):
                raise UsageError(
                    f"{origin or 'settings'}: `api_key_env` must be the name of an environment variable, such as "
                    "OPENAI_API_KEY, and not the key."
                )


def _describe_validation_error(message: str) -> str:
    """Rewrite msgspec's "Object contains unknown field `x` - at `$.gateway`" in terms of the file."""
    text, _, path = message.partition(" - at `$")
    table_path = path.rstrip("`").removeprefix(".")
    text = text.replace("Object contains unknown field", "unknown key").replace("Object missing", "there is no")
    if table_path and text.endswith(f"`{INCLUDE_KEY}`"):
        text += ", which stands above the first table,"
    text = with_json_types(text).replace(">=", "at least").replace("<=", "at most")
    return f"{text} in [{table_path}]" if table_path else text


def _parse_override(tables: dict[str, Any], variable: str | None) -> FileSettings:
    """Parse the tables after a value of `[gateway]` came from a variable, else from an option. Raises UsageError."""
    try:
        return msgspec.convert(tables, FileSettings)
    except msgspec.ValidationError as error:
        key = str(error).rpartition(" - at `$.gateway.")[2].rstrip("`")
        name = variable or f"--{key.replace('_', '-')}"
        annotation = get_type_hints(GatewaySettings, include_extras=True).get(key)
        for limits in getattr(annotation, "__metadata__", ()):
            if limits.ge is not None and limits.le is not None:
                raise UsageError(f"{name} must be {limits.ge} to {limits.le}.") from error
        raise UsageError(f"{name}: {_describe_validation_error(str(error))}.") from error


def _parse_switch(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a variable is 1, or not set. Raises UsageError if it is neither 0 nor 1."""
    value = environ.get(name) or "1"
    if value not in ("0", "1"):
        raise UsageError(f"{name} must be 0 or 1, not {value!r}.")
    return value == "1"


def _parse_integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name} must be a number, not {value!r}.") from None
