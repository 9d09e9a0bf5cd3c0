"""The composition root: settings -> services -> servers. The only place that wires."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send
from uvicorn.loops.auto import auto_loop_factory

from svc import descriptors, listeners, plugins, telemetry
from svc.bundles.remote import Remote
from svc.client import bundles
from svc.errors import CommandFailed
from svc.gateway.admin import Admin
from svc.gateway.cache.cache import cache_of
from svc.gateway.door import FrontDoor
from svc.gateway.embedded import embedded_model
from svc.gateway.healing.sharing import Sharing
from svc.gateway.ledger import Ledger
from svc.gateway.limits import Gate
from svc.gateway.metrics import Board
from svc.gateway.offers import Offer, offers_of
from svc.gateway.openapi import routes as openapi_routes
from svc.gateway.plane import Plane
from svc.gateway.providers import providers_of, unkeyed_models
from svc.gateway.recent import recall
from svc.gateway.reloading import Reloader
from svc.gateway.router import Router
from svc.gateway.routes import application
from svc.gateway.server import GatewayServer
from svc.gateway.socket import Socket
from svc.gateway.upstream import Upstream, default_tls
from svc.gateway.usage import routes as usage_routes
from svc.gateway.visits import Visits
from svc.gateway.watch import Watch
from svc.hangup import HangupSignal
from svc.keys.known import ANSWER_SECONDS, IssuedKeys
from svc.loopback import AllowedHosts
from svc.registry.desk import Desk
from svc.registry.server import Server, prepared
from svc.registry.upstream import PullThrough
from svc.security import Keyring
from svc.settings import Settings
from svc.speech.catalogue import Shelf
from svc.speech.model import DESCRIPTION
from svc.speech.routes import routes as speech_routes
from svc.speech.service import Service as Speech
from svc.stopping import StopSignals
from svc.stores.aside import Aside
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.choosing import open_store
from svc.stores.bundles.contents import Contents
from svc.stores.bundles.placing import unpacked
from svc.stores.opening import open_state
from svc.stores.redis import Redis, connected
from svc.stores.redis_counters import RedisCounters
from svc.stores.shared import SharedCounters
from svc.telemetry import LineWriter

log = logging.getLogger("svc")

START_TIMEOUT = 20.0
"""Seconds until the registry answers; what kept it is in the log."""


@dataclass(frozen=True)
class Shared:
    """Counters that this process shares with other workers, and its own place in them."""

    path: Path
    column: int
    columns: int

    @property
    def folder(self) -> Path:
        """Where the workers lay down their numbers."""
        return self.path.with_suffix(".metrics")

    def open(self) -> SharedCounters:
        return SharedCounters(self.path, worker=self.column, workers=self.columns)


@dataclass(frozen=True)
class Reload:
    """The reaction to SIGHUP. `load` reads the configuration as at the start."""

    signal: HangupSignal
    load: Callable[[], Settings]


class _Routes:
    """The cold routes as they are now: a reload makes them anew, since what they check is in the configuration."""

    def __init__(self, make: Callable[[], Starlette]) -> None:
        self._make = make
        self._app = make()

    @property
    def routes(self) -> list[BaseRoute]:
        """Those of now."""
        return self._app.routes

    def renew(self) -> None:
        self._app = self._make()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def serve_gateway(
    settings: Settings,
    listener: socket.socket,
    ready: Callable[[str], None],
    shared: Shared | None = None,
    *,
    reload: Reload | None = None,
) -> None:
    """Runs the gateway on a bound socket until SIGINT or SIGTERM; `ready` gets its address when it answers."""
    writer = telemetry.configure()
    descriptors.allow_all()
    try:
        with StopSignals() as stop, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            runner.run(stop.run(_serve(settings, listener, ready, writer, shared, stop, reload)))
    finally:
        writer.close()


def serve_registry(
    settings: Settings,
    listener: socket.socket,
    ready: Callable[[str], None],
    *,
    root: Path | None = None,
    private: bool = False,
    accel: str | None = None,
    proxy: bool = False,
    upstream: str | None = None,
) -> None:
    """Runs the bundle registry on a bound socket until SIGINT or SIGTERM."""
    writer = telemetry.configure()
    descriptors.allow_all()
    try:
        environ = dict(settings.environ) | ({"SVC_BLOB_URL": ""} if root else {})  # a root that is named is meant
        found = open_store(root or settings.registry_root, environ, proxy=proxy)
        with StopSignals() as stop, found as store, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            above = _pull_through(upstream, store, settings) if upstream else None
            hosts = _hosts(settings, listener)
            make = functools.partial(Desk, store, private=private, accel=accel, upstream=above, hosts=hosts)
            runner.run(stop.run(_serve_registry(settings, make, listener, ready, stop)))
    finally:
        writer.close()


def serve_both(
    settings: Settings,
    gateway: socket.socket,
    registry: socket.socket,
    ready: Callable[[str, str], None],
    *,
    reload: Reload | None = None,
) -> None:
    """Runs gateway and registry in one process until SIGINT or SIGTERM; `ready` gets both addresses."""
    with _Beside(settings, registry):
        serve_gateway(settings, gateway, lambda address: ready(address, listeners.address_of(registry)), reload=reload)


class _Beside:
    """The registry in a thread and an event loop of its own, so that neither server waits for the other's work."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._server: Server | None = None
        self._answers = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._fault: Exception | None = None

    def __enter__(self) -> None:
        self._thread.start()
        try:
            in_time = self._answers.wait(START_TIMEOUT)
        except BaseException:
            self.__exit__()
            raise
        if self._fault is not None or not in_time:
            self.__exit__()
            raise CommandFailed(f"The registry did not start: {self._fault or 'it took too long'}.")

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(START_TIMEOUT)

    def _run(self) -> None:
        try:
            found = open_store(self._settings.registry_root, self._settings.environ)
            with found as store, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
                runner.run(self._serve(store))
        except Exception as error:  # the edge of a thread: whoever waits for it is told
            self._fault = error
            log.exception("the registry ended")
        finally:
            self._answers.set()

    async def _serve(self, store: BundleStore) -> None:
        async with (
            _registry_keys(self._settings) as keyring,
            prepared(
                Desk(store, keyring, hosts=_hosts(self._settings, self._listener)), self._answers.set
            ) as self._server,
        ):
            await self._server.serve([self._listener])


def _hosts(settings: Settings, listener: socket.socket) -> AllowedHosts:
    return AllowedHosts(str(listener.getsockname()[0]), settings.gateway.hosts)


@contextlib.asynccontextmanager
async def _registry_keys(settings: Settings) -> AsyncIterator[Keyring]:
    """Those of SVC_REGISTRY_KEYS may read and write, those of SVC_API_KEYS read; issued ones what their scopes say."""
    publishers = [key.strip() for key in settings.environ.get("SVC_REGISTRY_KEYS", "").split(",") if key.strip()]
    issued = IssuedKeys(open_state(settings.environ, settings.home, ANSWER_SECONDS))
    try:
        await issued.start()
        yield Keyring(settings.api_keys, issued, publishers=publishers)
    finally:
        await issued.close()


def _pull_through(url: str, store: BundleStore, settings: Settings) -> PullThrough:
    return PullThrough(Remote(url, key=settings.environ.get("SVC_REGISTRY_KEY")), store)


async def _serve_registry(
    settings: Settings,
    make: Callable[[Keyring], Desk],
    listener: socket.socket,
    ready: Callable[[str], None],
    stop: StopSignals,
) -> None:
    async with (
        _registry_keys(settings) as keyring,
        prepared(make(keyring), lambda: ready(listeners.address_of(listener))) as server,
    ):
        stop.use(server.stop)
        await server.serve([listener])


async def _serve(
    settings: Settings,
    listener: socket.socket,
    ready: Callable[[str], None],
    writer: LineWriter,
    shared: Shared | None,
    stop: StopSignals,
    reload: Reload | None,
) -> None:
    async with wired(settings, writer, shared) as (plane, speech, app), contextlib.AsyncExitStack() as stack:
        if reload is not None:
            reloader = Reloader(plane, reload.load, functools.partial(_configure, speech, app))
            stack.push_async_callback(reloader.close)
            reload.signal.use(reloader.request)
        on_ready = functools.partial(_say_address, ready, listener)
        server = GatewayServer(_config(plane, app), on_ready, speech.stop_sessions)
        stop.use(server.stop)
        await server.serve([listener])


def _configure(speech: Speech, app: _Routes, settings: Settings) -> None:
    speech.configure(settings)
    app.renew()


def _say_address(ready: Callable[[str], None], listener: socket.socket) -> None:
    ready(listeners.address_of(listener))


@contextlib.asynccontextmanager
async def wired(
    settings: Settings, writer: LineWriter, shared: Shared | None = None
) -> AsyncIterator[tuple[Plane, Speech, _Routes]]:
    """Everything that a gateway's process needs, running, and its cold routes; without a server."""
    async with (
        _aside(settings, "books") as books,
        _aside(settings, "desk") as desk,
        connected(settings.environ) as redis,
        cache_of(settings) as cache,
        _plane(settings, writer, books, shared, redis) as (plane, watch),
        _speech(settings, plane) as speech,
    ):
        plane.cache = cache
        routes = [*watch.routes(), *usage_routes(plane, desk), *Admin(plane, desk, watch).routes(), *openapi_routes()]
        routes = [*speech_routes(speech), *routes]
        yield plane, speech, _Routes(functools.partial(application, plane, routes, speech_models=speech.models))


@contextlib.asynccontextmanager
async def _plane(
    settings: Settings, writer: LineWriter, books: Aside, shared: Shared | None, redis: Redis | None
) -> AsyncIterator[tuple[Plane, Watch]]:
    offers: list[Offer] = []
    providers = providers_of(settings)
    for provider in providers:
        offers += offers_of(provider)
    upstream = Upstream(
        connect_timeout=settings.gateway.connect_timeout,
        tls=default_tls() if any(offer.origin.tls for offer in offers) else None,
    )
    router = Router(offers, settings.routing.fallbacks, unkeyed_models(settings, providers))
    issued = IssuedKeys(open_state(settings.environ, settings.home, ANSWER_SECONDS))
    ledger = Ledger(settings.home, settings.ledger, open_state(settings.environ, settings.home), offers)
    counters = shared.open() if shared else SharedCounters()
    if shared is None:
        await recall(counters, books)
    gate = Gate(settings.limits, counters, ledger.prices, books, RedisCounters(redis) if redis else None)
    plane = Plane(settings, router, Keyring(settings.api_keys, issued), upstream, ledger, gate, writer)
    async with embedded_model(settings, router):
        ledger.prices.give(router.offers())
        watch = Watch(plane, issued, Board(shared.folder if shared else None, str(os.getpid())), redis)
        breakers = Sharing(plane.steering, redis) if redis else None
        async with contextlib.AsyncExitStack() as stack:  # each is closed, wherever the start ends
            stack.push_async_callback(issued.close)
            await issued.start()
            for part in (ledger, gate, plane, breakers, watch):
                if part is not None:
                    part.start()
                    stack.push_async_callback(part.close)
            yield plane, watch


@contextlib.asynccontextmanager
async def _aside(settings: Settings, name: str) -> AsyncIterator[Aside]:
    aside = Aside(open_state(settings.environ, settings.home), name)
    try:
        yield aside
    finally:
        await aside.close()


@contextlib.asynccontextmanager
async def _speech(settings: Settings, plane: Plane) -> AsyncIterator[Speech]:
    root = settings.registry_root
    shelf = Shelf(functools.partial(unpacked, root), functools.partial(Contents(root).holding, DESCRIPTION))
    speech = Speech(settings, plane.keyring, Visits(plane), shelf, _pull(settings))
    speech.elsewhere = plane.router.endpoint
    plane.router.elsewhere = speech.endpoint
    plane.beside = speech.counts.values
    speech.start()
    try:
        yield speech
    finally:
        await speech.close()


def _pull(settings: Settings) -> Callable[[str], object] | None:
    """Fetches bundles from the registry that the environment names, if it names one."""
    environ = settings.environ
    if not (url := environ.get("SVC_REGISTRY_URL")):
        return None
    options = bundles.Options(
        root=settings.registry_root,
        registry=url,
        key=environ.get("SVC_REGISTRY_KEY") or environ.get("SVC_API_KEY") or None,
        trusted_keys=tuple(key.strip() for key in environ.get("SVC_TRUSTED_KEYS", "").split(",") if key.strip()),
        warn=log.warning,
    )
    return lambda reference: bundles.resolve(reference, options)


def _config(plane: Plane, app: _Routes) -> uvicorn.Config:
    dialects = [plugins.load("dialects", name).dialect for name in ("openai", "anthropic")]
    hot = {dialect.endpoint.encode(): dialect for dialect in dialects}
    return uvicorn.Config(
        app,
        http=functools.partial(FrontDoor, plane, hot),  # type: ignore[arg-type]
        ws=functools.partial(Socket, plane),  # type: ignore[arg-type]
        ws_per_message_deflate=False,  # audio does not get smaller, and it costs memory for each session
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # anyone can send them, and the access log says who has come
        server_header=False,
        timeout_graceful_shutdown=math.ceil(plane.settings.gateway.drain_timeout),
        timeout_keep_alive=int(plane.settings.gateway.keep_alive),
    )
