"""What tests of several rooms share: the embedded model, made once into the ignored cache folder of the repository."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from svc.recipes import make
from svc.recipes.recipe import load_recipe

CACHE = Path(__file__).parents[1] / ".cache" / "svc"
MODEL = "smollm2-135m"


def pytest_configure() -> None:
    """A shell's job in the background ignores Ctrl-C, and hands that on: what is started here is to hear it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_home() -> Path:
    """An SVC_HOME that has the model; the real command makes it, once for all runs."""
    add_model(MODEL)
    return CACHE


@pytest.fixture(scope="session")
def speech_model() -> None:
    """What `svc up` needs beside it."""
    add_model("moonshine-tiny-en")


def add_model(name: str) -> None:
    """Make a model in the cache, unless it is there."""
    environ = {**os.environ, "SVC_HOME": str(CACHE)}
    subprocess.run([sys.executable, "-m", "svc", "models", "add", name], env=environ, check=True, timeout=600)


@pytest.fixture(scope="session")
def model_path(model_home: Path) -> Path:
    """The model's weights."""
    recipe = load_recipe(MODEL, model_home / "recipes")
    return make.content_folder(recipe, model_home / "registry") / recipe.metadata.execution_template["model_file"]
