"""Finds the generated regions of a page and fills them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.documentation.pages import ROOT
from tests.documentation.reference import bundles, commands, errors, http, metrics, presets, sdk, settings, speech

PAGES = ROOT / "docs" / "reference"
END = "<!-- end of generated text -->"
REGION = re.compile(rf"<!-- generated: (\S+) -->\n.*?{re.escape(END)}", re.S)
MODULES = (bundles, commands, errors, http, metrics, presets, sdk, settings, speech)
REGIONS: Mapping[str, Callable[[], str]] = {name: each for module in MODULES for name, each in module.REGIONS.items()}


def render(text: str) -> str:
    """The page with current regions. Raises KeyError for a region that nothing generates."""
    return REGION.sub(lambda found: _region(found[1]), text)


def names(text: str) -> list[str]:
    """The names of the regions of a page."""
    return [found[1] for found in REGION.finditer(text)]


def _region(name: str) -> str:
    return f"<!-- generated: {name} -->\n\n{REGIONS[name]().strip()}\n\n{END}"
