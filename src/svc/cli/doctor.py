"""Says what is configured, reachable and missing, and how to mend it.

Each provider is asked for its models, with its key; that costs nothing. Database, Redis and blob store are asked with
their credentials. No key or password is ever shown.
The exit status is 1 when something that is configured does not work, such as a key that a provider refuses.

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
import sys
from collections.abc import Iterator
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path

import msgspec

from svc import settings
from svc.cli import _backends, _probing, _running
from svc.cli._backends import Finding
from svc.cli._probing import Unreachable
from svc.cli.base import print_json, print_table
from svc.errors import SvcError, UsageError
from svc.gateway.providers import Provider, key_variables, missing_keys, providers_of
from svc.gateway.upstream import default_tls
from svc.recipes import make, recipe
from svc.settings import Settings

VERSION = re.compile(r"/v\d")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to look."""
    parser.add_argument("--config", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)")
    parser.add_argument("--json", action="store_true", help="print a list of objects")


def run(args: argparse.Namespace) -> int:
    """Prints what was found."""
    found = list(_examine(args.config))
    if args.json:
        print_json([msgspec.to_builtins(finding) for finding in found])
    else:
        print_table([("", "", ""), *((finding.state, finding.what, finding.says) for finding in found)][1:])
        for finding in found:
            if finding.mend:
                print(f"{finding.what}: {finding.mend}")
    return 1 if any(finding.state == "bad" for finding in found) else 0


def _examine(config: str | None) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", version)
    try:
        loaded = settings.load(os.environ, config=config)
    except UsageError as error:
        yield Finding("settings", "bad", error.message, "mend that line, or name another file with --config")
        return
    yield Finding("settings", "ok", "read")
    yield _home(loaded.home)
    yield from _backends.extras()
    for name in (loaded.local.model, loaded.speech.default_model):
        yield _model(name, loaded)
    yield from _providers(loaded)
    yield _client_keys(loaded)
    yield _backends.database(loaded)
    yield from _backends.redis(loaded)
    yield _backends.blob_store(loaded)
    running = _running.find(loaded.home)
    yield _up(running)
    yield _port("gateway port", loaded.gateway.host, loaded.gateway.port, running)
    yield _port("registry port", loaded.gateway.host, _running.REGISTRY_PORT, running)


def _home(home: Path) -> Finding:
    present = next(folder for folder in (home, *home.parents) if folder.exists())
    if os.access(present, os.W_OK | os.X_OK) and present.is_dir():
        return Finding("state folder", "ok", str(home))
    return Finding("state folder", "bad", f"{home} cannot be written", "set SVC_HOME to a folder that can")


def _model(name: str, loaded: Settings) -> Finding:
    try:
        made = make.is_made(recipe.load(name, loaded.home / "recipes"), loaded.registry_root)
    except SvcError as error:
        return Finding(f"model {name}", "off", error.message)
    if made:
        return Finding(f"model {name}", "ok", "present")
    return Finding(f"model {name}", "off", "not there yet", f"svc models add {name} (svc up does it by itself)")


def _providers(loaded: Settings) -> Iterator[Finding]:
    try:
        providers = {provider.name: provider for provider in providers_of(loaded)}
    except UsageError as error:
        yield Finding("providers", "bad", error.message, "mend the entry in svc.toml, or the variable")
        return
    for name, (variable, *_) in key_variables().items():
        if name not in providers:
            yield Finding(f"provider {name}", "off", "has no key, so it is not offered", f"set {variable}")
    for name, variable in missing_keys(loaded):
        says = "an account has no key, so it is left out" if name in providers else "has no key, so it is not offered"
        yield Finding(f"provider {name}", "off", says, f"set {variable}")
    if not providers:
        yield _none(loaded)
    yield from _shadowed(providers)
    try:
        tls = default_tls()
    except UsageError as error:
        yield Finding("certificates", "bad", error.message, "mend SSL_CERT_FILE, or unset it")
        return
    for name, provider in providers.items():
        for number, account in enumerate(provider.accounts or (provider,), 1):
            what = f"provider {name}" if number == 1 else f"provider {name}, account {number}"
            yield _answers(what, account, tls, _variables(name, loaded))


def _none(loaded: Settings) -> Finding:
    """Without a provider only what runs on this machine answers."""
    local = find_spec("xllamacpp") is not None
    says = (
        "none is configured: chats are answered by the embedded model of svc up only" if local else "none is configured"
    )
    first = ", ".join(variables[0] for variables in key_variables().values())
    mend = f"set one of {first}, or add [[providers]] to svc.toml"
    return Finding("providers", "off", says, mend if local else f"{mend}, or install the embedded model")


def _variables(name: str, loaded: Settings) -> str:
    """The environment variables that the keys of a provider are taken from, for a message."""
    builtin = key_variables().get(name, ())
    entry = next((entry for entry in loaded.providers if entry.name == name), None)
    named = [entry.api_key_env, *(account.api_key_env for account in entry.accounts or ())] if entry else []
    found = list(dict.fromkeys(one for one in (*builtin, *named) if one and loaded.environ.get(one)))
    return " or ".join(found)


def _answers(what: str, provider: Provider, tls: ssl.SSLContext, variables: str) -> Finding:
    """Any answer is one: not every provider has a list of its models."""
    models = f"{len(provider.models)} models"
    try:
        status = _probing.ask(provider, tls)
    except Unreachable as error:
        mend = "check its base_url, its certificate and the network"
        return Finding(what, "bad", f"{models}, not reachable: {error}", mend)
    if status == HTTPStatus.OK:
        return Finding(what, "ok", f"{models}, reachable")
    path = f"{provider.address.path}{provider.dialect.models_path}"
    says = f"{models}, reachable, answers HTTP {status} to GET {path}"
    if status == HTTPStatus.UNAUTHORIZED:
        refused = (
            f"its key is refused: put a valid one into {variables}" if variables else "it needs a key: api_key_env"
        )
        return Finding(what, "bad", says, refused)
    if status == HTTPStatus.FORBIDDEN:  # a restricted key may lack the list of models, and still be good for chats
        return Finding(what, "off", says, f"check what the key in {variables or 'api_key_env'} may do")
    return Finding(what, "ok", says, _version(provider))


def _version(provider: Provider) -> str:
    """What may be wrong with the end of a base_url, where there is no list of models; empty when nothing seems so."""
    path = provider.address.path
    if provider.dialect.models_path.startswith("/v1/"):
        return "its base_url has /v1 in it, which each request adds: leave it off" if path.endswith("/v1") else ""
    return (
        "" if VERSION.search(path) else "its base_url has no /v1; most servers want it, as in http://10.0.0.5:8000/v1"
    )


def _shadowed(providers: dict[str, Provider]) -> Iterator[Finding]:
    """Models that another provider has under the same name, which is tried first."""
    owners: dict[str, str] = {}
    for name, provider in providers.items():
        for model in provider.models:
            owner = owners.setdefault(model.id, name)
            if owner != name:
                says = f"its {model.id} is tried after {owner}, which has a model of that name"
                yield Finding(f"provider {name}", "ok", says)


def _client_keys(loaded: Settings) -> Finding:
    if loaded.api_keys:
        return Finding("client keys", "ok", f"{len(loaded.api_keys)} in SVC_API_KEYS")
    return Finding(
        "client keys", "off", "SVC_API_KEYS is not set", "svc up makes a key by itself; or: svc keys create --name me"
    )


def _up(running: str | None) -> Finding:
    if running is None:
        return Finding("svc up", "off", "does not run", "svc up starts it")
    return Finding("svc up", "ok", f"runs at {running}")


def _port(what: str, host: str, port: int, running: str | None) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if running:
                return Finding(what, "ok", f"{port} is taken, and svc up runs")
            mend = "svc may be running already; else choose another with --port or --registry-port"
            return Finding(what, "off", f"{port}: {error.strerror}", mend)
    return Finding(what, "ok", f"{port} is free")
