"""Apply a changed configuration to a running gateway. In-flight requests keep their configuration.

SIGHUP ── in a thread: read and check the files ──> apply in one step of the event loop
               └── on an error ──> log it, and keep the running configuration
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from svc.errors import SvcError, UsageError
from svc.gateway.cache.response_cache import cache_needs_restart, reconfigure_cache
from svc.gateway.net.server_tls import ServerContext, ServerTls, load_server_context
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.provider_warnings import provider_warnings
from svc.gateway.routing.providers import Provider, build_providers
from svc.gateway.routing.unconfigured_providers import models_without_key
from svc.gateway.upstream.pool import default_ssl_context
from svc.settings import Settings

log = logging.getLogger("svc.reload")

SUPERVISOR_RESTART_SETTINGS = {"gateway": ("host", "port", "workers", "role")}
"""Settings, by table, that a supervisor with several workers reads at its start only."""
RESTART_SETTINGS = {
    "gateway": (*SUPERVISOR_RESTART_SETTINGS["gateway"], "drain_timeout", "trusted_proxies"),
    "console": ("enabled",),
    "telemetry": ("level", "log", "access_log_file", "content"),
    "local": ("enabled",),
    "speech": ("workers", "max_sessions", "default_voice", "max_syntheses", "max_queue"),
}
"""Settings, by table, that a single process reads at its start only."""


@dataclass(frozen=True)
class _LoadedConfig:
    settings: Settings
    providers: list[Provider]
    backends: list[Backend]
    tls: ssl.SSLContext | None
    """For connections to providers."""
    server_tls: ServerContext | None
    """For connections of clients."""


class ConfigReloader:
    """Reloads the configuration. `load_settings` reads it, and `apply_settings` gets it after the gateway's parts.

    `server_tls` gets the new certificate.
    """

    def __init__(
        self,
        context: GatewayContext,
        load_settings: Callable[[], Settings],
        apply_settings: Callable[[Settings], None],
        server_tls: ServerTls | None = None,
    ) -> None:
        self._context = context
        self._load_settings = load_settings
        self._apply_settings = apply_settings
        self._server_tls = server_tls
        self._task: asyncio.Task[None] | None = None
        self._requested = False
        self._closed = False

    def request(self) -> None:
        """Start a reload. A request during a reload starts one more after it. No reload starts after `close`."""
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
                loaded = await asyncio.to_thread(self._load_config)
            except SvcError as error:
                log.error("the configuration was not reloaded, the previous one stays in use: %s", error.message)
            except Exception:  # boundary: the gateway must survive any file content
                log.exception("the configuration was not reloaded, the previous one stays in use")
            else:
                self._try_apply(loaded)

    def _load_config(self) -> _LoadedConfig:
        """Read and check the configuration. Runs in a thread. Raises UsageError."""
        settings = reload_settings(self._load_settings, self._context.config.current.settings)
        providers = build_providers(settings)
        backends = [backend for provider in providers for backend in build_backends(provider)]
        return _LoadedConfig(
            settings,
            providers,
            backends,
            default_ssl_context() if any(backend.origin.uses_tls for backend in backends) else None,
            load_server_context(settings.gateway.tls_cert, settings.gateway.tls_key)
            if settings.gateway.tls_cert and settings.gateway.tls_key
            else None,
        )

    def _try_apply(self, loaded: _LoadedConfig) -> None:
        try:
            self._apply_config(loaded)
        except Exception:  # boundary: no one awaits the task, so log the error
            log.exception("the configuration was reloaded only in part: restart the gateway")

    def _apply_config(self, loaded: _LoadedConfig) -> None:
        running = self._context.config.current
        unchanged = changed_settings(running.settings, loaded.settings, RESTART_SETTINGS)
        settings = _keep_restart_settings(running.settings, loaded.settings)
        if cache_needs_restart(running.settings, settings):
            unchanged.append("[cache] enabled")
            settings = msgspec.structs.replace(settings, cache=running.settings.cache)
        if (self._server_tls is None) != (loaded.server_tls is None):
            unchanged.append("[gateway] tls_cert")
        elif self._server_tls is not None and loaded.server_tls is not None:
            self._server_tls.replace(loaded.server_tls)
        self._context.configure(
            settings,
            reconfigure_cache(running.cache, running.settings, settings),
            loaded.backends,
            models_without_key(settings, loaded.providers),
            loaded.tls,
        )
        self._apply_settings(settings)
        log.warning("reloaded the configuration from %s", settings.path or "the environment (there is no file)")
        if unchanged:
            log.warning("%s", restart_required_warning(unchanged))
        for warning in provider_warnings(settings, loaded.providers):
            log.warning("%s", warning)


def _keep_restart_settings(running: Settings, changed: Settings) -> Settings:
    """Return the changed settings, except those that need a restart, which keep their running values."""
    tables = {
        table: msgspec.structs.replace(
            getattr(changed, table), **{name: getattr(getattr(running, table), name) for name in names}
        )
        for table, names in RESTART_SETTINGS.items()
    }
    return msgspec.structs.replace(changed, **tables)


def reload_settings(load_settings: Callable[[], Settings], running: Settings) -> Settings:
    """Return the current configuration. Raises UsageError, also if the file no longer exists."""
    settings = load_settings()
    if running.path is not None and settings.path != running.path and not running.path.is_file():
        raise UsageError(f"{running.path} no longer exists.")
    return settings


def changed_settings(running: Settings, changed: Settings, setting_names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of these settings, given by table, that differ."""
    return [
        f"[{table}] {name}"
        for table, names in setting_names.items()
        for name in names
        if getattr(getattr(running, table), name) != getattr(getattr(changed, table), name)
    ]


def restart_required_warning(setting_names: Sequence[str]) -> str:
    """Return the warning about settings that need a restart."""
    return f"changed, but applied only after a restart: {', '.join(setting_names)}"
