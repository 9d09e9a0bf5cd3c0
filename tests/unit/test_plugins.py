"""svc.plugins: a name becomes a module, else an installed entry point."""

import sys
from pathlib import Path

import pytest

from svc import plugins
from svc.errors import UsageError


def install(folder: Path, group: str, name: str, target: str) -> None:
    """Puts an installed distribution with one entry point into a folder."""
    info = folder / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    (folder / "other.py").write_text('"""Another verb."""\nVALUE = 7\n')


def test_a_name_is_the_module_of_that_name() -> None:
    assert plugins.load("cli", "models").__name__ == "svc.cli.models"


@pytest.mark.parametrize(
    "name", ["", "base", "_base", "no-such", "Models", "models.x", "../models", "x" * 9000, "é", "a b"]
)
def test_an_unknown_name_lists_what_is_known(name: str) -> None:
    with pytest.raises(UsageError, match="models") as caught:
        plugins.load("cli", name)
    assert len(caught.value.message) < 1000


def test_names_leave_out_what_plugins_share() -> None:
    found = plugins.names("cli")
    assert "models" in found
    assert "base" not in found
    assert found == sorted(found)


def test_an_installed_entry_point_is_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "svc.cli", "other-verb", "other")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.load("cli", "other-verb").VALUE == 7
    assert "other-verb" in plugins.names("cli")
    assert plugins.summary("cli", "other-verb") == "Another verb."


def test_a_summary_is_read_without_importing() -> None:
    sys.modules.pop("svc.cli.models", None)
    assert plugins.summary("cli", "models")
    assert "svc.cli.models" not in sys.modules


def test_every_verb_has_a_summary() -> None:
    assert [name for name in plugins.names("cli") if not plugins.summary("cli", name)] == []
