"""A loaded ONNX stage: reads the input and runs the preprocessing, the model and the postprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.client.bundles import Bundle
from svc.errors import InvalidRequest
from svc.pipeline.stages.base import AudioChunk, ImageFile, StageChunk, join_text
from svc.pipeline.steps import images, postprocessing, preprocessing, tokenization
from svc.pipeline.steps.onnx_session import OnnxSession
from svc.pipeline.steps.schema import (
    Argmax,
    AudioDecode,
    CenterCrop,
    CTCDecode,
    MeanPool,
    ModelSteps,
    Normalize,
    PostprocessingStep,
    PreprocessingStep,
    Reshape,
    Resize,
    Softmax,
    Tokenize,
    TopK,
)

Array = NDArray[Any]


class OnnxModel:
    """A model with its steps. Thread-safe. Raises PipelineFailed and InvalidBundle for invalid files."""

    def __init__(self, bundle: Bundle, path: Path, steps: ModelSteps) -> None:
        self._steps = steps
        self._session = OnnxSession(path, bundle.reference)
        self._tokenizer: Any = None
        self._vocabularies: dict[str, list[str]] = {}
        for step in (*steps.preprocessing, *steps.postprocessing):
            if isinstance(step, Tokenize):
                self._tokenizer = tokenization.load_tokenizer(bundle.path, step)
            elif isinstance(step, CTCDecode):
                self._vocabularies[step.vocab_file] = postprocessing.parse_vocabulary(
                    (bundle.path / step.vocab_file).read_bytes()
                )

    def predict(self, chunks: Sequence[StageChunk]) -> str:
        """Run the model once. Raises SvcError."""
        if self._tokenizer is not None:
            model_inputs = tokenization.encode_text(self._tokenizer, join_text(iter(chunks)))
            return self._postprocess(self._session.run_named(model_inputs), model_inputs["attention_mask"])
        data = self._read_input(chunks)
        for step in self._steps.preprocessing:
            data = self._preprocess(data, step)
        return self._postprocess(self._session.run(_to_float_array(data)), None)

    def _read_input(self, chunks: Sequence[StageChunk]) -> Array:
        match self._steps.input_kind:
            case "audio":
                rates = [step.sample_rate for step in self._steps.preprocessing if isinstance(step, AudioDecode)]
                return preprocessing.load_audio((chunk for chunk in chunks if isinstance(chunk, AudioChunk)), rates[0])
            case "image":
                image_files = [chunk for chunk in chunks if isinstance(chunk, ImageFile)]
                if len(image_files) != 1:
                    raise InvalidRequest("This stage takes exactly one image.")
                return images.decode_image(image_files[0].data, self._session.image_channels)
            case _:
                return preprocessing.parse_numbers(join_text(iter(chunks)))

    def _preprocess(self, data: Array, step: PreprocessingStep) -> Array:
        match step:
            case Resize():
                return images.resize_image(data, step)
            case CenterCrop():
                return preprocessing.center_crop(data, step.width, step.height)
            case Normalize():
                return preprocessing.normalize(_to_float_array(data), step)
            case Reshape():
                return preprocessing.reshape(_to_float_array(data), step)
            case _:
                return data  # AudioDecode and Tokenize are done with the input

    def _postprocess(self, data: Any, mask: Array | None) -> str:
        for step in self._steps.postprocessing:
            data = self._run_postprocessing_step(data, mask, step)
        return postprocessing.to_json_text(data)

    def _run_postprocessing_step(self, data: Array, mask: Array | None, step: PostprocessingStep) -> Any:
        match step:
            case MeanPool():
                return postprocessing.mean_pool(data, mask, step.dim)
            case Softmax():
                return postprocessing.softmax(data, step.dim)
            case Argmax():
                return postprocessing.argmax(data, step.dim)
            case TopK():
                return postprocessing.top_k(data, step.k, step.dim)
            case CTCDecode():
                return postprocessing.ctc_decode(data, self._vocabularies[step.vocab_file], step.blank_index)


def _to_float_array(data: Array) -> Array:
    """Convert an image from bytes to floats. Other arrays stay as they are."""
    return preprocessing.channels_first(data) if data.dtype == np.uint8 else data
