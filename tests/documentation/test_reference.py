"""The reference pages agree with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from starlette.routing import Route

from svc.gateway.routing.unconfigured_providers import key_variables
from svc.registry import routes
from tests.documentation.pages import ROOT
from tests.documentation.reference.regions import PAGES, REGIONS, names, render

VARIABLE = re.compile(r"(?:SVC|AWS|SSL)(?:_[A-Z0-9]+)+")
CODE = re.compile(r"`([^`\n]+)`")


@pytest.mark.parametrize("page", [page.name for page in sorted(PAGES.glob("*.md"))])
def test_reference_page_is_current(page: str) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    assert render(text) == text, "run: make reference"


def test_reference_regions_are_each_on_one_page() -> None:
    found = [name for page in PAGES.glob("*.md") for name in names(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(REGIONS)


def test_render_outdated_region_is_replaced() -> None:
    (name, *_) = REGIONS
    text = f"before\n<!-- generated: {name} -->\nold\n<!-- end of generated text -->\nafter\n"
    rendered = render(text)
    assert rendered != text
    assert render(rendered) == rendered
    assert rendered.startswith("before\n")
    assert rendered.endswith("\nafter\n")


def variables_of_the_code() -> Iterator[str]:
    """Yield the environment variables that the code names or reads."""
    for path in (ROOT / "src" / "svc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
                yield node.value
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("environ.get") and node.args:
                name = node.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value
                elif isinstance(name, ast.JoinedStr):
                    yield "".join(part.value if isinstance(part, ast.Constant) else "A" for part in name.values)


def test_reference_every_environment_variable_is_documented() -> None:
    page = (PAGES / "configuration.md").read_text(encoding="utf-8").partition("## The environment")[2]
    described = set(CODE.findall(page))
    used = set(variables_of_the_code()) | {name for variables in key_variables().values() for name in variables}
    assert len(used) > 25
    assert used - described == set()
    own = {name for name in described if name.startswith("SVC_")}
    assert own - used == set()


def test_reference_every_registry_route_is_documented() -> None:
    page = (PAGES / "http-api.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", page, flags=re.M))
    served = {
        f"{method} {route.path}"
        for route in routes.create_app(Mock(cors_origins=())).routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert described == served
