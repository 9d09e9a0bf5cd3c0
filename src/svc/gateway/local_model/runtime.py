"""Runs the models of this machine: loads a model for its first request, and unloads it when it is idle.

unloaded ── load() ──> loading ──> loaded ── idle, or its memory is needed ──> unloaded
                          └── failed: load() raises, and for a few seconds every other load() as well

Each loaded model has a child process of its own, so that a crash affects no other model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from svc.errors import CommandFailed, ProviderFailed, SvcError
from svc.gateway.local_model.cgroup_limits import read_memory_limit
from svc.gateway.local_model.supervisor import (
    DEFAULT_LOCAL_MAX_TOKENS,
    LOCAL_MODEL_SLOTS,
    LocalModelSupervisor,
    LocalServerOptions,
    Sampling,
    inference_thread_count,
)
from svc.settings import LocalModelSettings, LocalSettings
from svc.stores.local_models import LocalModel
from svc.wire.type_names import with_json_types

log = logging.getLogger("svc.local")

LocalModelState = Literal["unloaded", "loading", "loaded", "failed"]

DEFAULT_MEMORY_SHARE = 0.75
FALLBACK_MEMORY_BYTES = 4 << 30
"""Assumed memory of a machine that does not report it. Models get DEFAULT_MEMORY_SHARE of it."""
FAILURE_PAUSE_SECONDS = 5.0
"""Seconds after a failed load in which requests get its error without another load."""
MAX_RESTART_WAIT_SECONDS = 5.0
"""A request waits for a crashed model only if its restart begins within this time."""
MEMORY_POLL_SECONDS = 0.1
"""The interval in which a load checks whether a busy model has become idle."""
CONNECT_GRACE_SECONDS = 0.25
"""Seconds after `load` in which its caller connects to the process."""
SWEEP_SECONDS = 1.0


class LocalModelStatus(msgspec.Struct, frozen=True):
    """The state of a model."""

    name: str
    state: LocalModelState
    size_bytes: int
    """Bytes of its file."""
    memory_bytes: int
    """The estimated memory when it is loaded."""
    pid: int | None = None
    error: str | None = None
    """Why its last load failed."""


class _Entry:
    """A model, with its child process if it is loaded."""

    def __init__(self, model: LocalModel, options: LocalModelSettings | None) -> None:
        self.model = model
        self.options = options
        self.supervisor: LocalModelSupervisor | None = None
        self.load_task: asyncio.Task[LocalModelSupervisor] | None = None
        self.reserved_bytes = 0
        """Memory that the model occupies, or will when its load is complete."""
        self.waits_for_memory = False
        self.waiters = 0
        """Requests that wait for the model."""
        self.used_at = -math.inf
        """Loop time in seconds of the last call of `load`."""
        self.is_stale = False
        """Whether the process has other options than the entry, or the model is no longer installed."""
        self.is_removed = False
        self.failure: str | None = None
        self.failed_at = -math.inf

    @property
    def context_window(self) -> int:
        return (self.options and self.options.context_window) or self.model.context_window

    @property
    def max_output_tokens(self) -> int:
        return (self.options and self.options.max_output_tokens) or DEFAULT_LOCAL_MAX_TOKENS

    @property
    def slots(self) -> int:
        """The concurrent requests. An embedding model has one, so that a text always gets the same vector."""
        if self.options and self.options.parallel:
            return self.options.parallel
        return 1 if self.model.kind == "embedding" else LOCAL_MODEL_SLOTS

    @property
    def memory_bytes(self) -> int:
        return self.model.memory_bytes(self.context_window)

    @property
    def state(self) -> LocalModelState:
        if self.load_task is not None:
            return "loading"
        if self.supervisor is not None:
            return "loaded" if self.supervisor.base_url is not None else "loading"
        return "failed" if self.failure is not None else "unloaded"

    def build_server_options(self, api_key: str) -> LocalServerOptions:
        """Return the options of the child process. Raises CommandFailed for invalid metadata of the model."""
        options, header = self.options, self.model.header
        try:
            sampling = msgspec.convert(self.model.sampling, Sampling)
        except msgspec.ValidationError as error:
            reason = with_json_types(str(error))
            raise CommandFailed(f"{self.model.name} has an invalid `sampling`: {reason}.") from error
        return LocalServerOptions(
            model=self.model.name,
            model_path=str(self.model.path),
            key=api_key,
            context=self.context_window,
            slots=self.slots,
            max_tokens=self.max_output_tokens,
            sampling=sampling,
            threads=(options and options.threads) or inference_thread_count(),
            gpu_layers=options.gpu_layers if options else None,
            kind=self.model.kind,
            has_pooling=header is None or header.has_pooling,
        )


class LocalModelRuntime:
    """The models of this machine, and the child processes of those that are loaded."""

    def __init__(self, *, memory_share: float = 1.0) -> None:
        """`memory_share` is the part of the memory that this process may use."""
        self.api_key = secrets.token_urlsafe(32)
        """The key of all child processes."""
        self.on_serving: Callable[[str], None] = lambda _: None
        """Called with the name of a model whose process has started."""
        self.on_unload: Callable[[str], None] = lambda _: None
        """Called with the name of a model whose process is about to end. No request is in progress."""
        self.last_request_at: Callable[[str], float] = lambda _: -math.inf
        """Returns the loop time of a model's last request, which is now while a request is in progress."""
        self._memory_share = memory_share
        self._settings = LocalSettings()
        self._entries: dict[str, _Entry] = {}
        self._stopping: set[LocalModelSupervisor] = set()
        """Child processes that are about to end."""
        self._sweep_task: asyncio.Task[None] | None = None

    def configure(self, settings: LocalSettings, models: Mapping[str, LocalModel]) -> None:
        """Use changed settings and models.

        A loaded model that is no longer installed, or whose options changed, is unloaded as soon as it is idle.
        """
        self._settings = settings
        options = {row.name: row for row in settings.models}
        for name, model in models.items():
            entry = self._entries.setdefault(name, _Entry(model, options.get(name)))
            if entry.is_removed or (entry.model, entry.options) != (model, options.get(name)):
                entry.model, entry.options = model, options.get(name)
                entry.is_stale, entry.is_removed, entry.failure = True, False, None
        for name in self._entries.keys() - models.keys():
            self._entries[name].is_stale = self._entries[name].is_removed = True

    async def start(self) -> None:
        """Load the model of `[local]`, and begin to unload idle ones. Raises CommandFailed if it does not load.

        Without the default model, the other models are loaded by their first requests.
        """
        name = self._settings.model
        if name in self._entries:
            try:
                await self._load_entry(self._entries[name])
            except ProviderFailed as error:
                raise CommandFailed(error.reason or error.message) from error
        elif name == LocalSettings().model and self._entries:
            log.info("%s is not installed: %s load with their first request", name, ", ".join(self._entries))
        else:
            others = f" Installed: {', '.join(self._entries)}." if self._entries else ""
            raise CommandFailed(f"{name} is not installed.{others} Add it with: svc models add {name}")
        self._sweep_task = asyncio.create_task(self._sweep_repeatedly(), name="local models")

    async def close(self) -> None:
        """End all child processes."""
        tasks = [self._sweep_task, *(entry.load_task for entry in self._entries.values())]
        for task in tasks:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        running = [entry.supervisor for entry in self._entries.values() if entry.supervisor is not None]
        await asyncio.gather(*(supervisor.stop() for supervisor in (*running, *self._stopping)))

    def statuses(self) -> list[LocalModelStatus]:
        """Return the state of each installed model."""
        return [self._describe(name, entry) for name, entry in self._entries.items() if not entry.is_removed]

    def status(self, name: str) -> LocalModelStatus | None:
        """Return the state of a model, or None if it is not installed."""
        entry = self._entries.get(name)
        return self._describe(name, entry) if entry is not None and not entry.is_removed else None

    def model(self, name: str) -> LocalModel | None:
        """Return an installed model."""
        entry = self._entries.get(name)
        return entry.model if entry is not None and not entry.is_removed else None

    def limits(self, name: str) -> tuple[int, int]:
        """Return the context window of a model, and its maximum number of output tokens."""
        entry = self._entries[name]
        return entry.context_window, entry.max_output_tokens

    def slots(self, name: str) -> int:
        """Return the number of requests that a model serves at a time."""
        return self._entries[name].slots

    def _describe(self, name: str, entry: _Entry) -> LocalModelStatus:
        pid = entry.supervisor.pid if entry.supervisor else None
        size = entry.model.size_bytes
        return LocalModelStatus(name, entry.state, size, entry.memory_bytes, pid, entry.failure)

    async def load(self, name: str) -> int:
        """Return the port of a model's process. Load the model first if needed.

        Raises ProviderFailed if it cannot be loaded, or not within `[local] load_timeout`.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise ProviderFailed(f"The local model {name} is no longer installed.")
        entry.waiters += 1
        try:
            async with asyncio.timeout(self._settings.load_timeout):
                base_url = await self._load_entry(entry)
        except TimeoutError:
            message = f"The local model {name} was not loaded within {self._settings.load_timeout:g} s"
            cause = ": the models in use leave no memory for it" if entry.waits_for_memory else ""
            raise ProviderFailed(f"{message}{cause}.") from None
        finally:
            entry.waiters -= 1
            entry.used_at = asyncio.get_running_loop().time()
        return urlsplit(base_url).port or 0

    async def _load_entry(self, entry: _Entry) -> str:
        loop = asyncio.get_running_loop()
        if entry.supervisor is None and entry.load_task is None:
            if entry.failure is not None and loop.time() - entry.failed_at < FAILURE_PAUSE_SECONDS:
                raise _load_error(entry.model.name, entry.failure)
            entry.load_task = loop.create_task(self._start_process(entry), name=f"load {entry.model.name}")
            entry.load_task.add_done_callback(_retrieve_exception)
        if entry.load_task is not None:
            supervisor = await asyncio.shield(entry.load_task)
        else:
            assert entry.supervisor is not None  # otherwise there is a task
            supervisor = entry.supervisor
            if supervisor.base_url is None and supervisor.restart_delay > MAX_RESTART_WAIT_SECONDS:
                reason = f"it exited repeatedly, and is restarted after {supervisor.restart_delay:.0f} s"
                raise _load_error(entry.model.name, reason)
        return await supervisor.wait_until_serving()

    async def _start_process(self, entry: _Entry) -> LocalModelSupervisor:
        name, needed_bytes = entry.model.name, 0
        entry.failure = None
        try:
            needed_bytes = await self._reserve_memory(entry)
            entry.is_stale = False
            log.info("loading %s", name)
            supervisor = LocalModelSupervisor(
                entry.build_server_options(self.api_key),
                start_timeout=self._settings.load_timeout,
                on_address=lambda _: self.on_serving(name),
            )
            await supervisor.start()
        except BaseException as error:
            entry.reserved_bytes -= needed_bytes
            if isinstance(error, SvcError):
                entry.failure, entry.failed_at = error.message, asyncio.get_running_loop().time()
                log.error("the local model %s was not loaded: %s", name, error.message)
                raise _load_error(name, error.message, error) from error
            raise
        else:
            entry.supervisor = supervisor
            return supervisor
        finally:
            entry.load_task = None

    async def _reserve_memory(self, entry: _Entry) -> int:
        """Reserve the memory of a model, and return its bytes. Unload idle models, or wait for busy ones.

        Raises CommandFailed if the model is larger than the memory of all models, or no model becomes idle.
        """
        total = int(self._settings.memory_bytes(_default_memory_bytes()) * self._memory_share)
        needed = entry.memory_bytes
        if needed > total:
            raise _MemoryTooSmall(needed, total)
        deadline = asyncio.get_running_loop().time() + self._settings.load_timeout
        entry.waits_for_memory = True
        try:
            while sum(other.reserved_bytes for other in self._entries.values()) + needed > total:
                victim = self._least_recently_used()
                if victim is not None:
                    log.info("unloading %s, because %s needs memory", victim.model.name, entry.model.name)
                    await self._unload(victim)
                elif asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(MEMORY_POLL_SECONDS)
                else:
                    raise CommandFailed("the models in use leave no memory for it")
        finally:
            entry.waits_for_memory = False
        entry.reserved_bytes += needed
        return needed

    def _least_recently_used(self) -> _Entry | None:
        """Return the idle model that was not used for the longest time, or None if no model is idle."""
        now = asyncio.get_running_loop().time()
        idle = [entry for entry in self._entries.values() if self._is_idle(entry, now)]
        return min(idle, key=self._used_at, default=None)

    def _used_at(self, entry: _Entry) -> float:
        return max(entry.used_at, self.last_request_at(entry.model.name))

    def _is_idle(self, entry: _Entry, now: float) -> bool:
        return not self._is_busy(entry, now) and now - entry.used_at >= CONNECT_GRACE_SECONDS

    def _is_busy(self, entry: _Entry, now: float) -> bool:
        return entry.supervisor is None or entry.waiters > 0 or self.last_request_at(entry.model.name) >= now

    async def _unload(self, entry: _Entry) -> None:
        """End the process of an idle model. In the same step of the event loop, its connections are closed."""
        supervisor, entry.supervisor, occupied_bytes = entry.supervisor, None, entry.reserved_bytes
        if supervisor is None:
            return
        self.on_unload(entry.model.name)
        self._stopping.add(supervisor)
        await supervisor.stop()  # if it is cancelled, `close` waits for the process
        self._stopping.discard(supervisor)
        entry.reserved_bytes -= occupied_bytes

    async def _sweep_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._sweep()
            except Exception:  # boundary: the next sweep may succeed
                log.exception("error while unloading idle models")

    async def _sweep(self) -> None:
        """Unload stale models, and models that were idle for `idle_timeout`, which `[local] model` is exempt from."""
        now, idle_timeout = asyncio.get_running_loop().time(), self._settings.idle_timeout
        for name, entry in list(self._entries.items()):
            if self._is_idle(entry, now) or (entry.is_stale and not self._is_busy(entry, now)):
                expired = 0 < idle_timeout <= now - self._used_at(entry) and name != self._settings.model
                if entry.is_stale or expired:
                    log.info("unloading %s, because it is %s", name, "changed" if entry.is_stale else "idle")
                    await self._unload(entry)
            if entry.is_removed and entry.supervisor is None and entry.load_task is None and not entry.waiters:
                del self._entries[name]


class _MemoryTooSmall(CommandFailed):
    def __init__(self, needed: int, total: int) -> None:
        super().__init__(
            f"it needs about {needed / (1 << 30):.2f} GiB, and all local models together have {total / (1 << 30):.2f} "
            "GiB. Raise `memory` in [local], or lower `context_window` of the model in [[local.models]]"
        )


def _load_error(name: str, reason: str, error: SvcError | None = None) -> ProviderFailed:
    """Return the client's error. Only the log has messages of llama.cpp, which contain paths."""
    detail = f": {error.message}" if isinstance(error, _MemoryTooSmall) else ""
    return ProviderFailed(f"The local model {name} cannot be loaded{detail}.", reason=reason)


def _retrieve_exception(task: asyncio.Task[LocalModelSupervisor]) -> None:
    """Mark the error of a load as handled: all requests that waited for it may have ended."""
    if not task.cancelled():
        task.exception()


def _default_memory_bytes() -> int:
    """Return three quarters of the machine's or the container's memory."""
    limits = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if (container_limit := read_memory_limit()) is not None:
        limits.append(container_limit)
    return int(min(limits, default=FALLBACK_MEMORY_BYTES) * DEFAULT_MEMORY_SHARE)
