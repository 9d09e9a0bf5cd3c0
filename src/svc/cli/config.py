"""Check the configuration, or show each setting with its source.

Both read the files that `svc gateway` would read. Nothing is started and no provider is called.
`svc config check` exits with 0 if the configuration is valid, with 1 if it has an error, and with 2 for wrong use.

Examples:
  svc config check
  svc config check --config /etc/svc/svc.toml --json
  svc config show
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from svc import settings
from svc.cli import _config_values
from svc.cli._output import print_json, print_table
from svc.console.trusted_proxies import TrustedProxies
from svc.errors import UsageError
from svc.gateway.net.server_tls import load_server_context
from svc.gateway.routing.provider_warnings import provider_warnings
from svc.gateway.routing.providers import build_providers
from svc.gateway.routing.unconfigured_providers import check_entries_without_keys
from svc.gateway.upstream.pool import default_ssl_context
from svc.settings import LocalSettings, Settings
from svc.stores.local_models import find_local_models

_ERROR_LOCATION = re.compile(r"^(?P<file>[^\n]+?), line (?P<line>\d+): |^(?P<toml>[^\n]+?) is not valid TOML: .*")
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions check and show."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("check", "check the configuration; the exit status is 1 if it has an error"),
        ("show", "show each setting with its source, without secrets"),
    ):
        action = verbs.add_parser(name, help=text, allow_abbrev=False)
        action.add_argument(
            "--config", metavar="FILE", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)"
        )
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    if args.config is not None and not Path(args.config).expanduser().is_file():
        raise UsageError(f"There is no configuration file at {args.config}.")
    return _run_check(args) if args.action == "check" else _run_show(args)


def _run_check(args: argparse.Namespace) -> int:
    files: list[str] = []
    errors: list[dict[str, Any]] = []
    warnings: list[str] = []
    try:
        loaded = settings.load(os.environ, config=args.config)
        files = [str(path) for path in loaded.config.files]
        warnings = list(_check(loaded))
    except UsageError as error:
        errors.append(_describe_error(error.message))
    if args.json:
        print_json({"valid": not errors, "files": files, "errors": errors, "warnings": warnings})
        return int(bool(errors))
    for warning in warnings:
        print(f"warning: {warning}")
    for entry in errors:
        print(f"error: {entry['message']}")
    if not errors:
        print(f"valid: {', '.join(files) or 'there is no configuration file, and all settings have defaults'}")
    return int(bool(errors))


def _check(loaded: Settings) -> Iterator[str]:
    """Yield warnings. Raises UsageError for what a start of the gateway would reject."""
    providers = build_providers(loaded)
    default_ssl_context()
    try:
        TrustedProxies(loaded.gateway.trusted_proxies)
    except ValueError as error:
        origin = loaded.config.find_origin("gateway.trusted_proxies") or "settings"
        raise UsageError(f"{origin}: trusted_proxies in [gateway]: {error}.") from error
    if loaded.gateway.tls_cert and loaded.gateway.tls_key:
        load_server_context(loaded.gateway.tls_cert, loaded.gateway.tls_key)
    _check_access_log_folder(loaded)
    yield from check_entries_without_keys(loaded, providers)
    yield from provider_warnings(loaded, providers)
    if loaded.local.enabled:
        yield from _warn_of_missing_models(loaded)


def _check_access_log_folder(loaded: Settings) -> None:
    """Raise UsageError if the folder is missing. The file is not created: its owner is the user of the gateway."""
    path = loaded.telemetry.access_log_file
    if path is not None and not os.path.isdir(Path(path).expanduser().parent):
        origin = loaded.config.find_origin("telemetry.access_log_file") or "settings"
        raise UsageError(f"{origin}: access_log_file in [telemetry]: the folder of {path} does not exist.")


def _warn_of_missing_models(loaded: Settings) -> Iterator[str]:
    """Name the models of [local] that this machine does not have. The check can run on another machine."""
    installed = find_local_models(loaded)
    named = [loaded.local.model] if loaded.local.model != LocalSettings().model or not installed else []
    named += [row.name for row in loaded.local.models]
    for name in dict.fromkeys(named):
        if name not in installed:
            yield f"The model {name} of [local] is not installed on this machine. Add it with: svc models add {name}"


def _describe_error(message: str) -> dict[str, Any]:
    """Return the message with its file and line, which are None if the message names none."""
    found = _ERROR_LOCATION.match(message)
    if found is None:
        return {"message": message, "file": None, "line": None}
    line = found["line"] or next(iter(_TOML_LINE.findall(message)), None)
    return {"message": message, "file": found["file"] or found["toml"], "line": int(line) if line else None}


def _run_show(args: argparse.Namespace) -> int:
    values = _config_values.list_values(settings.load(os.environ, config=args.config))
    if args.json:
        print_json([msgspec.to_builtins(value) for value in values])
    else:
        rows = [(value.key, _config_values.format_value(value.value), value.describe_source()) for value in values]
        print_table([("SETTING", "VALUE", "SOURCE"), *rows])
    return 0
