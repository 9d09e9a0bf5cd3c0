"""Start gateway, speech, registry and an embedded model with one command and no configuration.

The first start downloads the models and creates an API key in $SVC_HOME/api_key. Each start prints the key.
Models of a provider are available when the provider's key is in the environment.

Examples:
  svc up
  svc up --port 0 --registry-port 0      use free ports, and print them
  OPENAI_API_KEY=… svc up                with OpenAI's models
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import shutil
import sys
from importlib.util import find_spec
from typing import NamedTuple

import msgspec

from svc import settings, telemetry
from svc.app import gateway
from svc.app.listeners import listen
from svc.app.reload_signal import ReloadSignal
from svc.app.stop_signals import restore_default_sigterm
from svc.cli import _local_gateway, models
from svc.cli._output import is_styled, load_terminal
from svc.console.sessions import LoginLinks
from svc.distribution import install_command
from svc.gateway.local_model import supervisor
from svc.gateway.routing.provider_warnings import provider_warnings
from svc.gateway.routing.providers import build_providers
from svc.recipes.recipe import list_recipes
from svc.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, which override the environment and the configuration file."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port of the gateway (default $PORT or 3000; 0 selects a free port)")
    parser.add_argument(
        "--registry-port",
        type=int,
        default=_local_gateway.DEFAULT_REGISTRY_PORT,
        help="port of the registry (default 8080)",
    )
    parser.add_argument("--config", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    restore_default_sigterm()
    overrides = {"gateway": {"host": args.host, "port": args.port, "role": "all"}}
    defaults = {"local": {"enabled": supervisor.is_installed()}, "console": {"enabled": True}}
    load = functools.partial(settings.load, os.environ, config=args.config, overrides=overrides, defaults=defaults)
    with ReloadSignal() as hangup:
        config = load()
        with _local_gateway.hold_up_lock(config.home):
            keys = _MachineKeys(
                _local_gateway.ensure_api_key(config.home), _local_gateway.ensure_console_key(config.home)
            )
            reload = gateway.ConfigReload(hangup, lambda: _with_keys(load(), keys))
            _serve(_with_keys(config, keys), keys, args.registry_port, reload)
    return 0


class _MachineKeys(NamedTuple):
    """The keys of this machine, from files in $SVC_HOME."""

    api_key: str
    """May send requests and publish bundles. It is printed."""
    console_key: str
    """Has all scopes. Only the login link uses it."""


def _with_keys(config: Settings, keys: _MachineKeys) -> Settings:
    publisher_keys = f"{config.environ.get('SVC_REGISTRY_KEYS', '')},{keys.api_key}"
    return msgspec.structs.replace(
        config,
        api_keys=(*config.api_keys, keys.api_key),
        console_key=keys.console_key,
        environ={**config.environ, "SVC_REGISTRY_KEYS": publisher_keys},
    )


def _serve(config: Settings, keys: _MachineKeys, registry_port: int, reload: gateway.ConfigReload) -> None:
    telemetry.use_format(config.telemetry.level, config.telemetry.log)
    login_links = LoginLinks(keys.console_key)
    login_path = login_links.create(math.inf)
    warnings = provider_warnings(config, build_providers(config))
    with (
        listen(
            config.gateway.host, config.gateway.port
        ) as gateway_listener,  # first, so that a port in use is reported immediately
        listen(config.gateway.host, registry_port, port_option="--registry-port") as registry_listener,
    ):
        for warning in warnings:
            telemetry.log_early(warning)
        for name in _required_models(config):
            models.add_model(name)
        try:
            gateway.serve_gateway_and_registry(
                config,
                gateway_listener,
                registry_listener,
                lambda *addresses: _print_addresses(config, keys.api_key, login_path, *addresses),
                reload=reload,
                login_links=login_links,
            )
        finally:
            _local_gateway.remove_gateway_record(config.home)


def _required_models(config: Settings) -> list[str]:
    if not supervisor.is_installed():
        telemetry.log_early(f"The embedded model is not installed: {install_command('local')}")
    has_speech = find_spec("sherpa_onnx") is not None
    has_recipe = config.local.model in list_recipes(config.home / "recipes")
    local = [config.local.model] * (config.local.enabled and has_recipe)  # others are installed, or the start fails
    return local + [config.speech.default_model] * has_speech


def _command_name() -> str:
    """Return the command as the user typed it: a virtual environment that is not activated needs a path."""
    return "svc" if shutil.which("svc") else os.path.relpath(sys.argv[0])


def _print_addresses(config: Settings, key: str, login_path: str, gateway_address: str, registry_address: str) -> None:
    _local_gateway.write_gateway_record(config.home, f"{gateway_address}/v1")
    model = config.local.model if config.local.enabled else "gpt-4o-mini"
    example_body = (
        f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "What is a gateway?"}}]}}'
    )
    console_line = f"\nconsole   {gateway_address}{login_path}  (logs in once)" if config.console.enabled else ""
    text = f"""
gateway   {gateway_address}/v1{console_line}
registry  {registry_address}
API key   {key}

Try it:   {_command_name()} chat "What is a gateway?"
or        curl -N {gateway_address}/v1/chat/completions -H "Authorization: Bearer {key}" \\
            -d '{example_body}'

Press Ctrl-C to stop."""
    if is_styled():
        load_terminal().print_highlighted(
            text.strip(), {r"(?m)^(gateway|console|registry|API key|Try it:|or)(?= )": "bold"}
        )
    else:
        print(text.strip(), flush=True)
