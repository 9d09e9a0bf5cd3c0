"""Requests and results of the pipelines that the gateway runs for the console. Data only."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_ONLINE_DEFINITION_CHARACTERS = 64 << 10
MAX_ONLINE_AUDIO_BYTES = 8 << 20
"""Maximum bytes of a WAV file as input: four minutes of 16 kHz mono."""

Definition = Annotated[str, msgspec.Meta(max_length=MAX_ONLINE_DEFINITION_CHARACTERS)]
Base64Audio = Annotated[str, msgspec.Meta(max_length=MAX_ONLINE_AUDIO_BYTES * 4 // 3 + 4)]


class PlannedStage(msgspec.Struct, frozen=True):
    """A stage of the plan of a pipeline."""

    id: str
    """The id of the stage."""
    route: str
    """`device`, `gateway` or `direct`."""
    model: str
    """The model or bundle."""
    provider: str | None
    """The provider that the definition names."""
    where: str
    """An address, a folder, or a bundle to download."""


class PipelineCheckRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A definition to check."""

    yaml: Definition
    """The definition, at most 65536 characters."""


class PipelineInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a run: one of the fields."""

    text: Annotated[str, msgspec.Meta(max_length=1 << 20)] | None = None
    """A text."""
    audio: Base64Audio | None = None
    """A WAV file of at most 8 MiB, in base64."""


class PipelineRunRequest(PipelineCheckRequest, frozen=True, kw_only=True):
    """A definition to run."""

    input: PipelineInput
    """The input."""


class PipelineProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a definition."""

    message: str
    """The problem, for people."""
    line: int | None = None
    """The line in the definition, from 1. Null if the problem has no place."""
    column: int | None = None
    """The column, from 1."""
    stage: str | None = None
    """The id of the stage."""
    code: str = "invalid_request"
    """The code of the error."""


class PipelineCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    object: str = "pipeline_check"
    """Always `pipeline_check`."""
    valid: bool
    """Whether the pipeline can run."""
    name: str | None = None
    """The name of the pipeline."""
    input: str | None = None
    """The input that the definition declares: `text`, `audio` or `image`."""
    stages: list[PlannedStage] = []
    """The plan, as of `svc run --check`. Empty if the pipeline cannot run."""
    problems: list[PipelineProblem] = []
    """The problems of the definition."""


class PipelineExample(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline to start from."""

    name: str
    """The name of the pipeline."""
    description: str
    """One line for people."""
    yaml: str
    """The definition."""


class PipelineExampleList(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines to start from."""

    object: str = "list"
    """Always `list`."""
    data: list[PipelineExample]
    """The examples."""


class ChildTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of the child process: the first line that it reads."""

    yaml: str
    input: PipelineInput | None
    """The input of a run. None for a check."""
    gateway_url: str
    api_key: str | None
    models_by_provider: dict[str, tuple[str, ...]]
    environ: dict[str, str]
    """The variables with which bundles are resolved."""
