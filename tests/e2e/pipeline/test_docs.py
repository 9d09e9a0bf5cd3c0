"""The Python examples of reference/sdk.md run in order. The pipeline of reference/pipelines.md is valid."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from svc.pipeline.definition import parse_pipeline
from tests.e2e.pipeline.conftest import Machine

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.slow
def test_docs_sdk_python_examples_run(machine: Machine, clips: dict[str, Path], tmp_path: Path) -> None:
    text = (REFERENCE / "sdk.md").read_text()
    blocks = re.findall(r"(?<!-->\n)```python\n(.*?)```", text, flags=re.S)  # an excerpt has a comment before it
    assert len(blocks) >= 7
    shutil.copy(clips["en-hello-world"], tmp_path / "talk.wav")
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "page.py"],
        env=machine.environ("docs"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "gateway" in done.stdout
    assert "model_not_found" in done.stdout
    assert "Hello world" in done.stdout


def test_docs_pipeline_example_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (REFERENCE / "pipelines.md").read_text(), flags=re.S)
    assert [stage.id for stage in parse_pipeline(text).stages] == ["hear", "answer", "speak"]
