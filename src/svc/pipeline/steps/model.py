"""A whole ONNX stage, loaded: data is read, goes through the steps before, the model, and the steps after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.client.bundles import Bundle
from svc.errors import InvalidRequest
from svc.pipeline.stages.base import Item, Picture, Sound, text_of
from svc.pipeline.steps import after, before, images, tokens
from svc.pipeline.steps.described import (
    After,
    Argmax,
    AudioDecode,
    Before,
    CenterCrop,
    CTCDecode,
    Described,
    MeanPool,
    Normalize,
    Reshape,
    Resize,
    Softmax,
    Tokenize,
    TopK,
)
from svc.pipeline.steps.session import Session

Array = NDArray[Any]


class Model:
    """Raises PipelineFailed, InvalidBundle for files that are not what they should be. Threads may share it."""

    def __init__(self, bundle: Bundle, path: Path, steps: Described) -> None:
        self._steps = steps
        self._session = Session(path, bundle.reference)
        self._tokenizer: Any = None
        self._vocabularies: dict[str, list[str]] = {}
        for step in (*steps.before, *steps.after):
            if isinstance(step, Tokenize):
                self._tokenizer = tokens.load(bundle.path, step)
            elif isinstance(step, CTCDecode):
                self._vocabularies[step.vocab_file] = after.vocabulary((bundle.path / step.vocab_file).read_bytes())

    def answer(self, items: Sequence[Item]) -> str:
        """One run. Raises SvcError."""
        if self._tokenizer is not None:
            named = tokens.encode(self._tokenizer, text_of(iter(items)))
            return self._written(self._session.run_named(named), named["attention_mask"])
        data = self._start(items)
        for step in self._steps.before:
            data = self._prepare(data, step)
        return self._written(self._session.run(_numbers(data)), None)

    def _start(self, items: Sequence[Item]) -> Array:
        match self._steps.takes:
            case "audio":
                rates = [step.sample_rate for step in self._steps.before if isinstance(step, AudioDecode)]
                return before.audio((item for item in items if isinstance(item, Sound)), rates[0])
            case "image":
                pictures = [item for item in items if isinstance(item, Picture)]
                if len(pictures) != 1:
                    raise InvalidRequest("This stage takes one image.")
                return images.decode(pictures[0].data, self._session.channels)
            case _:
                return before.numbers(text_of(iter(items)))

    def _prepare(self, data: Array, step: Before) -> Array:
        match step:
            case Resize():
                return images.resize(data, step)
            case CenterCrop():
                return before.crop(data, step.width, step.height)
            case Normalize():
                return before.normalize(_numbers(data), step)
            case Reshape():
                return before.reshape(_numbers(data), step)
            case _:
                return data  # AudioDecode and Tokenize: where it came from

    def _written(self, data: Any, mask: Array | None) -> str:
        for step in self._steps.after:
            data = self._finish(data, mask, step)
        return after.written(data)

    def _finish(self, data: Array, mask: Array | None, step: After) -> Any:
        match step:
            case MeanPool():
                return after.mean_pool(data, mask, step.dim)
            case Softmax():
                return after.softmax(data, step.dim)
            case Argmax():
                return after.argmax(data, step.dim)
            case TopK():
                return after.top_k(data, step.k, step.dim)
            case CTCDecode():
                return after.ctc(data, self._vocabularies[step.vocab_file], step.blank_index)


def _numbers(data: Array) -> Array:
    """An image is bytes until a step computes with it."""
    return before.channels_first(data) if data.dtype == np.uint8 else data
