"""Starts everything with one command and no configuration: gateway, speech, registry, and a model of its own.

The first start fetches the models. It makes an API key, keeps it in $SVC_HOME/api_key and prints it at each start.
Providers are offered beside the embedded model when their key is in the environment.

Examples:
  svc up
  svc up --port 0 --registry-port 0      take free ports, and print them
  OPENAI_API_KEY=… svc up                offer OpenAI's models as well
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
from importlib.util import find_spec

import msgspec

from svc import app, settings, telemetry
from svc.cli import _running, models
from svc.distribution import install_command
from svc.gateway import local
from svc.gateway.missing_providers import missing_providers
from svc.gateway.providers import providers_of
from svc.hangup import HangupSignal
from svc.listeners import listen
from svc.settings import Settings
from svc.stopping import end_at_once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options override the environment and the configuration file."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port of the gateway (default $PORT or 3000; 0 takes a free one)")
    parser.add_argument(
        "--registry-port", type=int, default=_running.REGISTRY_PORT, help="port of the registry (default 8080)"
    )
    parser.add_argument("--config", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)")


def run(args: argparse.Namespace) -> int:
    """Serves until Ctrl-C or SIGTERM."""
    end_at_once()
    given = {"gateway": {"host": args.host, "port": args.port}}
    usual = {"local": {"enabled": local.installed()}}
    load = functools.partial(settings.load, os.environ, config=args.config, overrides=given, defaults=usual)
    with HangupSignal() as hangup:
        found = load()
        with _running.alone(found.home):
            key = _running.make_key(found.home)
            reload = app.Reload(hangup, lambda: _with_key(load(), key))
            _serve(_with_key(found, key), key, args.registry_port, reload)
    return 0


def _with_key(found: Settings, key: str) -> Settings:
    """Add the key of this machine, which may send requests and publish bundles."""
    publishers = f"{found.environ.get('SVC_REGISTRY_KEYS', '')},{key}"
    environ = {**found.environ, "SVC_REGISTRY_KEYS": publishers}
    return msgspec.structs.replace(found, api_keys=(*found.api_keys, key), environ=environ)


def _serve(found: Settings, key: str, registry_port: int, reload: app.Reload) -> None:
    missing = missing_providers(found, providers_of(found))
    with (
        listen(found.gateway.host, found.gateway.port) as gateway,  # first: a port in use is said at once
        listen(found.gateway.host, registry_port, option="--registry-port") as registry,
    ):
        if missing:
            telemetry.note(missing)
        for name in _models(found):
            models.add(name)
        try:
            app.serve_both(
                found, gateway, registry, lambda *addresses: _announce(found, key, *addresses), reload=reload
            )
        finally:
            _running.forget(found.home)


def _models(found: Settings) -> list[str]:
    if not local.installed():
        telemetry.note(f"There is no embedded model here: {install_command('local')}")
    speech = find_spec("sherpa_onnx") is not None
    return [found.local.model] * found.local.enabled + [found.speech.default_model] * speech


def _command() -> str:
    """How this person calls `svc`: in a virtual environment that is not activated it has a longer name."""
    return "svc" if shutil.which("svc") else os.path.relpath(sys.argv[0])


def _announce(found: Settings, key: str, gateway: str, registry: str) -> None:
    _running.remember(found.home, f"{gateway}/v1")
    model = found.local.model if found.local.enabled else "gpt-4o-mini"
    ask = f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "What is a gateway?"}}]}}'
    text = f"""
gateway   {gateway}/v1
registry  {registry}
API key   {key}

Try it:   {_command()} chat "What is a gateway?"
or        curl -N {gateway}/v1/chat/completions -H "Authorization: Bearer {key}" \\
            -d '{ask}'

Ctrl-C ends it."""
    print(text.strip(), flush=True)
