import json
from pathlib import Path

import pytest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    metadata = {"model_id": "m", "version": "1.0", "execution_template": {"type": "Onnx"}, "files": ["w.bin", "sub/x"]}
    (folder / "model_metadata.json").write_text(json.dumps(metadata))
    (folder / "w.bin").write_bytes(bytes(range(256)) * 4096)
    (folder / "sub" / "x").write_text("x")
    return folder
