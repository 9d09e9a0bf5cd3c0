"""Finds the fenced blocks of a page and decides how each is tested.

A block runs, or a comment right before it gives the reason why it does not:

    <!-- excerpt: the output of the command above -->

A comment `<!-- server -->` marks a block that starts a server, which runs until the end of the page. Such a page has a
machine of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from svc import settings
from svc.pipeline.definition import parse_pipeline
from tests.documentation.pages import Block, blocks

EXCERPT = re.compile(r"<!-- excerpt: .*\S.* -->\s*$")
SERVER = re.compile(r"<!-- server -->\s*$")
SHELL = frozenset(("sh", "bash"))


@dataclass(frozen=True)
class Snippet:
    """A fenced block. `role` is `run`, `server`, `check` or `excerpt`. `error` is set if it is none of these."""

    line: int
    language: str
    text: str
    role: str
    error: str = ""


def snippets(page: str) -> list[Snippet]:
    """Return the fenced blocks of a page in order."""
    found = []
    previous: Block | None = None
    for block in blocks(page):
        if block.kind == "fence":
            comment = previous.text.strip() if previous and previous.kind == "comment" else ""
            found.append(_snippet(block, comment))
        previous = block
    return found


def _snippet(block: Block, comment: str) -> Snippet:
    role, error = "excerpt", ""
    if SERVER.match(comment) and block.language in SHELL:
        role = "server"
    elif not EXCERPT.match(comment):
        if block.language in CHECKS:
            role = "check"
        elif block.language in SHELL or block.language == "python":
            role = "run"
        else:
            kind = f"language '{block.language}'" if block.language else "no language"
            error = f"a block with {kind} is not executed: mark it with <!-- excerpt: reason -->"
    return Snippet(block.line, block.language, block.text, role, error)


def check_toml(text: str, folder: Path) -> None:
    """Raise an error unless the text is a valid `svc.toml`."""
    path = folder / "svc.toml"
    path.write_text(text, encoding="utf-8")
    settings.load({}, config=str(path))


def check_yaml(text: str, folder: Path) -> None:
    """Raise an error unless the text is a valid pipeline."""
    parse_pipeline(text)


def check_json(text: str, folder: Path) -> None:
    """Raise an error unless the text is one JSON value, or one per line."""
    try:
        json.loads(text)
    except ValueError:
        for line in text.strip().split("\n"):
            json.loads(line)


CHECKS: dict[str, Callable[[str, Path], None]] = {"toml": check_toml, "yaml": check_yaml, "json": check_json}
