"""svc.plugins: a name resolves to a module, otherwise to an installed entry point."""

import sys
from pathlib import Path

import pytest

from svc import plugins
from svc.errors import UsageError


def install(folder: Path, group: str, name: str, target: str) -> None:
    """Write an installed distribution with one entry point into a folder."""
    info = folder / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    (folder / "other.py").write_text('"""Another verb."""\nVALUE = 7\n')


def test_load_name_returns_module() -> None:
    assert plugins.load("cli", "models").__name__ == "svc.cli.models"


@pytest.mark.parametrize(
    "name", ["", "base", "_base", "no-such", "Models", "models.x", "../models", "x" * 9000, "é", "a b"]
)
def test_load_unknown_name_lists_known_names(name: str) -> None:
    with pytest.raises(UsageError, match="models") as caught:
        plugins.load("cli", name)
    assert len(caught.value.message) < 1000


def test_names_exclude_shared_modules() -> None:
    found = plugins.names("cli")
    assert "models" in found
    assert "base" not in found
    assert found == sorted(found)


def test_load_installed_entry_point_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "svc.cli", "other-verb", "other")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.load("cli", "other-verb").VALUE == 7
    assert "other-verb" in plugins.names("cli")
    assert plugins.summary("cli", "other-verb") == "Another verb."


def test_names_installation_after_a_first_scan_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload of the gateway can use a package that was installed meanwhile."""
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "later-verb" not in plugins.names("cli")
    install(tmp_path, "svc.cli", "later-verb", "other")
    assert "later-verb" in plugins.names("cli")


def test_summary_is_read_without_import() -> None:
    sys.modules.pop("svc.cli.models", None)
    assert plugins.summary("cli", "models")
    assert "svc.cli.models" not in sys.modules


def test_summary_every_command_has_one() -> None:
    assert [name for name in plugins.names("cli") if not plugins.summary("cli", name)] == []
