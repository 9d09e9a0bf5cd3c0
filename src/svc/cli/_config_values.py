"""The settings of a process with the source of each value, without secrets: `svc config show`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from svc.gateway.routing.presets import configured_entries
from svc.gateway.routing.unconfigured_providers import key_variables
from svc.settings import AccountSettings, FileSettings, ProviderSettings, Settings

HIDDEN: Final = "***"
MIN_SECRET_CHARS: Final = 6
"""Shorter values of variables are not searched in other values: they would hide ordinary words."""
SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
FILE_NAME: Final = re.compile(r"_FILE$")
URL_CREDENTIALS: Final = re.compile(r"://[^\s]*@")
URL_PASSWORD: Final = re.compile(r"(?<=[?&])(password|sslpassword)=[^&\s]*", re.IGNORECASE)
VARIABLES: Final = (
    *("SVC_HOME", "SVC_API_KEYS", "SVC_REGISTRY_KEYS", "SVC_REGISTRY_ROOT", "SVC_FASTPATH"),
    *("SVC_DATABASE_URL", "SVC_REDIS_URL", "SVC_BLOB_URL"),
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Variables that configure a process, in addition to those of the providers."""


class SettingValue(msgspec.Struct, frozen=True, kw_only=True):
    """One setting with its source. `file` and `line` are those of a value from a file."""

    key: str
    value: Any
    source: Literal["default", "file", "environment"]
    file: str | None = None
    line: int | None = None
    variables: tuple[str, ...] = ()
    """The variables that the value comes from."""

    def describe_source(self) -> str:
        """Return the source for a table: `default`, `svc.toml:12`, or `$PORT`."""
        variables = ", ".join(f"${name}" for name in self.variables)
        if self.file is None:
            return variables or self.source
        location = f"{self.file}:{self.line}" if self.line else self.file
        return f"{location} ({variables})" if variables else location


def list_values(settings: Settings) -> list[SettingValue]:
    """Return all settings of the files' tables, then the variables that are set. Secrets are replaced by `***`."""
    redactor = _Redactor(settings.environ)
    return [*_list_file_values(settings, redactor), *_list_variables(settings, redactor)]


def format_value(value: Any) -> str:
    """Return a value as TOML writes it, and nothing for a value that is not set."""
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _list_file_values(settings: Settings, redactor: _Redactor) -> Iterator[SettingValue]:
    for name in FileSettings.__struct_fields__:
        table = getattr(settings, name)
        if isinstance(table, msgspec.Struct):
            for field in table.__struct_fields__:
                for key, value in _flatten(f"{name}.{field}", msgspec.to_builtins(getattr(table, field))):
                    yield _build_value(settings, redactor, key, value)
        else:  # an array of tables has only the keys of the file: None of the others applies by itself
            for key, value in _flatten(name, settings.config.tables.get(name, [])):
                yield _build_value(settings, redactor, key, value)


def _flatten(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of tables and arrays of tables. An array of plain values is a leaf."""
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _flatten(f"{key}.{name}", entry)
    elif isinstance(value, list | tuple) and any(isinstance(entry, dict) for entry in value):
        for index, entry in enumerate(value):
            yield from _flatten(f"{key}[{index}]", entry)
    else:
        yield key, value


def _build_value(settings: Settings, redactor: _Redactor, key: str, value: Any) -> SettingValue:
    if key == "gateway.port" and settings.environ.get("PORT"):
        return SettingValue(key=key, value=value, source="environment", variables=("PORT",))
    origin = settings.config.find_origin(key) if key in settings.config.owners else None
    if origin is None:
        return SettingValue(key=key, value=redactor.redact(value), source="default")
    variables = _variables_of(settings, key, value, origin.variables)
    return SettingValue(
        key=key,
        value=redactor.redact(value, variables),
        source="file",
        file=str(origin.file),
        line=origin.line or None,
        variables=variables,
    )


def _variables_of(settings: Settings, key: str, value: Any, variables: tuple[str, ...]) -> tuple[str, ...]:
    """Return the variables that a value refers to, with those of the entries of an array."""
    for index in range(len(value) if isinstance(value, list | tuple) else 0):
        entry = settings.config.find_origin(f"{key}[{index}]")
        variables = (*variables, *(entry.variables if entry is not None else ()))
    return tuple(dict.fromkeys(variables))


def _list_variables(settings: Settings, redactor: _Redactor) -> Iterator[SettingValue]:
    for name in _variable_names(settings):
        if value := settings.environ.get(name):
            yield SettingValue(
                key=name, value=redactor.redact_variable(name, value), source="environment", variables=(name,)
            )


def _variable_names(settings: Settings) -> list[str]:
    names = list(VARIABLES)
    for variables in key_variables().values():
        names += variables
        if letter := re.fullmatch(r"PROVIDER_([A-Z])_API_KEY", variables[0]):
            names += [f"{variables[0]}_FILE", f"PROVIDER_{letter[1]}_BASE_URL"]
    for entry in configured_entries(settings):
        accounts: list[ProviderSettings | AccountSettings] = [entry, *(entry.accounts or ())]
        names += [account.api_key_env for account in accounts if account.api_key_env]
    return list(dict.fromkeys(names))


class _Redactor:
    """Replaces secrets in values."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {value for name, text in environ.items() if _is_secret(name) for value in text.split(",")}
        self._secrets = sorted((value for value in values if len(value) >= MIN_SECRET_CHARS), key=len, reverse=True)

    def redact(self, value: Any, variables: tuple[str, ...] = ()) -> Any:
        """Return the value of a setting without secrets. `variables` are those that the value refers to."""
        if isinstance(value, list | tuple):
            return [self.redact(entry, variables) for entry in value]
        if not isinstance(value, str):
            return value
        if any(_is_secret(name) for name in variables):
            return HIDDEN
        return self._redact_text(value)

    def redact_variable(self, name: str, value: str) -> str:
        """Return the value of a variable without secrets."""
        is_known = name in VARIABLES or FILE_NAME.search(name) or name.endswith("_BASE_URL")
        return HIDDEN if _is_secret(name) or not is_known else self._redact_text(value)

    def _redact_text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return URL_PASSWORD.sub(rf"\1={HIDDEN}", URL_CREDENTIALS.sub(f"://{HIDDEN}@", text))


def _is_secret(name: str) -> bool:
    """Return whether a variable of this name holds a secret, and not the path of a file with one."""
    return SECRET_NAME.search(name) is not None and FILE_NAME.search(name) is None
