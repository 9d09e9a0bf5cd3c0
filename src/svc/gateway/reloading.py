"""Takes a changed configuration into a running gateway, between two requests: what runs goes on as it was begun.

request ── in a thread: the files are read, and checked ──> applied in one step of the event loop
              └── something is wrong with them ──> logged, and the running configuration stays
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from svc.errors import SvcError, UsageError
from svc.gateway.cache.cache import needs_restart, reconfigured
from svc.gateway.missing_providers import missing_providers
from svc.gateway.offers import Offer, offers_of
from svc.gateway.plane import Plane
from svc.gateway.providers import Provider, providers_of, unkeyed_models
from svc.gateway.upstream import default_tls
from svc.settings import Settings

log = logging.getLogger("svc.reload")

RESTART = {
    "gateway": ("host", "port", "workers", "drain_timeout"),
    "local": ("enabled", "model"),
    "speech": ("workers", "max_sessions"),
}
"""By table, what is fixed at the start."""


@dataclass(frozen=True)
class _Loaded:
    settings: Settings
    providers: list[Provider]
    offers: list[Offer]
    tls: ssl.SSLContext | None


class Reloader:
    """`load` reads the configuration anew; `apply` is told of it after the gateway's own parts have it."""

    def __init__(self, plane: Plane, load: Callable[[], Settings], apply: Callable[[Settings], None]) -> None:
        self._plane = plane
        self._load = load
        self._apply = apply
        self._task: asyncio.Task[None] | None = None
        self._requested = False

    def request(self) -> None:
        """Reloads soon. What is requested while that runs is one more reload after it."""
        self._requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="reload")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._requested:
            self._requested = False
            try:
                loaded = await asyncio.to_thread(self._read)
            except SvcError as error:
                log.error("not reloaded, the running configuration stays: %s", error.message)
            except Exception:  # the edge: whatever a file does, the gateway goes on
                log.exception("not reloaded, the running configuration stays")
            else:
                self._take(loaded)

    def _read(self) -> _Loaded:
        """In a thread. Raises UsageError."""
        settings, running = self._load(), self._plane.settings
        if running.path is not None and settings.path != running.path and not running.path.is_file():
            raise UsageError(f"{running.path} is gone.")
        providers = providers_of(settings)
        offers = [offer for provider in providers for offer in offers_of(provider)]
        return _Loaded(settings, providers, offers, default_tls() if any(each.origin.tls for each in offers) else None)

    def _take(self, loaded: _Loaded) -> None:
        plane, settings = self._plane, loaded.settings
        fixed = _changed(plane.settings, settings)
        plane.cache = reconfigured(plane.cache, plane.settings, settings)
        plane.configure(settings, loaded.offers, unkeyed_models(settings, loaded.providers), loaded.tls)
        self._apply(settings)
        log.warning("reloaded the configuration from %s", settings.path or "the environment (there is no file)")
        if fixed:
            log.warning("changed, and in force only after a restart: %s", ", ".join(fixed))
        if missing := missing_providers(settings, loaded.providers):
            log.warning("%s", missing)


def _changed(before: Settings, after: Settings) -> list[str]:
    return [
        f"[{table}] {name}"
        for table, names in RESTART.items()
        for name in names
        if getattr(getattr(before, table), name) != getattr(getattr(after, table), name)
    ] + (["[cache] enabled"] if needs_restart(before, after) else [])
