"""Run the gateway on a socket, alone or with the registry. `services.py` creates its dependencies."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from svc import telemetry
from svc.app import descriptors, listeners
from svc.app.config_reload import ConfigReloader
from svc.app.counters_slot import SharedCountersSlot
from svc.app.log_files import reopen_on_signal
from svc.app.registry import RegistryThread
from svc.app.reload_signal import ReloadSignal
from svc.app.reloadable_app import ReloadableApp
from svc.app.services import gateway_services
from svc.app.stop_signals import RETIRE_SIGNAL, StopSignals
from svc.console.sessions import LoginLinks
from svc.gateway.net.server_tls import ServerTls, load_server_context
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.server.connection import ClientConnection
from svc.gateway.server.uvicorn_server import GatewayServer
from svc.gateway.server.websocket import WebSocketProtocol
from svc.settings import Settings
from svc.speech.service import SpeechService
from svc.telemetry import LineWriter


@dataclass(frozen=True)
class ConfigReload:
    """The reaction to SIGHUP. `load_settings` reads the configuration as at the start."""

    signal: ReloadSignal
    load_settings: Callable[[], Settings]


def serve_gateway(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    counters_slot: SharedCountersSlot | None = None,
    *,
    reload: ConfigReload | None = None,
    login_links: LoginLinks | None = None,
    registry_url: str | None = None,
) -> None:
    """Run the gateway on a bound socket until SIGINT or SIGTERM. `on_ready` gets its address once it serves.

    `registry_url` is the address of a registry that serves the same bundles.
    """
    writer = telemetry.configure(settings.telemetry.level, settings.telemetry.log)
    descriptors.raise_open_file_limit()
    try:
        with (
            reopen_on_signal(),
            StopSignals(is_worker=counters_slot is not None) as stop,
            asyncio.Runner(loop_factory=auto_loop_factory()) as runner,
        ):
            runner.run(
                stop.run(
                    _serve(settings, listener, on_ready, writer, counters_slot, stop, reload, login_links, registry_url)
                )
            )
    finally:
        writer.close()


def serve_gateway_and_registry(
    settings: Settings,
    gateway_listener: socket.socket,
    registry_listener: socket.socket,
    on_ready: Callable[[str, str], None],
    *,
    reload: ConfigReload | None = None,
    login_links: LoginLinks | None = None,
) -> None:
    """Run gateway and registry in one process until SIGINT or SIGTERM. `on_ready` gets both addresses."""
    with RegistryThread(settings, registry_listener):
        serve_gateway(
            settings,
            gateway_listener,
            lambda address: on_ready(address, listeners.listener_url(registry_listener)),
            reload=reload,
            login_links=login_links,
            registry_url=listeners.listener_url(registry_listener),
        )


async def _serve(
    settings: Settings,
    listener: socket.socket,
    print_address: Callable[[str], None],
    writer: LineWriter,
    counters_slot: SharedCountersSlot | None,
    stop: StopSignals,
    reload: ConfigReload | None,
    login_links: LoginLinks | None,
    registry_url: str | None,
) -> None:
    server_tls = open_server_tls(settings)
    async with (
        descriptors.report_exhaustion(),
        gateway_services(settings, writer, counters_slot, login_links=login_links, registry_url=registry_url) as (
            context,
            speech,
            app,
        ),
        contextlib.AsyncExitStack() as stack,
    ):
        if reload is not None:
            reloader = ConfigReloader(
                context, reload.load_settings, functools.partial(_apply_settings, speech, app), server_tls
            )
            stack.push_async_callback(reloader.close)
            reload.signal.set_callback(reloader.request)
        report_address = functools.partial(_report_address, print_address, listener, server_tls is not None)
        server = create_server(context, speech, app, report_address, server_tls)
        stop.set_callback(functools.partial(_stop_server, server))
        await server.serve([listener])


def _stop_server(server: GatewayServer, signal_number: int) -> None:
    if signal_number == RETIRE_SIGNAL:
        server.retire()
    else:
        server.stop(signal_number)


def create_server(
    context: GatewayContext,
    speech: SpeechService,
    app: ReloadableApp,
    on_ready: Callable[[], None],
    tls: ServerTls | None = None,
) -> GatewayServer:
    """Return the server of the services that `gateway_services` runs. With `tls`, it speaks TLS only."""

    async def before_shutdown() -> None:
        app.stop_streams()
        await speech.stop_sessions()

    return GatewayServer(_uvicorn_config(context, app), on_ready, before_shutdown, speech.wait_for_sessions, tls)


def _apply_settings(speech: SpeechService, app: ReloadableApp, settings: Settings) -> None:
    speech.configure(settings)
    if app.local_models is not None:
        app.local_models.reload(settings)
    app.rebuild()


def open_server_tls(settings: Settings) -> ServerTls | None:
    """Return the certificate of the settings, or None without TLS. Raises UsageError for an invalid file."""
    cert, key = settings.gateway.tls_cert, settings.gateway.tls_key
    return ServerTls(load_server_context(cert, key)) if cert and key else None


def _report_address(on_ready: Callable[[str], None], listener: socket.socket, uses_tls: bool) -> None:
    on_ready(listeners.listener_url(listener, uses_tls=uses_tls))


def _uvicorn_config(context: GatewayContext, app: ReloadableApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=functools.partial(ClientConnection, context, app.endpoints),  # type: ignore[arg-type]
        ws=functools.partial(WebSocketProtocol, context),  # type: ignore[arg-type]
        ws_per_message_deflate=False,  # audio does not compress, and each session would use memory
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # clients can forge them, and the access log needs the peer address
        server_header=False,
        timeout_graceful_shutdown=math.ceil(context.config.current.settings.gateway.drain_timeout),
        timeout_keep_alive=int(context.config.current.settings.gateway.keep_alive),
    )
