"""Show what is configured, reachable and missing, and how to fix it.

Each provider gets one `GET` of its model list, with its key, which is free of charge.
Database, Redis and blob store are checked with their credentials. Keys and passwords are never printed.
The folders of the journal and of the bundles must be writable, with 16 MiB of free space. Below 256 MiB is reported.
So is a Python that was built without optimisations.
The exit status is 1 if something that is configured does not work, such as a key that a provider rejects.

Examples:
  svc doctor
  svc doctor --json
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from svc import settings
from svc.cli import _doctor_checks, _local_gateway, _probe
from svc.cli._doctor_checks import CheckResult
from svc.cli._output import print_json, print_table
from svc.cli._probe import ProbeFailed
from svc.errors import SvcError, UsageError
from svc.gateway.routing.presets import configured_entries
from svc.gateway.routing.provider_addresses import MODEL_PLACEHOLDER
from svc.gateway.routing.providers import Provider, build_providers
from svc.gateway.routing.unconfigured_providers import key_variables, missing_keys, models_without_key
from svc.gateway.upstream.pool import default_ssl_context
from svc.recipes import make, recipe
from svc.settings import RoutingSettings, Settings
from svc.state_folder import find_state_folder
from svc.stores.local_models import find_local_models

MAX_CONCURRENT_PROBES: Final = 16
VERSION_SEGMENT = re.compile(r"/v\d")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration and output options."""
    parser.add_argument("--config", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)")
    parser.add_argument("--json", action="store_true", help="print a list of objects")


def run(args: argparse.Namespace) -> int:
    """Run the checks, and print the results."""
    results = list(_run_checks(args.config))
    if args.json:
        print_json([msgspec.to_builtins(finding) for finding in results])
    else:
        rows = [(finding.state, finding.subject, finding.detail) for finding in results]
        print_table(rows, state_column=0, has_header=False)
        for finding in results:
            if finding.advice:
                print(f"{finding.subject}: {finding.advice}")
    return 1 if any(finding.state == "bad" for finding in results) else 0


def _run_checks(config_path: str | None) -> Iterator[CheckResult]:
    yield _doctor_checks.check_python()
    yield _check_home(find_state_folder(os.environ))
    try:
        loaded = settings.load(os.environ, config=config_path)
    except UsageError as error:
        yield CheckResult("settings", "bad", error.message, "fix that file, or select another one with --config")
        return
    yield CheckResult("settings", "ok", "read")
    yield from _doctor_checks.check_journal(loaded.home)
    yield from _doctor_checks.check_disk_space(loaded)
    yield from _doctor_checks.check_temporary_folder()
    yield from _doctor_checks.check_extras()
    for name in (loaded.local.model, loaded.speech.default_model):
        yield _check_model(name, loaded)
    yield from _check_providers(loaded)
    database = _doctor_checks.check_database(loaded)
    yield _doctor_checks.check_client_keys(loaded, can_read_keys=database.state == "ok")
    yield database
    yield from _doctor_checks.check_redis(loaded)
    yield _doctor_checks.check_blob_store(loaded)
    running_url = _local_gateway.find_gateway(loaded.home)
    yield _check_up(running_url)
    yield _check_port("gateway port", loaded.gateway.host, loaded.gateway.port, running_url)
    yield _check_port("registry port", loaded.gateway.host, _local_gateway.DEFAULT_REGISTRY_PORT, running_url)


def _check_home(home: Path) -> CheckResult:
    existing = _doctor_checks.find_existing_folder(home)
    if not existing.is_dir():
        problem = "is not a folder"
    elif not os.access(existing, os.X_OK):
        problem = "is not accessible to this user"
    elif not os.access(existing, os.W_OK):
        problem = "is not writable"
    else:
        return CheckResult("state folder", "ok", str(home))
    detail = f"{existing} {problem}" if existing == home else f"{home} cannot be created, because {existing} {problem}"
    return CheckResult("state folder", "bad", detail, "set SVC_HOME to a writable folder")


def _check_model(name: str, config: Settings) -> CheckResult:
    try:
        if name in find_local_models(config):
            return CheckResult(f"model {name}", "ok", "present")
        is_made = make.is_made(recipe.load_recipe(name, config.home / "recipes"), config.registry_root)
    except SvcError as error:
        return CheckResult(f"model {name}", "off", error.message)
    except OSError as error:
        detail = f"{error.filename or config.home} cannot be read: {error.strerror}"
        return CheckResult(f"model {name}", "bad", detail, "check the owner and the permissions of its folders")
    if is_made:
        return CheckResult(f"model {name}", "ok", "present")
    return CheckResult(f"model {name}", "off", "not installed", f"svc models add {name} (svc up does it automatically)")


def _check_providers(config: Settings) -> Iterator[CheckResult]:
    try:
        providers = {provider.name: provider for provider in build_providers(config)}
    except UsageError as error:
        yield CheckResult("providers", "bad", error.message, "fix the entry in svc.toml, or the variable")
        return
    for name, (*_, variable) in key_variables().items():  # the vendor's variable, which users know
        if name not in providers:
            yield CheckResult(
                f"provider {name}", "off", "has no key, so its models are not available", f"set {variable}"
            )
    for name, variable in missing_keys(config):
        detail = (
            "an account has no key and is ignored"
            if name in providers
            else "has no key, so its models are not available"
        )
        yield CheckResult(f"provider {name}", "off", detail, f"set {variable}")
    if not providers:
        yield _check_no_providers(config)
    yield from _check_shadowed_models(providers, config.routing)
    yield from _check_aliases(config, providers)
    try:
        tls = default_ssl_context()
    except UsageError as error:
        yield CheckResult("certificates", "bad", error.message, "fix SSL_CERT_FILE, or unset it")
        return
    with ThreadPoolExecutor(MAX_CONCURRENT_PROBES) as executor:  # each can wait for its name server and its timeout
        probes = [
            executor.submit(
                _check_provider,
                f"provider {name}" if number == 1 else f"provider {name}, account {number}",
                account,
                tls,
                _key_variables_of(name, config),
            )
            for name, provider in providers.items()
            for number, account in enumerate(provider.accounts or (provider,), 1)
            if provider.models
        ]
        for probe in probes:
            yield probe.result()
    for name, provider in providers.items():
        if not provider.models:
            yield CheckResult(f"provider {name}", "off", "has no models, so it gets no requests")


def _check_aliases(config: Settings, providers: Mapping[str, Provider]) -> Iterator[CheckResult]:
    """Report each alias with its model, and why the model is not available."""
    reasons = models_without_key(config, providers.values())
    offered = {model.id for provider in providers.values() for model in provider.models}
    for alias in config.aliases:
        reason = None if alias.model in offered else reasons.get(alias.model)
        detail = alias.model if reason is None else f"{alias.model} is not available: {reason}"
        yield CheckResult(f"alias {alias.name}", "ok" if reason is None else "off", detail)


def _check_no_providers(config: Settings) -> CheckResult:
    """Report that only models of this machine respond when no provider is configured."""
    has_local_model = find_spec("xllamacpp") is not None
    detail = (
        "none is configured: only the embedded model of svc up serves chats"
        if has_local_model
        else "none is configured"
    )
    key_names = ", ".join(variables[-1] for variables in key_variables().values())
    advice = f"set one of {key_names}, or add [[providers]] to svc.toml"
    return CheckResult(
        "providers", "off", detail, advice if has_local_model else f"{advice}, or install the embedded model"
    )


def _key_variables_of(name: str, config: Settings) -> str:
    """Return the environment variables of a provider's keys, for a message."""
    builtin = key_variables().get(name, ())
    entry = next((entry for entry in configured_entries(config) if entry.name == name), None)
    configured_names = [entry.api_key_env, *(account.api_key_env for account in entry.accounts or ())] if entry else []
    names = list(dict.fromkeys(name for name in (*builtin, *configured_names) if name and config.environ.get(name)))
    return " or ".join(names)


def _check_provider(check_name: str, provider: Provider, tls: ssl.SSLContext, key_names: str) -> CheckResult:
    """Check one provider. Any HTTP response proves that it is reachable: some providers have no model list."""
    models = "1 model" if len(provider.models) == 1 else f"{len(provider.models)} models"
    try:
        status = _probe.probe_provider(provider, tls)
    except ProbeFailed as error:
        advice = "check its base_url, its certificate and the network"
        return CheckResult(check_name, "bad", f"{models}, not reachable: {error}", advice)
    if status == HTTPStatus.OK:
        return CheckResult(check_name, "ok", f"{models}, reachable")
    detail = f"{models}, reachable, returns HTTP {status} to GET {provider.models_target()}"
    if status == HTTPStatus.UNAUTHORIZED:
        advice = f"its key is rejected: set a valid key in {key_names}" if key_names else "it needs a key: api_key_env"
        return CheckResult(check_name, "bad", detail, advice)
    if status == HTTPStatus.FORBIDDEN:  # a restricted key may not list models, and still chat
        return CheckResult(check_name, "off", detail, f"check what the key in {key_names or 'api_key_env'} may do")
    return CheckResult(check_name, "ok", detail, _base_url_advice(provider))


def _base_url_advice(provider: Provider) -> str:
    """Return a hint about the end of a base_url without a model list, or an empty string."""
    path = provider.address.path
    if MODEL_PLACEHOLDER in path:
        return ""
    if provider.dialect.models_path.startswith("/v1/"):
        return "its base_url contains /v1, which each request adds: remove it" if path.endswith("/v1") else ""
    return (
        ""
        if VERSION_SEGMENT.search(path)
        else "its base_url has no /v1, which most servers need, as in http://10.0.0.5:8000/v1"
    )


def _check_shadowed_models(providers: dict[str, Provider], routing: RoutingSettings) -> Iterator[CheckResult]:
    """Report models that several providers have, and how requests are distributed."""
    owners: dict[str, str] = {}
    for name, provider in providers.items():
        for model in provider.models:
            owner = owners.setdefault(model.id, name)
            if owner == name:
                continue
            strategy = routing.strategies.get(model.id, routing.strategy)
            if strategy == "order":
                detail = f"its {model.id} is tried after {owner}, which has a model with that name"
            else:
                detail = f"shares the requests for {model.id} with {owner} (strategy {strategy})"
            yield CheckResult(f"provider {name}", "ok", detail)


def _check_up(running_url: str | None) -> CheckResult:
    if running_url is None:
        return CheckResult("svc up", "off", "does not run", "svc up starts it")
    return CheckResult("svc up", "ok", f"runs at {running_url}")


def _check_port(check_name: str, host: str, port: int, running_url: str | None) -> CheckResult:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if running_url:
                return CheckResult(check_name, "ok", f"{port} is in use, and svc up is running")
            advice = "svc may be running already; otherwise choose another with --port or --registry-port"
            return CheckResult(check_name, "off", f"{port}: {error.strerror}", advice)
    return CheckResult(check_name, "ok", f"{port} is free")
