"""A small wheel that pip fetches from a folder: recipes without a network."""

import base64
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

WEIGHTS = bytes(range(256)) * 4096
WORDS = b"\x02hi\x05there"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def build_wheel(
    folder: Path,
    members: dict[str, bytes],
    name: str = "toy_model",
    version: str = "1.0",
    requires_python: str = ">=3.8",
) -> Path:
    """Build a valid wheel with these members."""
    info = f"{name}-{version}.dist-info"
    files = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        + f"Requires-Python: {requires_python}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def recipe_text(wheel: Path, **change: str) -> str:
    """Return a recipe for the wheel. `change` replaces values by wrong ones."""
    values = {
        "hash": sha256(wheel.read_bytes()),
        "version": "1.0",
        "path": "toy_model/weights.bin",
        "size": str(len(WEIGHTS)),
        "sha256": sha256(WEIGHTS),
        "more": "",
        **change,
    }
    return f"""
licence = "MIT"
[[wheels]]
name = "toy-model"
version = "{values["version"]}"
hashes = ["{values["hash"]}"]
size = {wheel.stat().st_size}
members = [
  {{ path = "{values["path"]}", file = "weights.bin", size = {values["size"]}, sha256 = "{values["sha256"]}" }},
  {{ path = "toy_model/words.bin", file = "words.bin", size = {len(WORDS)}, sha256 = "{sha256(WORDS)}" }},
]
{values["more"]}
[metadata]
model_id = "toy"
version = "2.0"
description = "A toy"
execution_template = {{ type = "Toy", model_file = "weights.bin" }}
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only source of pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def wheel(index: Path) -> Path:
    return build_wheel(index, {"toy_model/weights.bin": WEIGHTS, "toy_model/words.bin": WORDS})


@pytest.fixture
def text(wheel: Path) -> Callable[..., str]:
    return lambda **change: recipe_text(wheel, **change)
