"""Fixtures for all tests: the models, built once in the ignored cache folder of the repository."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from svc.recipes import make
from svc.recipes.recipe import load_recipe
from tests.processes import restore_interrupts

CACHE = Path(__file__).parents[1] / ".cache" / "svc"
CONSOLE = Path(__file__).parents[1] / "console"
EMBEDDING_CACHE = CACHE.with_name("svc-embedding")
"""Of its own, so that the model is no model of this machine in other tests."""
MODEL = "smollm2-135m"

# An example takes longer than hypothesis allows by default if other processes need the cores.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Remove the variables that change the output of commands, which some CI systems set, and restore SIGINT.

    Without garbage collections, collecting 10,000 tests takes three quarters of the CPU time.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # this process collects
        gc.disable()
    for name in ("FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(name, None)
    restore_interrupts()


def pytest_collection_finish() -> None:
    """Collect garbage again, except that of the collected tests and modules, which live until the end."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def model_home() -> Path:
    """Return an SVC_HOME with the embedded model. The `svc` command builds it once for all runs."""
    add_model(MODEL)
    return CACHE


@pytest.fixture(scope="session")
def speech_model() -> None:
    """Build the speech model that `svc up` needs."""
    add_model("moonshine-tiny-en")


@pytest.fixture(scope="session")
def console_files() -> None:
    """Build the web console unless it is current."""
    subprocess.run([sys.executable, str(CONSOLE / "build.py")], check=True, timeout=300)


@pytest.fixture(scope="session")
def embedding_home() -> Path:
    """Return an SVC_HOME with the model for embeddings."""
    add_model("all-minilm-l6-v2", EMBEDDING_CACHE)
    return EMBEDDING_CACHE


def add_model(name: str, home: Path = CACHE) -> None:
    """Build a model in the cache unless it exists."""
    environ = {**os.environ, "SVC_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "svc", "models", "add", name], env=environ, check=True, timeout=600)


@pytest.fixture(scope="session")
def model_path(model_home: Path) -> Path:
    """Return the path of the model's weights."""
    recipe = load_recipe(MODEL, model_home / "recipes")
    return make.content_folder(recipe, model_home / "registry") / recipe.metadata.execution_template["model_file"]
