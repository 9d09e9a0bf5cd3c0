"""Turns a definition into prepared stages, or rejects it with a clear error. Runs nothing.

plan_stages      reads the index, local bundles, and the metadata of remote ones; downloads no bundle, needs no key
prepare_stages   resolves every bundle and creates every stage; rejects incompatible stages before anything runs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from svc import plugins
from svc.bundles.download import REGISTRY_TIMEOUT_SECONDS
from svc.bundles.metadata import BundleMetadata
from svc.bundles.platform import compatible_platforms
from svc.bundles.reference import describe_yanked, list_other_platforms, parse_reference, select_entry
from svc.client import bundles
from svc.client.client import Client
from svc.client.config import current_config
from svc.errors import BundleNotFound, PipelineFailed, RegistryFailed, SvcError
from svc.pipeline.definition import DataKind, Pipeline, RegistryLocation, Stage
from svc.pipeline.provider_validation import check_provider_stages
from svc.pipeline.stages.base import StageKinds, StageRunner
from svc.resilience import Backoff
from svc.wire.bundle import BundleEntry
from svc.wire.pipeline import PlannedStage

T = TypeVar("T")

REGISTRY_BACKOFF = Backoff(0.5, 8.0)


class PreparedStage(msgspec.Struct, frozen=True):
    """A stage that is ready to run."""

    id: str
    runner: StageRunner


class StageError(PipelineFailed):
    """An error in one stage."""

    def __init__(self, stage_id: str, cause: SvcError) -> None:
        super().__init__(f"Stage {stage_id!r}: {cause.message}")
        self.stage_id = stage_id
        self.cause = cause

    def find_location(self, pipeline: Pipeline | None) -> str:
        """Return `SOURCE:LINE:COLUMN` of the stage, or an empty text if it is unknown."""
        return pipeline.locations.get((self.stage_id, "stage"), "") if pipeline is not None else ""


def bundle_options(
    registry: RegistryLocation, environ: Mapping[str, str], report: Any = None
) -> bundles.ResolveOptions:
    """Return the options to resolve this pipeline's bundles."""
    home = Path(environ.get("SVC_HOME") or "~/.svc")
    root = registry.local_path or environ.get("SVC_REGISTRY_ROOT") or home / "registry"
    config = current_config()
    registry_url = registry.remote.base_url if registry.remote else None
    timeout_ms = registry.remote.timeout_ms if registry.remote else None
    return bundles.ResolveOptions(
        root=Path(root).expanduser(),
        registry=registry_url or config.registry or environ.get("SVC_REGISTRY_URL") or None,
        key=environ.get("SVC_REGISTRY_KEY") or config.api_key or environ.get("SVC_API_KEY") or None,
        trusted_keys=bundles.read_trusted_keys(environ),
        report=report,
        timeout=timeout_ms / 1000 if timeout_ms else REGISTRY_TIMEOUT_SECONDS,
    )


def prepare_stages(
    pipeline: Pipeline, environ: Mapping[str, str], report: Any = None, client: Client | None = None
) -> tuple[PreparedStage, ...]:
    """Prepare every stage. Raises StageError for the stage that cannot be prepared.

    `client` calls the models of provider stages that have no `gateway_url`.
    """
    options = bundle_options(pipeline.registry, environ, report)
    prepared: list[PreparedStage] = []
    try:
        for stage in pipeline.stages:
            runner: StageRunner = _with_stage_error(
                stage.id, partial(_create_runner, stage, pipeline.registry, options, environ, client)
            )
            prepared.append(PreparedStage(stage.id, runner))
        current_kind = pipeline.input
        for prepared_stage in prepared:
            check_kind(prepared_stage.id, current_kind, prepared_stage.runner.input_kind)
            current_kind = prepared_stage.runner.output_kind
    except BaseException:
        close_stages(prepared)
        raise
    return tuple(prepared)


def close_stages(prepared: list[PreparedStage] | tuple[PreparedStage, ...]) -> None:
    """Release the resources of the stages."""
    for stage in prepared:
        stage.runner.close()


def _with_stage_error(stage_id: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except SvcError as error:
        raise StageError(stage_id, error) from error


def _create_runner(
    stage: Stage,
    registry: RegistryLocation,
    options: bundles.ResolveOptions,
    environ: Mapping[str, str],
    client: Client | None,
) -> StageRunner:
    if stage.target == "integration":
        runner: StageRunner = plugins.load("pipeline.stages", "provider").make(stage, environ, client)
        return runner
    return create_bundle_runner(
        stage, retry_registry_errors(registry, lambda: bundles.resolve_bundle(stage.reference or "", options))
    )


def create_bundle_runner(stage: Stage, bundle: bundles.Bundle) -> StageRunner:
    """Create the runner for a bundle. Raises PipelineFailed if no kind of stage runs it."""
    kind = find_stage_kind(bundle.metadata)
    runner: StageRunner = plugins.load("pipeline.stages", kind).make(stage, bundle)
    return runner


def find_stage_kind(metadata: BundleMetadata) -> str:
    """Return the kind of stage that runs a bundle. Raises PipelineFailed if there is none."""
    for name in plugins.names("pipeline.stages"):
        if plugins.load("pipeline.stages", name).fits(metadata):
            return name
    raise PipelineFailed(
        f"The bundle {metadata.model_id}@{metadata.version} has the type {metadata.type[:40]!r}, "
        "which is not supported."
    )


def retry_registry_errors(registry: RegistryLocation, action: Callable[[], T]) -> T:
    """Run `action`. Retry after registry errors, up to the number of attempts in the definition."""
    for attempt in range(registry.remote.retry_attempts if registry.remote else 0):
        try:
            return action()
        except RegistryFailed:
            time.sleep(REGISTRY_BACKOFF.exponential(attempt))
    return action()


def check_kind(stage_id: str, available_kind: DataKind | None, required_kind: DataKind) -> None:
    """Check that a stage accepts the output of the previous one, if it is known. Raises StageError."""
    if available_kind is not None and required_kind != available_kind:
        raise StageError(stage_id, PipelineFailed(f"it takes {required_kind}, but gets {available_kind}."))


# --check


def plan_stages(
    pipeline: Pipeline,
    environ: Mapping[str, str],
    *,
    check_names: Callable[[Pipeline, Mapping[str, str]], None] = check_provider_stages,
) -> list[PlannedStage]:
    """Return what would run where, without downloads. Raises StageError for a stage that cannot run.

    `check_names` checks the names of providers and models. Raises UsageError for an unknown one.
    """
    options = bundle_options(pipeline.registry, environ)
    check_names(pipeline, environ)
    planned: list[PlannedStage] = []
    current_kind = pipeline.input
    for stage in pipeline.stages:
        planned_stage, kinds = _with_stage_error(
            stage.id, partial(_plan_stage, stage, pipeline.registry, options, environ)
        )
        planned.append(planned_stage)
        if kinds is not None:
            check_kind(stage.id, current_kind, kinds[0])
        current_kind = kinds[1] if kinds is not None else None
    return planned


def _plan_stage(
    stage: Stage, registry: RegistryLocation, options: bundles.ResolveOptions, environ: Mapping[str, str]
) -> tuple[PlannedStage, StageKinds | None]:
    if stage.target == "integration":
        runner = plugins.load("pipeline.stages", "provider").make(stage, environ)
        location = runner.address
        runner.close()
        return PlannedStage(stage.id, runner.route, runner.model, runner.provider, location), ("text", "text")
    reference = stage.reference or ""
    local_options = msgspec.structs.replace(options, registry=None)
    try:
        bundle = bundles.resolve_bundle(reference, local_options)
    except BundleNotFound:
        return retry_registry_errors(registry, lambda: _plan_remote_stage(stage, options))
    runner = create_bundle_runner(stage, bundle)
    return PlannedStage(stage.id, "device", bundle.reference, None, str(bundle.path)), (
        runner.input_kind,
        runner.output_kind,
    )


def _plan_remote_stage(stage: Stage, options: bundles.ResolveOptions) -> tuple[PlannedStage, StageKinds | None]:
    """Raises PipelineFailed if the bundle cannot run, BundleNotFound if the registry does not have it."""
    reference = stage.reference or ""
    entry = _find_remote_entry(reference, options)
    metadata = bundles.read_bundle_metadata(entry, options)
    kinds = plugins.load("pipeline.stages", find_stage_kind(metadata)).kinds(metadata) if metadata is not None else None
    location = f"{options.registry}: {entry.key}, {entry.size_bytes / 1e6:.1f} MB to download"
    return PlannedStage(stage.id, "device", reference, None, location), kinds


def _find_remote_entry(reference: str, options: bundles.ResolveOptions) -> BundleEntry:
    """Raises BundleNotFound, and RegistryFailed if the registry is not available."""
    parsed = parse_reference(reference)
    remote_entries = bundles.list_entries(options, parsed.model_id) if options.registry else []
    platforms = compatible_platforms(options.platform)
    entry = select_entry(parsed, remote_entries, platforms)
    if entry is None:
        if yanked := describe_yanked(parsed, remote_entries, platforms):
            raise BundleNotFound(yanked)
        searched = f"on this machine or at {options.registry}" if options.registry else bundles.NO_REGISTRY_MESSAGE
        others = list_other_platforms(parsed, remote_entries)
        hint = f" Other platforms have it: {others}." if others else ""
        raise BundleNotFound(f"There is no bundle {reference} {searched}.{hint}")
    return entry
