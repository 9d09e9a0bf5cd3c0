"""Runs a pipeline on a running Ray cluster. One actor per job loads the models once.

Inputs are read and outputs are written on this machine, so the cluster's machines share no files. Each machine resolves
bundles itself. The addresses and keys for the stages are sent with the pipeline. The state folder is not.
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
from svc.pipeline.definition import DataKind, Pipeline, parse_pipeline
from svc.pipeline.orchestrator import Orchestrator, RunError, RunOutcome, StageListener
from svc.pipeline.stages.base import StageChunk

FIRST_ACTOR_TIMEOUT_SECONDS = 300.0
"""Seconds until the first actor must be ready. An actor may have to download its models."""
OTHER_ACTORS_TIMEOUT_SECONDS = 10.0
"""Seconds that the other actors have after the first is ready."""
_FORWARDED_VARIABLES = re.compile(
    r"SVC_(GATEWAY_URL|PLATFORM_URL|API_KEY|REGISTRY_(URL|KEY|ROOT)|TRUSTED_KEYS|BUNDLE_MAX_(BYTES|RATIO))"
)
_PROVIDER_VARIABLES = re.compile(r"(PROVIDER|OPENAI|ANTHROPIC|GROQ)_[A-Z_]+")


MAX_ACTOR_ATTEMPTS = 3
RAY_CONNECT_TIMEOUT_SECONDS = 10.0
_HOST_AND_PORT = re.compile(r"(?:ray://)?([^/:]+):([0-9]{1,5})")


class _ActorLost(CommandFailed):
    """An actor that is no longer reachable."""


class ActorStatus(msgspec.Struct):
    """The result of starting an actor."""

    input_kind: DataKind = "text"
    output_kind: DataKind = "text"
    failure: RunError | None = None


class PipelineActor:
    """Runs the pipeline in its own process on a machine of the cluster."""

    def __init__(self, definition: str, source_name: str, environ: Mapping[str, str]) -> None:
        os.environ.update(environ)
        self._definition, self._source_name = definition, source_name
        self._orchestrator: Orchestrator | None = None

    def start(self) -> ActorStatus:
        """Prepare the stages. May be called again."""
        try:
            if self._orchestrator is None:
                self._orchestrator = Orchestrator(parse_pipeline(self._definition, self._source_name), os.environ)
        except SvcError as error:
            return ActorStatus(failure=RunError(None, error.code, error.message))
        return ActorStatus(self._orchestrator.input_kind, self._orchestrator.output_kind)

    def run(self, input_name: str, input_chunk: StageChunk) -> RunOutcome | RunError:
        """Run one input."""
        if (failure := self.start().failure) is not None or self._orchestrator is None:
            return failure or RunError(None, "internal_error", "The actor is not started.")
        return self._orchestrator.run(input_name, input_chunk)


class RayCluster:
    """A context manager for the cluster's actors. Raises CommandFailed if there is no cluster or no free processor."""

    def __init__(
        self, address: str, definition: str, source_name: str, environ: Mapping[str, str], jobs: int | None
    ) -> None:
        self._idle_actors: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Idle actors. None means that no actors are left."""
        self._lock = threading.Lock()
        try:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            raise CommandFailed(f"The Ray cluster {address!r} cannot be reached: {_first_line(error)}") from error
        try:
            resources: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            actor_count = jobs or max(1, int(resources.get("CPU", 1)))
            actor_environ = cluster_environment(parse_pipeline(definition, source_name), environ)
            actor_class: Any = ray.remote(num_cpus=1)(PipelineActor)
            self._actors: list[Any] = [
                actor_class.remote(definition, source_name, actor_environ) for _ in range(actor_count)
            ]
            self._wait_for_actors()
        except BaseException:
            ray.shutdown()
            raise

    def _wait_for_actors(self) -> None:
        """Wait for the first actor, and briefly for the others. Actors without a free processor are not used."""
        starting = {actor.start.remote(): actor for actor in self._actors}
        first_ready, pending = ray.wait([*starting], timeout=FIRST_ACTOR_TIMEOUT_SECONDS)
        if not first_ready:
            raise CommandFailed("The Ray cluster has no free processor, or its workers do not start.")
        others_ready = (
            ray.wait(pending, num_returns=len(pending), timeout=OTHER_ACTORS_TIMEOUT_SECONDS)[0] if pending else []
        )
        for ready in (*first_ready, *others_ready):
            status: ActorStatus = self._get_result(ready)
            if status.failure is not None:
                raise CommandFailed(f"The pipeline cannot run on the cluster: {status.failure.message}")
            self.input_kind, self.output_kind = status.input_kind, status.output_kind
            self._idle_actors.put(starting[ready])
        self.jobs = self._alive_actors = len(first_ready) + len(others_ready)

    def run(self, input_name: str, input_chunk: StageChunk, on_event: StageListener | None = None) -> RunOutcome:
        """Run on an idle actor, and on another one if that actor is lost. Raises SvcError."""
        for _ in range(MAX_ACTOR_ATTEMPTS):
            actor = self._idle_actors.get()
            if actor is None:
                self._idle_actors.put(None)  # wakes the next waiting thread
                raise CommandFailed("All workers of the Ray cluster are lost.")
            try:
                outcome: RunOutcome | RunError = self._get_result(actor.run.remote(input_name, input_chunk))
            except _ActorLost:
                self._record_lost_actor()
                continue
            except BaseException:
                self._idle_actors.put(actor)
                raise
            self._idle_actors.put(actor)
            if isinstance(outcome, RunError):
                raise CommandFailed(outcome.message)
            return outcome
        raise CommandFailed(f"{MAX_ACTOR_ATTEMPTS} workers of the Ray cluster were lost while they ran this input.")

    def _record_lost_actor(self) -> None:
        with self._lock:
            self._alive_actors -= 1
            if not self._alive_actors:
                self._idle_actors.put(None)

    def _get_result(self, object_ref: Any) -> Any:
        try:
            return ray.get(object_ref)
        except ray.exceptions.RayActorError as error:
            raise _ActorLost(f"A worker of the Ray cluster is lost: {_first_line(error)}") from error
        except ray.exceptions.RayError as error:
            raise CommandFailed(f"A worker of the Ray cluster failed: {_first_line(error)}") from error

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()


def cluster_environment(pipeline: Pipeline, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses and keys that the stages use. Has provider keys only if a stage calls a provider."""
    calls_provider = any(stage.target == "integration" for stage in pipeline.stages)
    return {
        name: value
        for name, value in environ.items()
        if _FORWARDED_VARIABLES.fullmatch(name) or (calls_provider and _PROVIDER_VARIABLES.fullmatch(name))
    }


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens on the address. Ray itself would retry for minutes."""
    if (match := _HOST_AND_PORT.fullmatch(address)) is not None:
        socket.create_connection((match[1], int(match[2])), RAY_CONNECT_TIMEOUT_SECONDS).close()


def _first_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().partition("\n")[0][:300]
