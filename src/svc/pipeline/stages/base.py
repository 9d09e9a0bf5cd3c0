"""What every kind of stage is. A kind is a module of this package with these functions; `provider` alone has no bundle.

def fits(about: Metadata) -> bool                  # whether this kind runs such a bundle
def kinds(about: Metadata) -> Kinds                # what it takes and gives; raises PipelineFailed: what cannot be run
def make(stage: Stage, bundle: Bundle) -> Runner   # raises PipelineFailed, also for what only the files tell
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
    """Samples, and how they are written."""

    format: AudioFormat
    data: bytes


class ImageFile(msgspec.Struct, frozen=True):
    """An image file, as it is."""

    data: bytes


StageChunk = str | AudioChunk | ImageFile
"""A piece of what flows between stages."""
StageKinds = tuple[DataKind, DataKind]
"""What a stage takes, and what it gives."""


class StageUsage(msgspec.Struct, frozen=True):
    """Tokens that a stage cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class StageRunner(Protocol):
    """A stage that is ready. `run` may be called from several threads at once; each call is one run."""

    input_kind: DataKind
    output_kind: DataKind
    route: Route
    model: str
    provider: str | None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        """Pieces of the output as they are made; asks for input as it needs it. Raises SvcError."""

    def close(self) -> None:
        """Lets go of what it holds."""


class StageRunInfo:
    """What a run learned beside its output."""

    def __init__(self) -> None:
        self.usage: StageUsage | None = None


def bundle_file(bundle: Bundle, name: str) -> Path:
    """A file of the bundle. Raises PipelineFailed when it is not there, or lies elsewhere."""
    path = (bundle.path / name).resolve()
    if "\0" in name or not path.is_relative_to(bundle.path.resolve()) or not path.exists():
        raise PipelineFailed(f"The bundle {bundle.reference} lacks its file {name[:80]!r}.")
    return path


def join_text(chunks: Iterator[StageChunk]) -> str:
    """All of a text."""
    return "".join(piece for piece in chunks if isinstance(piece, str))
