"""A pipeline on the machines of a Ray cluster that runs already: one actor for each job, which loads the models once.

Inputs are read here and outputs are written here, so no machine needs the files of another. Each resolves bundles for
itself; the addresses and keys that its stages use go with the pipeline, and the state folder does not.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import ray

from svc.errors import CommandFailed, SvcError
from svc.pipeline.definition import Kind, Pipeline, parse
from svc.pipeline.orchestrator import Failure, Listener, Made, Orchestrator
from svc.pipeline.stages.base import Item

PATIENCE = 300.0
"""Seconds until the first actor must be ready: a worker may have to download its models."""
MORE_PATIENCE = 10.0
"""Seconds that the others have after it."""
_ADDRESSES = re.compile(
    r"SVC_(GATEWAY_URL|PLATFORM_URL|API_KEY|REGISTRY_(URL|KEY|ROOT)|TRUSTED_KEYS|BUNDLE_MAX_(BYTES|RATIO))"
)
_PROVIDERS = re.compile(r"(PROVIDER|OPENAI|ANTHROPIC|GROQ)_[A-Z_]+")


TRIES = 3
CONNECT_SECONDS = 10.0
_PLACE = re.compile(r"(?:ray://)?([^/:]+):([0-9]{1,5})")


class _Lost(CommandFailed):
    """An actor that does not answer any more."""


class Started(msgspec.Struct):
    """What an actor says first."""

    takes: Kind = "text"
    gives: Kind = "text"
    failure: Failure | None = None


class Worker:
    """Runs in a process of its own, on any machine of the cluster."""

    def __init__(self, definition: str, where: str, environ: Mapping[str, str]) -> None:
        os.environ.update(environ)
        self._definition, self._where = definition, where
        self._orchestrator: Orchestrator | None = None

    def start(self) -> Started:
        """Makes everything ready; may be called again."""
        try:
            if self._orchestrator is None:
                self._orchestrator = Orchestrator(parse(self._definition, self._where), os.environ)
        except SvcError as error:
            return Started(failure=Failure(None, error.code, error.message))
        return Started(self._orchestrator.takes, self._orchestrator.gives)

    def run(self, given: str, item: Item) -> Made | Failure:
        """One input."""
        if (failure := self.start().failure) is not None or self._orchestrator is None:
            return failure or Failure(None, "internal_error", "It was not started.")
        return self._orchestrator.run(given, item)


class Cluster:
    """Use it as a context. Raises CommandFailed when there is no cluster, or it has no room."""

    def __init__(self, address: str, definition: str, where: str, environ: Mapping[str, str], jobs: int | None) -> None:
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Actors with nothing to do; None when there are none any more."""
        self._lock = threading.Lock()
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            raise CommandFailed(f"The Ray cluster {address!r} cannot be reached: {_first_line(error)}") from error
        try:
            resources: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            wanted = jobs or max(1, int(resources.get("CPU", 1)))
            ours = cluster_environment(parse(definition, where), environ)
            kind: Any = ray.remote(num_cpus=1)(Worker)
            self._actors: list[Any] = [kind.remote(definition, where, ours) for _ in range(wanted)]
            self._begin()
        except BaseException:
            ray.shutdown()
            raise

    def _begin(self) -> None:
        """Waits for the first, and a little for the others; those that find no room are left out."""
        starting = {actor.start.remote(): actor for actor in self._actors}
        first, later = ray.wait([*starting], timeout=PATIENCE)
        if not first:
            raise CommandFailed("The Ray cluster has no free processor for this, or its workers do not start.")
        more = ray.wait(later, num_returns=len(later), timeout=MORE_PATIENCE)[0] if later else []
        for ready in (*first, *more):
            started: Started = self._get(ready)
            if started.failure is not None:
                raise CommandFailed(f"The pipeline cannot run on the cluster: {started.failure.message}")
            self.takes, self.gives = started.takes, started.gives
            self._idle.put(starting[ready])
        self.jobs = self._alive = len(first) + len(more)

    def run(self, given: str, item: Item, listen: Listener | None = None) -> Made:
        """On whichever actor is idle; on another one when that is lost with its machine. Raises SvcError."""
        for _ in range(TRIES):
            actor = self._idle.get()
            if actor is None:
                self._idle.put(None)  # for whoever waits as well
                raise CommandFailed("All workers of the Ray cluster are lost.")
            try:
                made: Made | Failure = self._get(actor.run.remote(given, item))
            except _Lost:
                self._forget()
                continue
            except BaseException:
                self._idle.put(actor)
                raise
            self._idle.put(actor)
            if isinstance(made, Failure):
                raise CommandFailed(made.message)
            return made
        raise CommandFailed(f"The workers of the Ray cluster were lost {TRIES} times with this input.")

    def _forget(self) -> None:
        with self._lock:
            self._alive -= 1
            if not self._alive:
                self._idle.put(None)

    def _get(self, promise: Any) -> Any:
        try:
            return ray.get(promise)
        except ray.exceptions.RayActorError as error:
            raise _Lost(f"A worker of the Ray cluster is lost: {_first_line(error)}") from error
        except ray.exceptions.RayError as error:
            raise CommandFailed(f"A worker of the Ray cluster failed: {_first_line(error)}") from error

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()


def cluster_environment(pipeline: Pipeline, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses and keys that the stages use; keys of providers only if a stage calls a provider."""
    calls_provider = any(stage.target == "integration" for stage in pipeline.stages)
    return {
        name: value
        for name, value in environ.items()
        if _ADDRESSES.fullmatch(name) or (calls_provider and _PROVIDERS.fullmatch(name))
    }


def _knock(address: str) -> None:
    """Ray itself looks for minutes for somebody who is not there. Raises OSError."""
    if (place := _PLACE.fullmatch(address)) is not None:
        socket.create_connection((place[1], int(place[2])), CONNECT_SECONDS).close()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
