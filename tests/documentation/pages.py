"""Finds the pages of the documentation and splits their Markdown into blocks with line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FENCE = re.compile(r"( *)(```+|~~~+) *([\w-]*)")
HEADING = re.compile(r"(#{1,6}) +(.*?) *#*$")
LIST_ITEM = re.compile(r" *(?:[-*+]|\d+[.)]) +")
ADMONITION = re.compile(r"(?:!!!|\?\?\?\+?) ")
TABLE_RULE = re.compile(r"[|:\- ]+$")
CELL_BORDER = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Block:
    """One paragraph, list item, table cell, heading, fence or comment. `line` is the number of its first line."""

    kind: str
    line: int
    text: str
    level: int = 0
    language: str = ""


def pages() -> list[Path]:
    """Return every page that a reader sees."""
    top = [ROOT / name for name in TOP_PAGES if (ROOT / name).exists()]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path, root: Path = ROOT) -> str:
    """Return the path of a page below the root of the repository, with slashes."""
    return path.relative_to(root).as_posix()


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page in their order. The text of a fence has no indent and no fence lines."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        number, found = _next(lines, number)
        yield from found


def _next(lines: list[str], start: int) -> tuple[int, list[Block]]:
    """Return the line number after the block that begins at `start`, and the parts of the block."""
    line = lines[start]
    if opening := FENCE.match(line):
        return _fence(lines, start, opening)
    if line.lstrip().startswith("<!--"):
        end = next((at for at in range(start, len(lines)) if "-->" in lines[at]), len(lines) - 1) + 1
        return end, [Block("comment", start + 1, "\n".join(lines[start:end]))]
    if heading := HEADING.match(line):
        return start + 1, [Block("heading", start + 1, heading[2], level=len(heading[1]))]
    if line.lstrip().startswith("|"):
        if TABLE_RULE.match(line):
            return start + 1, []
        cells = CELL_BORDER.split(line.strip().strip("|"))
        return start + 1, [Block("cell", start + 1, cell.strip()) for cell in cells if cell.strip()]
    if not line.strip() or ADMONITION.match(line):
        return start + 1, []
    end = start + 1
    while end < len(lines) and not _interrupts(lines[end]):
        end += 1
    first = LIST_ITEM.sub("", line, count=1)
    return end, [Block("paragraph", start + 1, " ".join([first, *lines[start + 1 : end]]))]


def _interrupts(line: str) -> bool:
    """Whether a paragraph ends before this line."""
    stripped = line.lstrip()
    if not stripped or stripped.startswith(("|", "<!--")):
        return True
    return bool(FENCE.match(line) or HEADING.match(line) or LIST_ITEM.match(line) or ADMONITION.match(line))


def _fence(lines: list[str], start: int, opening: re.Match[str]) -> tuple[int, list[Block]]:
    indent, marks, language = opening[1], opening[2], opening[3]
    end = start + 1
    while end < len(lines) and lines[end].strip() != marks:
        end += 1
    content = "\n".join(line.removeprefix(indent) for line in lines[start + 1 : end])
    return end + 1, [Block("fence", start + 1, f"{content}\n", language=language)]
