"""Runs the gateway alone.

It listens on 127.0.0.1:3000 unless told otherwise. Providers are offered when their key is set.

Examples:
  OPENAI_API_KEY=… SVC_API_KEYS=my-key svc gateway
  svc gateway --port 0 --config ./svc.toml
"""

from __future__ import annotations

import argparse
import functools
import os
import socket

from svc import app, settings, telemetry, workers
from svc.cli import _running
from svc.gateway import recent
from svc.gateway.intake import take_left_behind, wait_for_orphans
from svc.gateway.missing_providers import missing_providers
from svc.gateway.providers import providers_of
from svc.gateway.reloading import SUPERVISOR, changed_names, reread, restart_warning
from svc.hangup import HangupSignal
from svc.listeners import address_of, listen
from svc.settings import Settings
from svc.stopping import end_at_once
from svc.stores.base import Entry, StoreDown
from svc.stores.opening import open_state

_APART = "Each lets a key use all of its limits; with SVC_REDIS_URL they share them, and --workers needs no second one."
_ORPHANS = 2.0
"""Seconds: what they let through counts in the limits of the minute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options override the environment and the configuration file."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default $PORT or 3000; 0 takes a free one)")
    parser.add_argument("--workers", type=int, help="processes that share the port (default 1)")
    parser.add_argument("--seat", help=argparse.SUPPRESS)  # a supervisor's word to its worker
    parser.add_argument("--config", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)")


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    end_at_once()
    overrides = {"gateway": {"host": args.host, "port": args.port, "workers": args.workers}}
    with HangupSignal() as hangup:
        seat = workers.Seat(args.seat) if args.seat is not None else None
        if seat is not None:  # the supervisor has chosen, maybe by an option, and `Host` is checked by it
            overrides["gateway"]["host"] = seat.listener.getsockname()[0]
        load = functools.partial(settings.load, os.environ, config=args.config, overrides=overrides)
        if seat is None:
            return _run(args, app.Reload(hangup, load))
        found = load()
        seat.watch()  # before it serves: a worker without a supervisor ends
        shared = app.Shared(seat.counters, seat.column, seat.columns)
        app.serve_gateway(found, seat.listener, lambda _: seat.ready(), shared, reload=app.Reload(hangup, load))
        return 0


def _run(args: argparse.Namespace, reload: app.Reload) -> int:
    found = reload.load()
    if not found.api_keys:
        telemetry.note("SVC_API_KEYS is not set: only keys of `svc keys create` are accepted.")
    missing = missing_providers(found, providers_of(found))  # what is wrong with the file is said before anything else
    with _running.gateway(found.home) as only:
        if not only and not found.environ.get("SVC_REDIS_URL"):
            telemetry.note(f"Another gateway runs with {found.home}. {_APART}")
        if only:
            wait_for_orphans(found.home / "journal", _ORPHANS)
        before = _take_left_behind(found)
        if found.gateway.workers > 1:
            return _supervise(found, args, before, reload, missing)
        listener = listen(found.gateway.host, found.gateway.port)
        _warn(missing)
        said = functools.partial(_say, listener)
        app.serve_gateway(found, listener, lambda _: said(), reload=reload)
    return 0


def _take_left_behind(found: Settings) -> list[Entry]:
    """What a gateway that was killed had noted: budgets are counted from it. Returns the last minute's entries."""
    database = open_state(found.environ, found.home)
    try:
        database.migrate()
        take_left_behind(found.home / "journal", database)
        return recent.entries(database)
    except StoreDown as error:
        telemetry.note(f"{error.message} The ledger goes on in its journal.")
        return []
    finally:
        database.close()


def _warn(message: str | None) -> None:
    if message:
        telemetry.note(message)


def _say(listener: socket.socket) -> None:
    print(f"gateway  {address_of(listener)}/v1", flush=True)


def _supervise(
    found: Settings, args: argparse.Namespace, before: list[Entry], reload: app.Reload, missing: str | None
) -> int:
    listeners = workers.listen_together(found.gateway.host, found.gateway.port, found.gateway.workers)
    _warn(missing)
    options = [f"--config={args.config}"] if args.config is not None else []
    workers.sweep(found.home / "run")
    counters = found.home / "run" / f"{workers.COUNTERS}{os.getpid()}"
    writer = telemetry.configure()
    try:
        supervisor = workers.Supervisor(
            workers.command_of(options),
            listeners,
            counters,
            found.gateway.drain_timeout,
            lambda shared: recent.count(shared, before),
            functools.partial(_check_reload, reload, found),
        )
        return supervisor.run(functools.partial(_say, listeners[0]))
    finally:
        writer.close()


def _check_reload(reload: app.Reload, running: Settings) -> list[str]:
    """Return the warnings about the configuration that new workers would read. Raises UsageError."""
    changed = reread(reload.load, running)
    missing = missing_providers(changed, providers_of(changed))
    fixed = changed_names(running, changed, SUPERVISOR)
    return ([restart_warning(fixed)] if fixed else []) + ([missing] if missing else [])
