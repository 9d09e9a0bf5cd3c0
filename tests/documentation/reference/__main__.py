"""Writes the generated regions of the reference pages: `make reference`."""

from __future__ import annotations

import sys

from tests.documentation.reference.regions import PAGES, render

if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (rendered := render(text)) != text:
            page.write_text(rendered, encoding="utf-8")
            sys.stdout.write(f"wrote {page.name}\n")
