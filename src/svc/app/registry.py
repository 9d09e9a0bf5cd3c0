"""Assemble the registry from settings, and run it in the main thread or in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from uvicorn.loops.auto import auto_loop_factory

from svc import plugins, telemetry
from svc.allowed_hosts import AllowedHosts
from svc.app import descriptors, listeners
from svc.app.log_files import reopen_on_signal
from svc.app.stop_signals import StopSignals
from svc.app.traces import run_registry_traces
from svc.errors import CommandFailed, UsageError
from svc.keys.cache import KEY_QUERY_TIMEOUT_SECONDS, IssuedKeyCache
from svc.registry.server import RegistryServer, open_server
from svc.registry.service import RegistryService, UpstreamRegistry
from svc.security import Keyring
from svc.settings import Settings
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.factory import open_store
from svc.stores.database.factory import open_state_database

log = logging.getLogger("svc")

REGISTRY_START_TIMEOUT_SECONDS = 20.0
"""Timeout of the start. The log has the cause of a delay."""


def serve_registry(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    *,
    root: Path | None = None,
    is_private: bool = False,
    accel_prefix: str | None = None,
    proxies_bucket: bool = False,
    upstream: str | None = None,
) -> None:
    """Run the bundle registry on a bound socket until SIGINT or SIGTERM.

    `on_ready` gets the address. `root` is the folder of the bundles, in place of the configured folder or bucket.
    `is_private`: reading needs a key too. `accel_prefix`: the path below which nginx serves the files
    (X-Accel-Redirect). `proxies_bucket`: this server sends the bundles of a bucket itself. `upstream`: the URL of a
    registry from which missing bundles come. Raises UsageError.
    """
    writer = telemetry.configure(settings.telemetry.level, settings.telemetry.log)
    descriptors.raise_open_file_limit()
    try:
        environ = dict(settings.environ) | (
            {"SVC_BLOB_URL": ""} if root else {}
        )  # an explicit root overrides the bucket
        store_context = open_store(root or settings.registry_root, environ, proxies_bucket=proxies_bucket)
        with (
            reopen_on_signal(),
            StopSignals() as stop,
            store_context as store,
            asyncio.Runner(loop_factory=auto_loop_factory()) as runner,
        ):
            pull_through = _create_pull_through(upstream, store, settings) if upstream else None
            hosts = _allowed_hosts(settings, listener)
            create_service = functools.partial(
                RegistryService,
                store,
                is_private=is_private,
                accel_prefix=accel_prefix,
                upstream=pull_through,
                hosts=hosts,
                cors_origins=settings.gateway.cors_origins,
            )
            runner.run(stop.run(_serve(settings, create_service, listener, on_ready, stop)))
    finally:
        writer.close()


class RegistryThread:
    """The registry in its own thread and event loop, so that neither server delays the other."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._server: RegistryServer | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> None:
        self._thread.start()
        try:
            is_started = self._started.wait(REGISTRY_START_TIMEOUT_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        if self._error is not None or not is_started:
            self.__exit__()
            reason = str(self._error or "it took too long").removesuffix(".")
            raise CommandFailed(f"The registry did not start: {reason}.")

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(REGISTRY_START_TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            # The gateway does not need the bucket.
            store_context = open_store(self._settings.registry_root, self._settings.environ, may_be_unavailable=True)
            with store_context as store, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
                runner.run(self._serve_until_stopped(store))
        except Exception as error:  # thread boundary: `__enter__` raises the error
            self._error = error
            if not isinstance(error, UsageError):
                log.exception("the registry failed")
        finally:
            self._started.set()

    async def _serve_until_stopped(self, store: BundleStore) -> None:
        async with (
            _registry_keyring(self._settings) as keyring,
            run_registry_traces(self._settings.environ) as tracer,
            open_server(
                RegistryService(
                    store,
                    keyring,
                    hosts=_allowed_hosts(self._settings, self._listener),
                    cors_origins=self._settings.gateway.cors_origins,
                    tracer=tracer,
                ),
                self._started.set,
            ) as self._server,
        ):
            await self._server.serve([self._listener])


def _allowed_hosts(settings: Settings, listener: socket.socket) -> AllowedHosts:
    return AllowedHosts(str(listener.getsockname()[0]), settings.gateway.hosts)


@contextlib.asynccontextmanager
async def _registry_keyring(settings: Settings) -> AsyncIterator[Keyring]:
    """Keys of SVC_REGISTRY_KEYS may read and write, and those of SVC_API_KEYS may read. Issued keys have scopes."""
    publishers = [key.strip() for key in settings.environ.get("SVC_REGISTRY_KEYS", "").split(",") if key.strip()]
    issued_keys = IssuedKeyCache(open_state_database(settings.environ, settings.home, KEY_QUERY_TIMEOUT_SECONDS))
    try:
        await issued_keys.start()
        yield Keyring(settings.api_keys, issued_keys, publishers=publishers)
    finally:
        await issued_keys.close()


def _create_pull_through(url: str, store: BundleStore, settings: Settings) -> UpstreamRegistry:
    """Import the HTTP library only for an upstream registry: it takes 100 ms."""
    upstream: UpstreamRegistry = plugins.load("registry", "pull_through").open_upstream(
        url, settings.environ.get("SVC_REGISTRY_KEY"), store
    )
    return upstream


async def _serve(
    settings: Settings,
    create_service: Callable[..., RegistryService],
    listener: socket.socket,
    on_ready: Callable[[str], None],
    stop: StopSignals,
) -> None:
    async with (
        _registry_keyring(settings) as keyring,
        run_registry_traces(settings.environ) as tracer,
        open_server(
            create_service(keyring, tracer=tracer), lambda: on_ready(listeners.listener_url(listener))
        ) as server,
    ):
        stop.set_callback(server.stop)
        await server.serve([listener])
