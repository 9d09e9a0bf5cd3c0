"""Run only the gateway.

The gateway listens on 127.0.0.1:3000 by default. Models of a provider are available when the provider's key is set.

Examples:
  OPENAI_API_KEY=… SVC_API_KEYS=my-key svc gateway
  svc gateway --port 0 --config ./svc.toml
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
from typing import get_args

from svc import settings, telemetry
from svc.app import gateway, supervisor
from svc.app.config_reload import (
    SUPERVISOR_RESTART_SETTINGS,
    changed_settings,
    reload_settings,
    restart_required_warning,
)
from svc.app.counters_slot import SharedCountersSlot
from svc.app.listeners import listen, listener_url
from svc.app.reload_signal import ReloadSignal
from svc.app.stop_signals import restore_default_sigterm
from svc.cli import _local_gateway
from svc.gateway.accounting.ingest import ingest_orphans, wait_for_journal_writers
from svc.gateway.limits import warm_start
from svc.gateway.routing.provider_warnings import provider_warnings
from svc.gateway.routing.providers import build_providers
from svc.settings import GatewayRole, Settings
from svc.stores.database.base import LedgerEntry, StoreUnavailable
from svc.stores.database.factory import open_state_database

_SEPARATE_LIMITS_NOTE = (
    "Each gateway applies the full limits of a key. "
    "Set SVC_REDIS_URL to share limits, or run one gateway with --workers."
)
_BACKLOG_NOTE = (
    "Many ledger entries wait in the journal. The gateway moves them to the database while it serves requests. "
    "Budgets lack them until then."
)
_START_INGEST_SECONDS = 10.0
"""Seconds that a start spends on journals. A backlog of an outage can take minutes, and probes would end the start."""
_ORPHAN_WAIT_SECONDS = 2.0
"""Timeout for processes that still write journals. Their requests count in the limits of the last minute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, which override the environment and the configuration file."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default $PORT or 3000; 0 selects a free port)")
    parser.add_argument("--workers", type=int, help="processes that share the port (default 1)")
    parser.add_argument(
        "--role",
        choices=get_args(GatewayRole),
        help="routes to serve: data (model endpoints, speech), admin (console, admin API, usage) or all (default)",
    )
    parser.add_argument("--seat", help=argparse.SUPPRESS)  # set by the supervisor for its workers
    parser.add_argument("--config", help="configuration file (default ./svc.toml, else $SVC_HOME/svc.toml)")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops the process."""
    restore_default_sigterm()
    overrides = {"gateway": {"host": args.host, "port": args.port, "workers": args.workers, "role": args.role}}
    with ReloadSignal() as hangup:
        worker_slot = supervisor.WorkerAssignment(args.seat) if args.seat is not None else None
        if worker_slot is not None:  # the check of `Host` needs the supervisor's address
            overrides["gateway"]["host"] = worker_slot.listener.getsockname()[0]
        load = functools.partial(settings.load, os.environ, config=args.config, overrides=overrides)
        if worker_slot is None:
            return _run(args, gateway.ConfigReload(hangup, load))
        config = load()
        worker_slot.watch_supervisor()  # before serving: a worker without a supervisor exits
        shared = SharedCountersSlot(worker_slot.counters_path, worker_slot.slot_index, worker_slot.slot_count)
        gateway.serve_gateway(
            config,
            worker_slot.listener,
            lambda _: worker_slot.notify_ready(),
            shared,
            reload=gateway.ConfigReload(hangup, load),
        )
        return 0


def _run(args: argparse.Namespace, reload: gateway.ConfigReload) -> int:
    config = reload.load_settings()
    telemetry.use_format(config.telemetry.level, config.telemetry.log)
    if not config.api_keys:
        telemetry.log_early("SVC_API_KEYS is not set: only keys from `svc keys create` are accepted.")
    warnings = provider_warnings(config, build_providers(config))  # report configuration errors first
    gateway.open_server_tls(config)
    with _local_gateway.hold_gateway_lock(config.home) as is_only_gateway:
        if not is_only_gateway and not config.environ.get("SVC_REDIS_URL"):
            telemetry.log_early(f"Another gateway uses {config.home}. {_SEPARATE_LIMITS_NOTE}")
        if is_only_gateway:
            wait_for_journal_writers(config.home / "journal", _ORPHAN_WAIT_SECONDS)
        recent_entries = _ingest_leftover_journals(config)
        if config.gateway.workers > 1:
            return _supervise(config, args, recent_entries, reload, warnings)
        listener = listen(config.gateway.host, config.gateway.port)
        _print_warnings(warnings)
        on_ready = functools.partial(_print_addresses, config, listener)
        gateway.serve_gateway(config, listener, lambda _: on_ready(), reload=reload)
    return 0


def _ingest_leftover_journals(config: Settings) -> list[LedgerEntry]:
    """Ingest the journals of a crashed gateway, which budgets need. Returns the entries of the last minute.

    What takes longer than _START_INGEST_SECONDS is left to the running gateway.
    """
    database = open_state_database(config.environ, config.home)
    try:
        database.migrate()
        if not ingest_orphans(config.home / "journal", database, max_seconds=_START_INGEST_SECONDS):
            telemetry.log_early(_BACKLOG_NOTE)
        return warm_start.load_recent_entries(database)
    except StoreUnavailable as error:
        telemetry.log_early(f"{error.message} Usage is written to the journal only.")
        return []
    finally:
        database.close()


def _print_warnings(messages: list[str]) -> None:
    for message in messages:
        telemetry.log_early(message)


def _print_addresses(config: Settings, listener: socket.socket) -> None:
    url = listener_url(listener, uses_tls=config.gateway.tls_cert is not None)
    print(f"{'admin  ' if config.gateway.role == 'admin' else 'gateway'}  {url}/v1", flush=True)
    if config.console.enabled and config.gateway.role != "data":
        print(f"console  {url}/console/", flush=True)


def _supervise(
    config: Settings,
    args: argparse.Namespace,
    recent_entries: list[LedgerEntry],
    reload: gateway.ConfigReload,
    warnings: list[str],
) -> int:
    listeners = supervisor.listen_reuseport(config.gateway.host, config.gateway.port, config.gateway.workers)
    _print_warnings(warnings)
    options = [f"--config={args.config}"] if args.config is not None else []
    options.append(f"--role={config.gateway.role}")
    supervisor.remove_stale_counters(config.home / "run")
    counters = config.home / "run" / f"{supervisor.COUNTERS_FILE_PREFIX}{os.getpid()}"
    log_writer = telemetry.configure(config.telemetry.level, config.telemetry.log)
    try:
        running = supervisor.Supervisor(
            supervisor.worker_command(options),
            listeners,
            counters,
            config.gateway.drain_timeout,
            lambda shared: warm_start.count_recent_entries(shared, recent_entries),
            functools.partial(_check_new_config, reload, config),
        )
        return running.run(functools.partial(_print_addresses, config, listeners[0]))
    finally:
        log_writer.close()


def _check_new_config(reload: gateway.ConfigReload, running: Settings) -> list[str]:
    """Return the warnings about the configuration that new workers would read. Raises UsageError."""
    changed = reload_settings(reload.load_settings, running)
    warnings = provider_warnings(changed, build_providers(changed))
    gateway.open_server_tls(changed)
    fixed_names = changed_settings(running, changed, SUPERVISOR_RESTART_SETTINGS)
    return ([restart_required_warning(fixed_names)] if fixed_names else []) + warnings
