"""The interface of a stage. Each kind is a module of this package with these functions.

def fits(metadata: BundleMetadata) -> bool               # whether this kind runs the bundle
def kinds(metadata: BundleMetadata) -> StageKinds        # input and output; PipelineFailed if the bundle cannot run
def make(stage: Stage, bundle: Bundle) -> StageRunner    # PipelineFailed, also for errors in the bundle's files

`provider` is the only kind without a bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from svc.client.bundles import Bundle
from svc.errors import PipelineFailed
from svc.pipeline.definition import DataKind
from svc.speech.audio import AudioFormat

Route = Literal["device", "gateway", "direct"]


class AudioChunk(msgspec.Struct, frozen=True):
    """Samples and their format."""

    format: AudioFormat
    data: bytes


class ImageFile(msgspec.Struct, frozen=True):
    """The bytes of an image file."""

    data: bytes


StageChunk = str | AudioChunk | ImageFile
"""A chunk of data between stages."""
StageKinds = tuple[DataKind, DataKind]
"""The input kind and the output kind of a stage."""


class StageUsage(msgspec.Struct, frozen=True):
    """The tokens that a stage used."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class StageRunner(Protocol):
    """A prepared stage. Several threads may call `run`. Each call is one run."""

    input_kind: DataKind
    output_kind: DataKind
    route: Route
    model: str
    provider: str | None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        """Yield chunks of the output as they are produced. Reads the input on demand. Raises SvcError."""

    def close(self) -> None:
        """Release the resources of the stage."""


class StageRunInfo:
    """Data about a run that is not part of its output."""

    def __init__(self) -> None:
        self.usage: StageUsage | None = None
        self.finish_reason: str | None = None
        self.provider: str | None = None
        """The provider that the gateway chose, if the response names it."""


def bundle_file(bundle: Bundle, name: str) -> Path:
    """Return a file of the bundle. Raises PipelineFailed if it is missing or outside the bundle."""
    path = (bundle.path / name).resolve()
    if "\0" in name or not path.is_relative_to(bundle.path.resolve()) or not path.exists():
        raise PipelineFailed(f"The bundle {bundle.reference} has no file {name[:80]!r}.")
    return path


def join_text(chunks: Iterator[StageChunk]) -> str:
    """Join the text chunks."""
    return "".join(chunk for chunk in chunks if isinstance(chunk, str))
