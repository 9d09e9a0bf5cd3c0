"""The steps in `model_metadata.json`, and the check that they fit together. Needs no extras.

preprocessing    AudioDecode | Tokenize | (Resize | CenterCrop)* (Normalize | Reshape)*      -> input of the model
postprocessing   (MeanPool | Softmax)* (CTCDecode | Argmax | TopK)?                          -> text

If no first step reads audio, text or an image, the input is numbers: a text that is a JSON array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from svc.bundles.metadata import BundleMetadata
from svc.errors import PipelineFailed
from svc.pipeline.definition import DataKind
from svc.wire.type_names import with_json_types

MAX_IMAGE_SIDE_PIXELS = 8192
"""The maximum width and height of an image, in pixels."""

ImageSide = Annotated[int, msgspec.Meta(ge=1, le=MAX_IMAGE_SIDE_PIXELS)]
ChannelValues = Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=4096)]
FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A step, selected by `type`. Unknown fields are rejected, because ignoring them could change the result."""


class AudioDecode(_Step, frozen=True, tag=True):
    """Decodes a WAV file to samples from -1 to 1."""

    sample_rate: Annotated[int, msgspec.Meta(ge=1000, le=192_000)] = 16000
    """Samples per second that the model takes."""
    channels: Literal[1] = 1
    """Only mono is supported."""


class Tokenize(_Step, frozen=True, tag=True):
    """Converts text to tokens: `tokenizer.json`, `vocab.txt` (WordPiece), or `vocab.json` with `merges.txt` (BPE)."""

    vocab_file: FileName
    """The file of the tokenizer."""
    tokenizer_type: Literal["BPE", "WordPiece", "SentencePiece"] = "WordPiece"
    """The algorithm, if the file is not `tokenizer.json`."""
    max_length: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None
    """Tokens after which the text is cut."""


class Resize(_Step, frozen=True, tag=True):
    """Scales an image."""

    width: ImageSide
    """Pixels."""
    height: ImageSide
    """Pixels."""
    interpolation: Literal["Nearest", "Bilinear", "Bicubic"] = "Bilinear"
    """The method."""


class CenterCrop(_Step, frozen=True, tag=True):
    """Cuts out the middle of an image. Pixels beyond its edges are black."""

    width: ImageSide
    """Pixels."""
    height: ImageSide
    """Pixels."""


class Normalize(_Step, frozen=True, tag=True):
    """Computes (x - mean) / std for each channel. Pixels are from 0 to 1 before."""

    mean: ChannelValues
    """One value for each channel."""
    std: ChannelValues
    """One value for each channel, not 0."""


class Reshape(_Step, frozen=True, tag=True):
    """Changes the shape. One dimension may be -1, which takes what is left."""

    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=-1)], ...], msgspec.Meta(min_length=1, max_length=8)]
    """The lengths of the dimensions."""


class MeanPool(_Step, frozen=True, tag=True):
    """Computes the mean over the tokens without the padding."""

    dim: int = 1
    """The dimension of the tokens."""


class Softmax(_Step, frozen=True, tag=True):
    """Computes probabilities."""

    dim: int = -1
    """The dimension."""


class Argmax(_Step, frozen=True, tag=True):
    """Returns the index of the largest value, such as `3`."""

    dim: int | None = None
    """The dimension. Without it, all values are compared."""


class TopK(_Step, frozen=True, tag=True):
    """Returns the largest values with their indexes, such as `[{"index": 3, "score": 0.9}]`."""

    k: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    """How many."""
    dim: int | None = None
    """The dimension. Without it, all values are compared."""


class CTCDecode(_Step, frozen=True, tag=True):
    """Decodes text from the probabilities of tokens at each time."""

    vocab_file: FileName
    """The vocabulary: JSON `{token: number}`, or one token per line."""
    blank_index: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of the blank token."""


PreprocessingStep = AudioDecode | Tokenize | Resize | CenterCrop | Normalize | Reshape
PostprocessingStep = MeanPool | Softmax | Argmax | TopK | CTCDecode


class ModelSteps(msgspec.Struct, frozen=True):
    """All steps of a model."""

    input_kind: DataKind
    preprocessing: tuple[PreprocessingStep, ...]
    postprocessing: tuple[PostprocessingStep, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the bundle that the steps read."""
        return tuple(
            step.vocab_file
            for step in (*self.preprocessing, *self.postprocessing)
            if isinstance(step, Tokenize | CTCDecode)
        )


def read_steps(metadata: BundleMetadata) -> ModelSteps:
    """Read the steps. Raises PipelineFailed for an unknown or invalid step, or one that cannot follow another."""
    preprocessing: tuple[PreprocessingStep, ...] = _decode_steps(
        metadata, "preprocessing", tuple[PreprocessingStep, ...]
    )
    postprocessing: tuple[PostprocessingStep, ...] = _decode_steps(
        metadata, "postprocessing", tuple[PostprocessingStep, ...]
    )
    for step, incoming in zip(preprocessing, _step_inputs(preprocessing), strict=True):
        if isinstance(step, Normalize) and 0 in step.std:
            raise _unusable_bundle(metadata, "`preprocessing`: a `std` of Normalize is 0")
        if isinstance(step, Reshape) and step.shape.count(-1) > 1:
            raise _unusable_bundle(metadata, "`preprocessing`: a `shape` of Reshape has more than one -1")
        if incoming not in _ACCEPTED_INPUTS[type(step)]:
            raise _unusable_bundle(metadata, f"`preprocessing`: {type(step).__name__} does not accept {incoming}")
    for later in postprocessing[:-1]:
        if not isinstance(later, MeanPool | Softmax):
            raise _unusable_bundle(metadata, f"`postprocessing`: nothing can follow {type(later).__name__}")
    return ModelSteps(_find_input_kind(preprocessing), preprocessing, postprocessing)


_ACCEPTED_INPUTS: dict[type[_Step], tuple[str, ...]] = {
    AudioDecode: ("input",),
    Tokenize: ("input",),
    Resize: ("input", "an image"),
    CenterCrop: ("input", "an image"),
    Normalize: ("input", "an image", "numbers"),
    Reshape: ("input", "an image", "numbers"),
}


def _step_inputs(preprocessing: Sequence[PreprocessingStep]) -> list[str]:
    """Return the input of each step."""
    inputs = ["input"]
    for step in preprocessing:
        match step:
            case Resize() | CenterCrop():
                inputs.append("an image")
            case Tokenize():
                inputs.append("tokens")
            case _:
                inputs.append("numbers")
    return inputs[: len(preprocessing)]


def _find_input_kind(preprocessing: Sequence[PreprocessingStep]) -> DataKind:
    match preprocessing[0] if preprocessing else None:
        case AudioDecode():
            return "audio"
        case Resize() | CenterCrop():
            return "image"
        case _:
            return "text"


def _decode_steps(metadata: BundleMetadata, field: str, steps_type: Any) -> Any:
    raw = getattr(metadata, field)
    if raw is None:
        return ()
    if isinstance(raw, list):
        known = {step_type.__name__ for step_type in steps_type.__args__[0].__args__}
        for step in raw:
            name = step.get("type") if isinstance(step, dict) else None
            if name not in known:
                raise _unusable_bundle(metadata, f"`{field}` has the unknown step {str(name)[:40]!r}")
    try:
        return msgspec.convert(raw, steps_type, strict=True)
    except msgspec.ValidationError as error:
        raise _unusable_bundle(metadata, f"`{field}` is not valid: {with_json_types(str(error))}") from None


def _unusable_bundle(metadata: BundleMetadata, problem: str) -> PipelineFailed:
    return PipelineFailed(f"The bundle {metadata.model_id}@{metadata.version} cannot be run: {problem}.")
