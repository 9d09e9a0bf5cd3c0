"""The checks of `tests/documentation/prose.py`, with wrong and correct text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation import prose
from tests.documentation.pages import ROOT, blocks, name_of, pages

LONG_SENTENCE = " ".join(["ab"] * 31) + "."
LONG_LINE = "x" * 121


def messages(name: str, text: str) -> list[str]:
    return [f"{line}: {message}" for line, message in prose.findings(name, text)]


def test_check_all_pages_gives_no_findings() -> None:
    assert prose.check(pages()) == []


def test_pages_include_generated_and_top_level_pages() -> None:
    names = {name_of(path) for path in pages()}
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} <= names
    assert {"docs/reference/faults.md", "docs/reference/conformance.md", "docs/explanation/compare.md"} <= names


@pytest.mark.parametrize(
    "text",
    [
        f"# Title\n\n{LONG_SENTENCE}\n",
        f"# Title\n\nShort. {LONG_SENTENCE}\n",
        f"# Title\n\n* {LONG_SENTENCE}\n",
        f"# Title\n\n| a | b |\n|---|---|\n| c | {LONG_SENTENCE} |\n",
        "# Title\n\n" + "word " * 15 + "\n" + "word " * 16 + "\n",
        "# Title\n\n" + "a " * 15 + "e.g. " + "b " * 15 + "\n",
    ],
)
def test_findings_long_sentence_is_reported_at_its_line(text: str) -> None:
    (found,) = messages("README.md", text)
    assert "31 words" in found
    assert int(found.split(":")[0]) in (3, 5)


def test_findings_repeated_entry_of_the_changelog_is_reported() -> None:
    entry = f"* {'word ' * 12}"
    text = f"# Title\n\n{entry}one.\n* Short.\n{entry}two.\n* Short.\n"
    assert messages("CHANGELOG.md", text) == ["5: the entry begins like that of line 3"]
    assert messages("README.md", text) == []


@pytest.mark.parametrize(
    "text",
    [
        f"# Title\n\n```\n{LONG_SENTENCE}\n```\n",
        f"# Title\n\n<!-- {LONG_SENTENCE} -->\n",
        "# Title\n\n" + "`a code span is one word` " * 30 + "\n",
        "# Title\n\n" + "word " * 20 + "end. " + "word " * 20 + "\n",
        "# Title\n\n" + "* " + "\n* ".join(["word " * 20] * 3) + "\n",
        "# Title\n\n" + "word - " * 30 + "\n",
    ],
)
def test_findings_short_sentences_and_code_pass(text: str) -> None:
    assert [found for found in messages("README.md", text) if "words" in found] == []


def test_findings_long_line_is_reported_at_its_line() -> None:
    assert messages("README.md", f"# Title\n\n{LONG_LINE}\n") == ["3: 121 columns, more than 120"]


@pytest.mark.parametrize("line", [f"| {LONG_LINE} |", f"```\n{LONG_LINE}\n```", f"[page](https://{LONG_LINE})"])
def test_findings_long_line_in_table_fence_or_link_passes(line: str) -> None:
    assert messages("README.md", f"# Title\n\n{line}\n") == []


def test_findings_missing_or_second_title_is_reported() -> None:
    assert messages("README.md", "Text.\n") == ["1: the first heading is not a title (#)"]
    assert messages("README.md", "# One\n\n# Two\n") == ["3: a second title (#)"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/how-to/a.md", "# Keys\n"),
        ("docs/how-to/a.md", "# Managing keys\n"),
        ("docs/how-to/a.md", "# Manage keys\n\n## Why keys rotate\n"),
        ("docs/reference/a.md", "# Keys\n\n## Step 1: Create a key\n"),
        ("docs/reference/a.md", "# Keys\n\n## 1. Create a key\n"),
        ("docs/reference/a.md", "# Keys\n\n## Why keys\n"),
        ("docs/reference/a.md", "# Manage keys\n"),
        ("docs/explanation/a.md", "# Keys\n\n## Step 1: Create a key\n"),
        ("docs/explanation/a.md", "# Keys\n\n## How to create a key\n"),
        ("docs/explanation/a.md", "# Use Redis\n"),
        ("docs/tutorial/a.md", "# First\n\n## Step 1: A\n\n## Step 3: B\n"),
        ("docs/tutorial/a.md", "# First\n\n## Step 1: A\n\n## Step 2: B\n\n## Why\n"),
        ("docs/tutorial/a.md", "# First\n\n## Step 1: A\n"),
        ("docs/adr/0001-a.md", "# 0002: A\n\n## Context\n\n## Decision\n\n## Consequences\n"),
        ("docs/adr/0001-a.md", "# 0001: A\n\n## Context\n\n## Decision\n"),
        ("docs/other/a.md", "# A\n"),
        ("docs/a.md", "# A\n"),
    ],
)
def test_findings_heading_in_wrong_kind_of_page_is_reported(name: str, text: str) -> None:
    assert len(messages(name, text)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/index.md", "# svc\n"),
        ("docs/how-to/a.md", "# Manage keys\n\n## Rotate a key\n"),
        ("docs/reference/a.md", "# Limits\n\n## Read timeouts\n"),
        ("docs/reference/a.md", "# Stream\n"),
        ("docs/explanation/a.md", "# Durability\n\n## Why a journal\n\n## How it is read\n"),
        ("docs/tutorial/a.md", "# First\n\n## Before you begin\n\n## Step 1: A\n\n### Why\n\n## Step 2: B\n"),
        ("docs/adr/0001-a.md", "# 0001: A\n\n## Context\n\n## Decision\n\n## Consequences\n"),
        ("docs/adr/index.md", "# Decisions\n"),
    ],
)
def test_findings_heading_in_right_kind_of_page_passes(name: str, text: str) -> None:
    assert messages(name, text) == []


def test_findings_glossary_over_limit_is_reported() -> None:
    row = "| a | b |\n"
    assert messages("docs/reference/glossary.md", "# Glossary\n\n" + row + "|---|---|\n" + row * 20) == []
    (found,) = messages("docs/reference/glossary.md", "# Glossary\n\n" + row + "|---|---|\n" + row * 21)
    assert "21 rows" in found


def test_main_finding_exits_1_and_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "docs" / "how-to" / "keys.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"# Keys\n\n{LONG_LINE}\n", encoding="utf-8")
    assert prose.main([str(page)], tmp_path) == 1
    written = capsys.readouterr().out.splitlines()
    assert written[0].startswith("docs/how-to/keys.md:1: ")
    assert written[1] == "docs/how-to/keys.md:3: 121 columns, more than 120"
    assert prose.main([str(ROOT / "docs" / "index.md")]) == 0


def test_blocks_have_kind_line_text_and_language() -> None:
    text = "# T\n\ntext\nmore\n\n* item\n  ```sh\n  svc ls\n  ```\n\n| a | `b \\| c` |\n|---|---|\n<!-- x\ny -->\n"
    assert [(block.kind, block.line, block.text, block.language) for block in blocks(text)] == [
        ("heading", 1, "T", ""),
        ("paragraph", 3, "text more", ""),
        ("paragraph", 6, "item", ""),
        ("fence", 7, "svc ls\n", "sh"),
        ("cell", 11, "a", ""),
        ("cell", 11, "`b \\| c`", ""),
        ("comment", 13, "<!-- x\ny -->", ""),
    ]
