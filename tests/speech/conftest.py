"""One gateway, shared by the tests that do not change it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.speech import material
from tests.speech.gateway import Gateway
from tests.speech.gateway import run_gateway as run

collect_ignore = [] if (material.SHARED / "audio").is_dir() else ["test_shared.py"]


@pytest.fixture(scope="session")
def clips() -> dict[str, Path]:
    return material.make_clips()


@pytest.fixture(scope="session")
def model() -> Path:
    return material.make_model()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Gateway]:
    with run(tmp_path_factory.mktemp("home")) as running:
        yield running
