"""The distribution's name: on a public index `svc` belongs to somebody else, so no message may send a user there."""

import re
import tomllib
from pathlib import Path

import pytest

from svc.distribution import DISTRIBUTION_NAME, install_command

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


def test_distribution_has_the_name_of_the_constant_and_the_command_stays_svc() -> None:
    assert PROJECT["name"] == DISTRIBUTION_NAME == "svc-gateway"
    assert PROJECT["scripts"] == {"svc": "svc.cli:main"}


def test_install_command_names_the_distribution_and_extras() -> None:
    assert install_command("local", "speech") == "pip install 'svc-gateway[local,speech]'"


def test_install_hints_in_source_and_documents_name_no_other_distribution() -> None:
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


def test_install_hints_in_code_come_from_the_one_function() -> None:
    others = {path.name for path in (ROOT / "src").rglob("*.py") if "pip install" in path.read_text()}
    assert others == {"distribution.py"}


def test_install_hints_name_extras_that_exist() -> None:
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
def test_the_pattern_finds_the_hints_it_is_meant_for(text: str) -> None:
    assert INSTALL.findall(text) == ["svc"]
