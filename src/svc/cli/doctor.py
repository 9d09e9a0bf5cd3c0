"""Says what is configured, reachable and missing, and how to mend it.

Each provider is asked for its models, with its key; that costs nothing. No key is ever shown.
The exit status is 1 when something has to be mended before `svc up` works.

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
from typing import Literal

import msgspec

from svc import settings
from svc.cli import _probing, _running
from svc.cli._probing import Unreachable
from svc.cli.base import print_json, print_table
from svc.distribution import install_command
from svc.errors import SvcError, UsageError
from svc.gateway.providers import Provider, key_variables, missing_keys, providers_of
from svc.gateway.upstream import default_tls
from svc.recipes import make, recipe
from svc.settings import Settings
from svc.stores.redis import address_of

VERSION = re.compile(r"/v\d")
EXTRAS = {"local": "xllamacpp", "speech": "sherpa_onnx"}


class Finding(msgspec.Struct, frozen=True):
    """One line; `mend` says what to do, and is empty when there is nothing to."""

    what: str
    state: Literal["ok", "off", "bad"]
    says: str
    mend: str = ""


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
    for extra, module in EXTRAS.items():
        yield _extra(extra, module)
    for name in (loaded.local.model, loaded.speech.default_model):
        yield _model(name, loaded)
    yield from _providers(loaded)
    yield _client_keys(loaded)
    if url := loaded.environ.get("SVC_REDIS_URL"):
        yield _redis(url)
    running = _running.find(loaded.home)
    yield _up(running)
    yield _port("gateway port", loaded.gateway.host, loaded.gateway.port, running)
    yield _port("registry port", loaded.gateway.host, _running.REGISTRY_PORT, running)


def _home(home: Path) -> Finding:
    present = next(folder for folder in (home, *home.parents) if folder.exists())
    if os.access(present, os.W_OK | os.X_OK) and present.is_dir():
        return Finding("state folder", "ok", str(home))
    return Finding("state folder", "bad", f"{home} cannot be written", "set SVC_HOME to a folder that can")


def _extra(extra: str, module: str) -> Finding:
    if find_spec(module) is not None:
        return Finding(f"extra {extra}", "ok", "installed")
    return Finding(f"extra {extra}", "off", "not installed", install_command(extra))


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
    yield from _shadowed(providers)
    try:
        tls = default_tls()
    except UsageError as error:
        yield Finding("certificates", "bad", error.message, "mend SSL_CERT_FILE, or unset it")
        return
    for name, provider in providers.items():
        yield _answers(f"provider {name}", provider, tls)


def _answers(what: str, provider: Provider, tls: ssl.SSLContext) -> Finding:
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
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Finding(what, "off", says, "check its key, and what the key may do")
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
    """Models that another provider has under the same name, which wins it."""
    owners: dict[str, str] = {}
    for name, provider in providers.items():
        for model in provider.models:
            owner = owners.setdefault(model.id, name)
            if owner != name:
                says = f"its {model.id} is not used: {owner} has one of that name"
                yield Finding(f"provider {name}", "off", says, "give it an id of its own, and its name as upstream_id")


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


def _redis(url: str) -> Finding:
    try:
        address = address_of(url)
    except UsageError as error:
        return Finding("redis", "bad", error.message, "mend SVC_REDIS_URL, or unset it")
    if address.path is not None:
        reason = None if Path(address.path).is_socket() else "there is no socket"
    else:
        reason = _refused(address.host, address.port)
    if reason is not None:
        mend = "start it, or check SVC_REDIS_URL; until then each machine keeps the limits by itself"
        return Finding("redis", "bad", f"{address.shown} is not reachable: {reason}", mend)
    return Finding("redis", "ok", f"{address.shown}: limits are shared with other machines")


def _refused(host: str, port: int) -> str | None:
    """Why no connection can be made, or None when one can."""
    try:
        _probing.reach(host, port)
    except Unreachable as error:
        return str(error)
    return None


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
