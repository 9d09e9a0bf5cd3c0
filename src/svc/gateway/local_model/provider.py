"""Offers the installed models of this machine as the provider `local`, which is called like any other upstream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from svc.gateway.local_model.runtime import LocalModelRuntime
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.fair_queue import FairQueue
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.gateway.routing.providers import build_provider
from svc.gateway.routing.router import Router
from svc.gateway.upstream.pool import UpstreamPool
from svc.settings import ModelSettings, ProviderSettings, Settings
from svc.stores.local_models import LocalModel, find_local_models, models_folder
from svc.wire.chat import UpstreamOverrides

log = logging.getLogger("svc.local")

LOOPBACK_BASE_URL = "http://127.0.0.1/v1"
EMBEDDING_OVERRIDES = UpstreamOverrides(rejects=("dimensions",), token_input=False)
"""llama.cpp ignores `dimensions`, and takes numbers for tokens of the model's own vocabulary."""
CHAT_OVERRIDES = UpstreamOverrides(image_input=False, forced_tools=False)
"""llama.cpp enforces a JSON schema, but `tool_choice` only with some chat templates, and no named tool."""
WATCH_SECONDS = 1.0
"""The interval in which changes of the folders of models are noticed."""


class LocalModels:
    """Keeps the backends of the router equal to the models that are installed."""

    def __init__(
        self, settings: Settings, router: Router, runtime: LocalModelRuntime, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called after the backends of the router have changed."""
        self.runtime = runtime
        self._router = router
        self._on_change = on_change
        self._settings = settings
        self._backends: dict[str, Backend] = {}
        self._queues: dict[str, FairQueue] = {}
        """The queues of embedding models. A queue outlives the backend and the process of its model."""
        self._watch_task: asyncio.Task[None] | None = None
        self._folders_state: tuple[int, ...] = ()
        self._reload_requested = asyncio.Event()

    def configure(self, settings: Settings, models: Mapping[str, LocalModel]) -> None:
        """Offer these models, with the options of the settings."""
        self._settings = settings
        self.runtime.configure(settings.local, models)
        for row in settings.local.models:
            if row.name not in models:
                log.warning("[[local.models]] names a model that is not installed: %r; see: svc models ls", row.name)
        self._router.remove_local_models(self._backends.keys() - models.keys())
        first = settings.local.model  # listed first: commands without a model use it
        names = sorted(models, key=lambda name: (name != first, models[name].kind != "chat", name))
        self._backends = {name: self._build_backend(models[name]) for name in names}
        self._router.put_backends(self._backends.values())
        self._on_change()

    def reload(self, settings: Settings) -> None:
        """Apply changed settings soon: the folders are read in a thread."""
        self._settings = settings
        self._reload_requested.set()

    def renew_backend(self, name: str) -> None:
        """Put a new backend for a new process, whose health has no history."""
        model = self.runtime.model(name)
        if name in self._backends and model is not None:
            self._backends[name] = self._build_backend(model)
            self._router.put_backends([self._backends[name]])

    def backend(self, name: str) -> Backend | None:
        """Return the backend of a model."""
        return self._backends.get(name)

    def _build_backend(self, model: LocalModel) -> Backend:
        context_window, max_output_tokens = self.runtime.limits(model.name)
        entry = ProviderSettings(
            name=LOCAL_PROVIDER,
            quirks=EMBEDDING_OVERRIDES if model.kind == "embedding" else CHAT_OVERRIDES,
            models=(
                ModelSettings(
                    id=model.name,
                    kind=model.kind,
                    context_window=context_window,
                    max_output_tokens=None if model.kind == "embedding" else max_output_tokens,
                    use_case=model.description or "on this machine",
                    input_price=0,
                    output_price=0,
                ),
            ),
        )
        provider = build_provider(entry, LOOPBACK_BASE_URL, self.runtime.api_key, local_model=model.name)
        backend = build_backends(provider)[0]
        if model.kind == "embedding":
            backend.queue = self._queues.setdefault(model.name, FairQueue(f"The model {model.name}"))
            backend.queue.configure(slots=self.runtime.slots(model.name), size=self._settings.local.max_queue)
        return backend

    def start_watching(self) -> None:
        """Notice models that are added or removed while the gateway runs."""
        self._folders_state = _folders_state(self._settings)
        self._watch_task = asyncio.create_task(self._watch(), name="installed models")

    async def close(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.wait([self._watch_task])

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._reload_requested.wait()
            try:
                state = _folders_state(self._settings)
                if self._reload_requested.is_set() or state != self._folders_state:
                    self._reload_requested.clear()
                    models = await asyncio.to_thread(find_local_models, self._settings)
                    self._folders_state = state
                    self.configure(self._settings, models)
            except Exception:  # boundary: the next look may succeed
                log.exception("error while looking for installed models")


def _folders_state(settings: Settings) -> tuple[int, ...]:
    """Return a value that changes when a model is added or removed."""
    times = []
    for folder in (models_folder(settings.home), settings.registry_root):
        with contextlib.suppress(OSError):
            times.append(os.stat(folder).st_mtime_ns)
    return tuple(times)


@asynccontextmanager
async def run_local_models(
    settings: Settings, router: Router, upstream: UpstreamPool, on_change: Callable[[], None]
) -> AsyncIterator[LocalModels | None]:
    """Offer the models of this machine until the context ends. Yields None if they are disabled.

    Raises CommandFailed if the model of `[local]` is not installed or does not start.
    """
    if not settings.local.enabled:
        yield None
        return
    runtime = LocalModelRuntime(memory_share=1 / settings.gateway.workers)
    local_models = LocalModels(settings, router, runtime, on_change)

    def last_request_at(name: str) -> float:
        backend = local_models.backend(name)
        return upstream.last_request_at(backend.origin) if backend is not None else 0.0

    def close_connections(name: str) -> None:
        backend = local_models.backend(name)
        if backend is not None:
            upstream.close_origin(backend.origin)

    runtime.on_serving, runtime.on_unload = local_models.renew_backend, close_connections
    runtime.last_request_at = last_request_at
    upstream.local_models = runtime
    try:
        local_models.configure(settings, await asyncio.to_thread(find_local_models, settings))
        await runtime.start()
        local_models.start_watching()
        yield local_models
    finally:
        await local_models.close()
        await runtime.close()
