"""svc.recipes.recipe: parsing and validation of recipes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from svc import plugins
from svc.errors import UsageError
from svc.recipes import recipe

Text = Callable[..., str]


@pytest.mark.parametrize("name", recipe.list_recipes(Path("none")))
def test_load_recipe_built_in_is_complete(name: str) -> None:
    found = recipe.load_recipe(name, Path("none"))
    assert found.metadata.model_id == name
    assert found.metadata.metadata["task"]
    assert found.metadata.metadata["licence"] == found.licence
    assert {"LICENSE", "MODEL_CARD"} & set(found.files), "a bundle must include its licence"
    assert {derived.maker for derived in found.derived} <= set(plugins.names("recipes.makers"))


def test_load_recipe_user_recipe_is_found(text: Text, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text())
    assert "mine" in recipe.list_recipes(tmp_path)
    assert recipe.load_recipe("mine", tmp_path).metadata.model_id == "toy"


@pytest.mark.parametrize(
    "name", ["", "absent", "../smollm2-135m", "/etc/passwd", "a\nb", "x" * 10_000, "smollm2-135m\n"]
)
def test_load_recipe_unknown_name_lists_known_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="smollm2-135m") as caught:
        recipe.load_recipe(name, tmp_path)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('licence = "MIT"', ""),
        ('licence = "MIT"', "licence = 7"),
        ('licence = "MIT"', 'licence = "MIT"\nsurprise = 1'),
        ('file = "weights.bin"', 'file = "../weights.bin"'),
        ('file = "weights.bin"', 'file = "words.bin"'),
        ('file = "weights.bin"', 'file = "model_metadata.json"'),
        ('name = "toy-model"', 'name = "--index-url=x"'),
        ('name = "toy-model"', 'name = "a b"'),
        ('version = "1.0"', 'version = "1.0 ; x"'),
        ('version = "2.0"', 'version = "../2.0"'),
        ('model_id = "toy"', 'model_id = ".staging"'),
        ("hashes = [", 'hashes = ["zz",'),
        ("[metadata]", "[[["),
    ],
)
def test_parse_recipe_invalid_value_raises_usage_error(text: Text, old: str, new: str) -> None:
    assert old in text()
    with pytest.raises(UsageError, match="The recipe toy is not valid"):
        recipe.parse_recipe(text().replace(old, new).encode(), "toy")


def test_parse_recipe_invalid_utf_8_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="not valid"):
        recipe.parse_recipe(b"\xff\xfe", "toy")


def test_model_bytes_of_derived_file_replace_those_of_consumed_sources() -> None:
    made = recipe.load_recipe("all-minilm-l6-v2", Path("none"))
    assert made.model_bytes == 25_282_080 + 10_454
    assert made.extracted_bytes > 90_000_000
    joined = recipe.load_recipe("whisper-base", Path("none"))
    assert joined.model_bytes == joined.extracted_bytes
