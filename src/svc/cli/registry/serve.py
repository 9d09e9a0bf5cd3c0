"""Run only the registry, on 127.0.0.1:8080 by default."""

from __future__ import annotations

import argparse
import os

from svc import settings
from svc.app import registry
from svc.app.listeners import listen
from svc.app.stop_signals import restore_default_sigterm
from svc.cli.registry._options import add_root_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """serve"""
    add_root_option(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8080, help="port to listen on (default 8080; 0 selects a free port)"
    )
    parser.add_argument("--private", action="store_true", help="require a key for reading too")
    parser.add_argument(
        "--upstream", metavar="URL", help="registry from which missing bundles are downloaded and stored"
    )
    parser.add_argument(
        "--proxy",
        action="store_true",
        help="send bundles of a bucket from this server instead of redirecting to the bucket",
    )
    parser.add_argument("--accel-redirect", metavar="PREFIX", help="let nginx send the files (X-Accel-Redirect)")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops the process."""
    restore_default_sigterm()
    config = settings.load(os.environ)
    listener = listen(args.host, args.port)
    accel_prefix = args.accel_redirect
    registry.serve_registry(
        config,
        listener,
        lambda address: print(f"registry {address}", flush=True),
        root=args.root,
        is_private=args.private,
        upstream=args.upstream,
        proxies_bucket=args.proxy,
        accel_prefix=None if accel_prefix is None else f"/{accel_prefix.strip('/')}/",
    )
    return 0
