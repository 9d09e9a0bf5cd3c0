"""Applies a changed configuration to a running gateway. Requests in progress keep the configuration they began with.

request ── in a thread: the files are read, and checked ──> applied in one step of the event loop
              └── something is wrong with them ──> logged, and the running configuration stays
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from svc.errors import SvcError, UsageError
from svc.gateway.cache.cache import needs_restart, reconfigured
from svc.gateway.missing_providers import missing_providers
from svc.gateway.offers import Offer, offers_of
from svc.gateway.plane import Plane
from svc.gateway.providers import Provider, providers_of, unkeyed_models
from svc.gateway.upstream import default_tls
from svc.settings import Settings

log = logging.getLogger("svc.reload")

SUPERVISOR = {"gateway": ("host", "port", "workers")}
"""By table, the settings that a supervisor with several workers takes at its start only."""
RESTART = {
    "gateway": (*SUPERVISOR["gateway"], "drain_timeout"),
    "local": ("enabled", "model"),
    "speech": ("workers", "max_sessions"),
}
"""By table, the settings that a single process takes at its start only."""


@dataclass(frozen=True)
class _Loaded:
    settings: Settings
    providers: list[Provider]
    offers: list[Offer]
    tls: ssl.SSLContext | None


class Reloader:
    """`load` reads the configuration again. `apply` gets it after the gateway's own parts."""

    def __init__(self, plane: Plane, load: Callable[[], Settings], apply: Callable[[Settings], None]) -> None:
        self._plane = plane
        self._load = load
        self._apply = apply
        self._task: asyncio.Task[None] | None = None
        self._requested = False
        self._closed = False

    def request(self) -> None:
        """Start a reload. A request during a reload starts one more after it. After `close` nothing starts."""
        self._requested = True
        if self._closed:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="reload")

    async def close(self) -> None:
        self._closed = True
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
                self._try_to_take(loaded)

    def _read(self) -> _Loaded:
        """In a thread. Raises UsageError."""
        settings = reread(self._load, self._plane.settings)
        providers = providers_of(settings)
        offers = [offer for provider in providers for offer in offers_of(provider)]
        return _Loaded(settings, providers, offers, default_tls() if any(each.origin.tls for each in offers) else None)

    def _try_to_take(self, loaded: _Loaded) -> None:
        try:
            self._take(loaded)
        except Exception:  # the edge: nobody awaits the task, so nobody else would say it
            log.exception("the configuration is reloaded in part only: restart the gateway")

    def _take(self, loaded: _Loaded) -> None:
        plane = self._plane
        fixed = changed_names(plane.settings, loaded.settings, RESTART)
        settings = _with_fixed(plane.settings, loaded.settings)
        if needs_restart(plane.settings, settings):
            fixed.append("[cache] enabled")
            settings = msgspec.structs.replace(settings, cache=plane.settings.cache)
        plane.cache = reconfigured(plane.cache, plane.settings, settings)
        plane.configure(settings, loaded.offers, unkeyed_models(settings, loaded.providers), loaded.tls)
        self._apply(settings)
        log.warning("reloaded the configuration from %s", settings.path or "the environment (there is no file)")
        if fixed:
            log.warning("%s", restart_warning(fixed))
        if missing := missing_providers(settings, loaded.providers):
            log.warning("%s", missing)


def _with_fixed(running: Settings, changed: Settings) -> Settings:
    """The changed settings, with those that a reload does not change as they are in force."""
    tables = {
        table: msgspec.structs.replace(
            getattr(changed, table), **{name: getattr(getattr(running, table), name) for name in names}
        )
        for table, names in RESTART.items()
    }
    return msgspec.structs.replace(changed, **tables)


def reread(load: Callable[[], Settings], running: Settings) -> Settings:
    """Return the configuration as it is now. Raises UsageError, also when the file of the running one is gone."""
    settings = load()
    if running.path is not None and settings.path != running.path and not running.path.is_file():
        raise UsageError(f"{running.path} is gone.")
    return settings


def changed_names(before: Settings, after: Settings, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return which of these settings, given by table, are different."""
    return [
        f"[{table}] {name}"
        for table, some in names.items()
        for name in some
        if getattr(getattr(before, table), name) != getattr(getattr(after, table), name)
    ]


def restart_warning(names: Sequence[str]) -> str:
    """Return the warning about settings that a reload does not change."""
    return f"changed, and in force only after a restart: {', '.join(names)}"
