"""Runs the gateway alone.

It listens on 127.0.0.1:3000 unless told otherwise. Providers are offered when their key is set.

Examples:
  OPENAI_API_KEY=… SVC_API_KEYS=my-key svc gateway
  svc gateway --port 0 --config ./svc.toml
"""

from __future__ import annotations

import argparse
import os
import sys

from svc import app, settings
from svc.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options override the environment and the configuration file."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default $PORT or 3000; 0 takes a free one)")
    parser.add_argument("--workers", type=int, help="processes that share the port (default 1)")
    parser.add_argument("--config", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)")


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    overrides = {"gateway": {"host": args.host, "port": args.port, "workers": args.workers}}
    found = settings.load(os.environ, config=args.config, overrides=overrides)
    if found.gateway.workers != 1:
        raise UsageError("More than one worker is not supported yet: leave out --workers.")
    if not found.api_keys:
        print("svc: no client key is configured, so every request will be refused; set SVC_API_KEYS.", file=sys.stderr)
    listener = app.listen(found.gateway.host, found.gateway.port)
    app.serve_gateway(found, listener, lambda address: print(f"gateway  {address}/v1", flush=True))
    return 0
