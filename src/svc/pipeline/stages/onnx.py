"""Any ONNX model with the steps before and after it that its bundle describes; onnxruntime, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from svc import plugins
from svc.bundles.metadata import Metadata
from svc.client.bundles import Bundle
from svc.distribution import install_command
from svc.errors import PipelineFailed
from svc.pipeline.definition import Kind, Stage
from svc.pipeline.stages.base import Item, Kinds, Told, inside
from svc.pipeline.steps.described import Described, describe

_NEEDED = ("numpy", "onnxruntime", "tokenizers", "PIL")


def fits(about: Metadata) -> bool:
    """A model in ONNX's format."""
    return about.type == "Onnx"


def kinds(about: Metadata) -> Kinds:
    """What it takes and gives. Raises PipelineFailed for a step that cannot be run, or a file that is not there."""
    described = describe(about)
    for name in (_model_file(about), *described.files):
        if name not in about.files:
            raise PipelineFailed(f"The bundle {about.model_id}@{about.version} lacks its file {name[:80]!r}.")
    return described.takes, "text"


def make(stage: Stage, bundle: Bundle) -> Onnx:
    """Raises PipelineFailed when files are missing, or the extra is not installed."""
    described = describe(bundle.metadata)
    for name in (_model_file(bundle.metadata), *described.files):
        inside(bundle, name)
    if any(find_spec(name) is None for name in _NEEDED):
        raise PipelineFailed(f"ONNX models need an extra: {install_command('onnx')}")
    return Onnx(bundle, described)


def _model_file(about: Metadata) -> str:
    name = about.execution_template.get("model_file")
    if not isinstance(name, str) or not name:
        raise PipelineFailed(f"The bundle {about.model_id}@{about.version} has no `model_file`.")
    return name


class Onnx:
    """A `Runner`. The model is loaded when it is used first; runs go beside each other."""

    gives: Kind = "text"
    route = "device"
    provider = None

    def __init__(self, bundle: Bundle, described: Described) -> None:
        self.model = bundle.reference
        self.takes = described.takes
        self._bundle, self._steps = bundle, described
        self._lock = threading.Lock()
        self._loaded: Any = None

    def run(self, given: Iterator[Item], told: Told) -> Iterator[Item]:
        items = list(given)
        with self._lock:
            if self._loaded is None:
                path = self._bundle.path / _model_file(self._bundle.metadata)
                self._loaded = plugins.load("pipeline.steps", "model").Model(self._bundle, path, self._steps)
            loaded = self._loaded
        yield loaded.answer(items)

    def close(self) -> None:
        self._loaded = None
