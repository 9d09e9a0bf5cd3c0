"""Who does what: a definition becomes stages that are ready, or a clear refusal. Nothing runs here.

look      reads the index, what is here already, and the metadata of what is not; downloads no bundle, needs no key
prepare   resolves every bundle and makes every stage; what does not fit is refused before anything runs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from svc import plugins
from svc.bundles.metadata import Metadata
from svc.bundles.platform import fallbacks
from svc.bundles.reference import choose
from svc.bundles.reference import parse as parse_reference
from svc.bundles.remote import TIMEOUT
from svc.client import bundles
from svc.client.config import current
from svc.errors import BundleNotFound, PipelineFailed, RegistryFailed, SvcError
from svc.pipeline.definition import Kind, Pipeline, Registry, Stage
from svc.pipeline.offered import check_offered
from svc.pipeline.stages.base import Kinds, Runner
from svc.wire.bundle import Entry

T = TypeVar("T")

RETRY_SECONDS = 0.5


class Ready(msgspec.Struct, frozen=True):
    """A stage that can run."""

    id: str
    runner: Runner


class Seen(msgspec.Struct, frozen=True):
    """What `--check` says of a stage. `where` is an address, a folder, or what would be downloaded."""

    id: str
    route: str
    model: str
    provider: str | None
    where: str


class StageError(PipelineFailed):
    """An error of one stage."""

    def __init__(self, stage: str, cause: SvcError) -> None:
        super().__init__(f"Stage {stage!r}: {cause.message}")
        self.stage = stage
        self.cause = cause


def options_of(registry: Registry, environ: Mapping[str, str], report: Any = None) -> bundles.Options:
    """How this pipeline's bundles are resolved."""
    home = Path(environ.get("SVC_HOME") or "~/.svc")
    root = registry.local_path or environ.get("SVC_REGISTRY_ROOT") or home / "registry"
    told = current()
    trusted = environ.get("SVC_TRUSTED_KEYS", "").split(",")
    named = registry.remote.base_url if registry.remote else None
    timeout_ms = registry.remote.timeout_ms if registry.remote else None
    return bundles.Options(
        root=Path(root).expanduser(),
        registry=named or told.registry or environ.get("SVC_REGISTRY_URL") or None,
        key=environ.get("SVC_REGISTRY_KEY") or told.api_key or environ.get("SVC_API_KEY") or None,
        trusted_keys=tuple(key.strip() for key in trusted if key.strip()),
        report=report,
        timeout=timeout_ms / 1000 if timeout_ms else TIMEOUT,
    )


def prepare(pipeline: Pipeline, environ: Mapping[str, str], report: Any = None) -> tuple[Ready, ...]:
    """Every stage, ready. Raises StageError that says which cannot be, and why."""
    options = options_of(pipeline.registry, environ, report)
    ready: list[Ready] = []
    try:
        for stage in pipeline.stages:
            runner: Runner = _of(stage.id, partial(_make, stage, pipeline.registry, options, environ))
            ready.append(Ready(stage.id, runner))
        flowing = pipeline.input
        for one in ready:
            check_kind(one.id, flowing, one.runner.takes)
            flowing = one.runner.gives
    except BaseException:
        close(ready)
        raise
    return tuple(ready)


def close(ready: list[Ready] | tuple[Ready, ...]) -> None:
    """Lets go of what the stages hold."""
    for one in ready:
        one.runner.close()


def _of(stage: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except SvcError as error:
        raise StageError(stage, error) from error


def _make(stage: Stage, registry: Registry, options: bundles.Options, environ: Mapping[str, str]) -> Runner:
    if stage.target == "integration":
        made: Runner = plugins.load("pipeline.stages", "provider").make(stage, environ)
        return made
    return runner_of(stage, patiently(registry, lambda: bundles.resolve(stage.reference or "", options)))


def runner_of(stage: Stage, bundle: bundles.Bundle) -> Runner:
    """The runner of a bundle's kind. Raises PipelineFailed when there is none."""
    kind = kind_of(bundle.metadata)
    runner: Runner = plugins.load("pipeline.stages", kind).make(stage, bundle)
    return runner


def kind_of(about: Metadata) -> str:
    """Raises PipelineFailed for a bundle that no kind of stage runs."""
    for name in plugins.names("pipeline.stages"):
        if plugins.load("pipeline.stages", name).fits(about):
            return name
    raise PipelineFailed(
        f"The bundle {about.model_id}@{about.version} is of type {about.type[:40]!r}, which cannot be run here."
    )


def patiently(registry: Registry, work: Callable[[], T]) -> T:
    """Asks a registry that fails once more, as often as the definition says."""
    for _ in range(registry.remote.retry_attempts if registry.remote else 0):
        try:
            return work()
        except RegistryFailed:
            time.sleep(RETRY_SECONDS)
    return work()


def check_kind(stage: str, flowing: Kind | None, takes: Kind) -> None:
    """Each stage must take what the one before it gives, if that is known. Raises StageError."""
    if flowing is not None and takes != flowing:
        raise StageError(stage, PipelineFailed(f"it takes {takes} and would get {flowing}."))


# --check


def look(pipeline: Pipeline, environ: Mapping[str, str]) -> list[Seen]:
    """What would run where. Raises StageError for what cannot run, as far as that can be told without downloading.

    Raises UsageError for a provider or a model that nobody here knows.
    """
    options = options_of(pipeline.registry, environ)
    check_offered(pipeline.stages, environ)
    seen: list[Seen] = []
    flowing = pipeline.input
    for stage in pipeline.stages:
        one, kinds = _of(stage.id, partial(_look, stage, pipeline.registry, options, environ))
        seen.append(one)
        if kinds is not None:
            check_kind(stage.id, flowing, kinds[0])
        flowing = kinds[1] if kinds is not None else None
    return seen


def _look(
    stage: Stage, registry: Registry, options: bundles.Options, environ: Mapping[str, str]
) -> tuple[Seen, Kinds | None]:
    if stage.target == "integration":
        runner = plugins.load("pipeline.stages", "provider").make(stage, environ)
        where = runner.address
        runner.close()
        return Seen(stage.id, runner.route, runner.model, runner.provider, where), ("text", "text")
    reference = stage.reference or ""
    local = msgspec.structs.replace(options, registry=None)
    try:
        bundle = bundles.resolve(reference, local)
    except BundleNotFound:
        return patiently(registry, lambda: _look_there(stage, options))
    runner = runner_of(stage, bundle)
    return Seen(stage.id, "device", bundle.reference, None, str(bundle.path)), (runner.takes, runner.gives)


def _look_there(stage: Stage, options: bundles.Options) -> tuple[Seen, Kinds | None]:
    """Raises PipelineFailed for what cannot be run, BundleNotFound when the registry does not have it either."""
    reference = stage.reference or ""
    entry = _offered(reference, options)
    about = bundles.look_into(entry, options)
    kinds = plugins.load("pipeline.stages", kind_of(about)).kinds(about) if about is not None else None
    where = f"{options.registry}: {entry.key}, {entry.size_bytes / 1e6:.1f} MB to download"
    return Seen(stage.id, "device", reference, None, where), kinds


def _offered(reference: str, options: bundles.Options) -> Entry:
    """Raises BundleNotFound, RegistryFailed when the registry cannot be asked."""
    wanted = parse_reference(reference)
    there = bundles.entries_at(options, wanted.model_id) if options.registry else []
    entry = choose(wanted, there, fallbacks(options.platform))
    if entry is None:
        where = f"here or at {options.registry}" if options.registry else bundles.NO_REGISTRY
        raise BundleNotFound(f"There is no bundle {reference} {where}.")
    return entry
