"""Runs ONNX models with the preprocessing and postprocessing of their bundle: onnxruntime, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from svc import plugins
from svc.bundles.metadata import BundleMetadata
from svc.client.bundles import Bundle
from svc.distribution import install_command
from svc.errors import PipelineFailed
from svc.pipeline.definition import DataKind, Stage
from svc.pipeline.stages.base import StageChunk, StageKinds, StageRunInfo, bundle_file
from svc.pipeline.steps.schema import ModelSteps, read_steps

_REQUIRED_PACKAGES = ("numpy", "onnxruntime", "tokenizers", "PIL")


def fits(metadata: BundleMetadata) -> bool:
    """Return whether the bundle is an ONNX model."""
    return metadata.type == "Onnx"


def kinds(metadata: BundleMetadata) -> StageKinds:
    """Return the input and output kinds. Raises PipelineFailed for an unsupported step or a missing file."""
    steps = read_steps(metadata)
    for name in (_model_file(metadata), *steps.files):
        if name not in metadata.files:
            raise PipelineFailed(f"The bundle {metadata.model_id}@{metadata.version} has no file {name[:80]!r}.")
    return steps.input_kind, "text"


def make(stage: Stage, bundle: Bundle) -> OnnxRunner:
    """Create the runner. Raises PipelineFailed if files are missing or the extra is not installed."""
    steps = read_steps(bundle.metadata)
    for name in (_model_file(bundle.metadata), *steps.files):
        bundle_file(bundle, name)
    if any(find_spec(name) is None for name in _REQUIRED_PACKAGES):
        raise PipelineFailed(f"ONNX models need an extra. Install it with: {install_command('onnx')}")
    return OnnxRunner(bundle, steps)


def _model_file(metadata: BundleMetadata) -> str:
    name = metadata.execution_template.get("model_file")
    if not isinstance(name, str) or not name:
        raise PipelineFailed(f"The bundle {metadata.model_id}@{metadata.version} has no `model_file`.")
    return name


class OnnxRunner:
    """The runner of an ONNX bundle. Loads the model at the first use. Runs can overlap."""

    output_kind: DataKind = "text"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, steps: ModelSteps) -> None:
        self.model = bundle.reference
        self.input_kind = steps.input_kind
        self._bundle, self._steps = bundle, steps
        self._lock = threading.Lock()
        self._loaded_model: Any = None

    def run(self, input_chunks: Iterator[StageChunk], run_info: StageRunInfo) -> Iterator[StageChunk]:
        chunks = list(input_chunks)
        with self._lock:
            if self._loaded_model is None:
                path = self._bundle.path / _model_file(self._bundle.metadata)
                self._loaded_model = plugins.load("pipeline.steps", "model").OnnxModel(self._bundle, path, self._steps)
            model = self._loaded_model
        yield model.predict(chunks)

    def close(self) -> None:
        self._loaded_model = None
