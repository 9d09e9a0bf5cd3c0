"""The parameters of llama.cpp's server."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import xllamacpp

from svc.gateway.local_model import process
from svc.gateway.local_model.supervisor import LocalServerOptions, Sampling

CPU = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
HAS_ONLY_CPU = all(device["type"] == CPU for device in xllamacpp.get_device_info())


@pytest.mark.parametrize(("gpu_layers", "fits"), [(None, not HAS_ONLY_CPU), (0, False), (8, False)])
def test_server_parameters_layers_are_fitted_only_to_a_gpu(tmp_path: Path, gpu_layers: int | None, fits: bool) -> None:
    """The fit reads the vocabulary once more."""
    options = LocalServerOptions(
        model="m",
        model_path=str(tmp_path / "m.gguf"),
        key="k",
        context=512,
        sampling=Sampling(),
        threads=1,
        gpu_layers=gpu_layers,
    )
    assert process._server_parameters(msgspec.to_builtins(options)).fit_params is fits
