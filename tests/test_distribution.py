"""The distribution's name. On a public index `svc` is another project, so no message may tell a user to install it."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from svc.distribution import DISTRIBUTION_NAME, INSTALL_COMMAND, install_command
from svc.gateway.observability.explanation import ERRORS_GUIDE, REFUSED_GUIDE, SLOW_GUIDE

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALL = re.compile(
    r"(?:pip|pipx|uv tool|uv pip|uv|poetry) (?:install|add|run --from) +(?:-[-\w]+ +)*['\"]?([A-Za-z][\w.-]*)"
)
EXTRA = re.compile(r"(?<![\w.-])svc\[[a-z]")


def _texts(*folders: str) -> list[Path]:
    kinds = (".py", ".toml", ".md", ".yaml", ".yml", ".html", ".json")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    return [*found, ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


def test_distribution_metadata_matches_constant_and_command_is_svc() -> None:
    assert PROJECT["name"] == DISTRIBUTION_NAME == "svc-gateway"
    assert PROJECT["scripts"] == {"svc": "svc.cli:main"}


def test_install_command_with_extras_names_distribution_and_extras() -> None:
    assert INSTALL_COMMAND == "pip install svc-gateway"
    assert install_command("local", "speech") == "pip install 'svc-gateway[local,speech]'"


def test_install_hints_in_source_and_docs_name_only_this_distribution() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in _texts("src", "docs", "examples")
        for name in INSTALL.findall(path.read_text())
        if name != DISTRIBUTION_NAME and (name.startswith("svc") or path.is_relative_to(ROOT / "src"))
    ]  # a guide to a client library may install that library
    assert not wrong
    assert not [
        str(path.relative_to(ROOT)) for path in _texts("src", "docs", "examples") if EXTRA.search(path.read_text())
    ]


def test_install_hints_in_source_are_built_by_distribution_module() -> None:
    others = {path.name for path in (ROOT / "src").rglob("*.py") if "pip install" in path.read_text()}
    assert others == {"distribution.py"}


def test_install_hints_extras_are_defined() -> None:
    extras = set(PROJECT["optional-dependencies"])
    named: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for call in re.findall(r"install_command\(([^)]*)\)", path.read_text()):
            named |= set(re.findall(r"['\"]([a-z0-9]+)['\"]", call))
    for path in _texts("src", "docs", "examples"):
        for listed in re.findall(rf"{DISTRIBUTION_NAME}\[([a-z0-9,]+)\]", path.read_text()):
            named |= set(listed.split(","))
    assert named
    assert named <= extras


@pytest.mark.parametrize(
    "text", ["pip install 'svc[local]'", "pip install svc", "pip install --upgrade svc", "uv add svc"]
)
def test_install_pattern_wrong_hint_is_found(text: str) -> None:
    assert INSTALL.findall(text) == ["svc"]


@pytest.mark.slow
def test_wheel_without_the_console_is_not_built(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("static", "__pycache__", "*.so")
    shutil.copytree(ROOT / "src" / "svc", source / "src" / "svc", ignore=ignored)
    for name in ("deploy", "docs/how-to"):
        shutil.copytree(ROOT / name, source / name)
    (source / "docs" / "reference").mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "docs/reference/errors.md"):
        shutil.copy(ROOT / name, source / name)
    refused = build_wheel(source)
    assert refused.returncode != 0
    assert "python console/build.py" in refused.stderr + refused.stdout
    page = source / "src" / "svc" / "console" / "static" / "index.html"
    page.parent.mkdir()
    page.write_text("<p>")
    built = build_wheel(source)
    assert built.returncode == 0, built.stderr
    (wheel,) = source.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "svc/console/static/index.html" in names
    assert any(name.endswith("data/share/svc/systemd/svc.service") for name in names)
    for guide in (REFUSED_GUIDE, SLOW_GUIDE, ERRORS_GUIDE):
        assert any(name.endswith(f"data/share/svc/{guide}.md") for name in names)


def build_wheel(source: Path) -> subprocess.CompletedProcess[str]:
    """Build a wheel from the folder with the locked build backend."""
    command = [sys.executable, "-c", "from setuptools import build_meta; build_meta.build_wheel('.')"]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)


def test_typescript_package_contains_the_licence() -> None:
    """npm packs a LICENSE beside package.json, and neither a link nor a file of another folder."""
    packed = ROOT / "sdk" / "typescript" / "LICENSE"
    assert not packed.is_symlink()
    assert packed.read_text() == (ROOT / "LICENSE").read_text()
