"""An ONNX model in onnxruntime, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from svc.errors import PipelineFailed

Array = NDArray[Any]
ORT_LOG_FATAL = 4
"""Logs only fatal errors: other errors are raised."""
_NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
}


class OnnxSession:
    """A loaded model. Raises PipelineFailed for an invalid model or an unsupported input type."""

    def __init__(self, path: Path, reference: str) -> None:
        self._reference = reference
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ORT_LOG_FATAL
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's exceptions have no common base class
            raise PipelineFailed(f"The model of {reference} cannot be loaded: {_first_line(error)}") from error
        self._inputs = {model_input.name: model_input for model_input in self._session.get_inputs()}
        for model_input in self._inputs.values():
            if model_input.type not in _NUMPY_TYPES:
                raise PipelineFailed(f"The model of {reference} takes a {model_input.type}, which is not supported.")

    @property
    def image_channels(self) -> int:
        """The channels of the model's image input: 1 if the model says so, else 3."""
        shape = next(iter(self._inputs.values())).shape
        return 1 if len(shape) == 4 and shape[1] == 1 else 3

    def run(self, array: Array) -> Array:
        """Run a model with one input. Adds a batch dimension if the model expects one."""
        if len(self._inputs) != 1:
            raise PipelineFailed(f"The model of {self._reference} takes {', '.join(self._inputs)}, but gets one input.")
        (name, model_input), *_ = self._inputs.items()
        return self._run({name: array[None] if len(model_input.shape) == array.ndim + 1 else array})

    def run_named(self, arrays: Mapping[str, Array]) -> Array:
        """Run a text model, which has the usual names of inputs or a single input."""
        if len(self._inputs) == 1 and not self._inputs.keys() & arrays.keys():
            return self._run({next(iter(self._inputs)): arrays["input_ids"]})
        if missing := self._inputs.keys() - arrays.keys():
            names = ", ".join(sorted(missing))
            raise PipelineFailed(f"The model of {self._reference} takes {names}, which the tokenizer does not provide.")
        return self._run({name: arrays[name] for name in self._inputs})

    def _run(self, arrays: Mapping[str, Array]) -> Array:
        inputs = {
            name: array.astype(_NUMPY_TYPES[self._inputs[name].type], copy=False) for name, array in arrays.items()
        }
        try:
            output = self._session.run(None, inputs)[0]
        except Exception as error:
            raise PipelineFailed(f"The model of {self._reference} failed: {_first_line(error)}") from error
        if not isinstance(output, np.ndarray) or output.dtype.kind not in "fiub" or not output.size:
            raise PipelineFailed(f"The model of {self._reference} returns no numbers.")
        return output.astype(np.float32) if output.dtype == np.float16 else output


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
