"""All pages: the site builds, and the commands, targets, paths and figures in the text exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT, name_of, pages
from tests.e2e import harness

CODE = re.compile(r"`([^`\n]+)`")
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>", re.I)
FIGURE = re.compile(r"\d[\d,.]*\d|\d")


def code_spans() -> Iterator[tuple[str, int, str]]:
    """Yield page, line and text of every code span outside fenced blocks."""
    for path in pages():
        inside = False
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if line.lstrip().startswith("```"):
                inside = not inside
            elif not inside:
                for span in CODE.findall(line):
                    yield name_of(path), number, span


@cache
def help_of(*command: str) -> str | None:
    """Return the help text of `svc COMMAND…`, or None if there is no such command."""
    result = harness.run(*command, "--help", home=Path(tempfile.gettempdir()))
    return result.stdout if result.returncode == 0 else None


@pytest.mark.slow
def test_site_builds_without_resources_of_other_hosts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    built = list((tmp_path / "site").rglob("*.html"))
    assert len(built) >= len(list((ROOT / "docs").rglob("*.md")))
    text = {path: path.read_text(encoding="utf-8") for path in built}
    loaded = [found for page in text.values() for found in LOADED.findall(page) if "canonical" not in found]
    assert loaded == []
    assert [path for path, page in text.items() if 'class="mermaid"' in page] == []


def test_top_pages_links_exist() -> None:
    wrong = []
    for path in pages():
        if path.parent == ROOT:
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
                if not target.startswith("https://") and not (ROOT / target).exists():
                    wrong.append(f"{name_of(path)}: {target}")
    assert wrong == []


def test_loaded_pattern_matches_resources_of_other_hosts() -> None:
    assert LOADED.search('<script src="https://unpkg.com/x"></script>')
    assert LOADED.search("<link rel=stylesheet href=//fonts.example/css>")
    assert not LOADED.search('<a href="https://example.com"><img src="x.svg">')


def test_code_spans_commands_and_options_exist() -> None:
    wrong = []
    for name, line, span in code_spans():
        command = re.match(r"(?:\S+=\S+ +)*(?:\.venv/bin/)?svc +([a-z]+)\b(?: +([a-z][a-z-]*)\b)?", span)
        if not command:
            continue
        text = help_of(command[1], command[2]) if command[2] and command[1] in GROUPS else help_of(command[1])
        options = re.findall(r"(?<=\s)--[a-z][a-z-]+", span)
        if text is None or any(not re.search(rf"{option}\b", text) for option in options):
            wrong.append(f"{name}:{line}: {span}")
    assert wrong == []


GROUPS = ("registry", "bundle", "models", "keys")


def test_code_spans_make_targets_and_programs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    wrong = []
    for name, line, span in code_spans():
        if (target := re.match(r"make ([a-z-]+)", span)) and target[1] not in targets:
            wrong.append(f"{name}:{line}: {span}")
        if module := re.match(r"(?:\S*/)?python3? -m ((?:tests|bench)[\w.]*)", span):
            path = ROOT / module[1].replace(".", "/")
            if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
                wrong.append(f"{name}:{line}: {span}")
        if (script := re.match(r"(?:\S*/)?python3? (\S+\.py)", span)) and not (ROOT / script[1]).exists():
            wrong.append(f"{name}:{line}: {span}")
    assert wrong == []


def missing_paths(spans: list[str]) -> list[str]:
    """Return the code spans that look like a path of the repository or below `src/svc` and do not exist."""
    packages = "|".join(path.name for path in (ROOT / "src" / "svc").iterdir() if path.is_dir())
    top = re.compile(r"(?:src|tests|bench|console|docs|native|examples)/[\w./*-]+")
    module = re.compile(rf"(?:{packages})/[\w./*-]+\.(?:py|toml|yaml|json)")
    wrong = [span for span in spans if top.fullmatch(span) and not module.fullmatch(span) and not any(ROOT.glob(span))]
    roots = (ROOT, ROOT / "src" / "svc")  # `console/` is a folder of both
    return wrong + [
        span for span in spans if module.fullmatch(span) and not any(any(root.glob(span)) for root in roots)
    ]


def test_code_spans_paths_exist() -> None:
    assert [f"{name}:{line}: {span}" for name, line, span in code_spans() if missing_paths([span])] == []


def test_missing_paths_finds_wrong_paths() -> None:
    wrong = ["tests/unit/no_such.py", "gateway/no_such.toml", "docs/no-such-*.md"]
    right = ["tests/unit/", "gateway/providers.toml", "docs/adr/0001-*.md", "a/b"]
    assert sorted(missing_paths([*wrong, *right])) == sorted(wrong)


def rows_with_figures() -> list[tuple[str, str, str]]:
    """Return page, figures and command of each row of the README's comparison table."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \[[^\]]*\]\((docs/[^)]*)\) \| (.*?) \| `(.*?)` \|$", readme, flags=re.M)


def test_readme_has_five_rows_with_figures() -> None:
    assert len(rows_with_figures()) == 5


@pytest.mark.parametrize(("page", "text", "command"), rows_with_figures())
def test_readme_figure_is_on_its_page_with_command(page: str, text: str, command: str) -> None:
    found = (ROOT / page).read_text(encoding="utf-8")
    assert command in found
    assert [number for number in FIGURE.findall(text) if number not in found] == []


def test_install_lines_of_the_page_connect_are_in_the_documentation() -> None:
    """`tests/browser/test_connect.py` compares all lines, in a browser."""
    source = (ROOT / "console" / "src" / "pages" / "connect" / "clients.ts").read_text(encoding="utf-8")
    lines = re.findall(r'["`]((?:\(cd|npm|pip) [^"`\\]+)', source)
    assert len(lines) > 5
    documented = {line for path in pages() for line in path.read_text(encoding="utf-8").splitlines()}
    assert not [line for line in lines if line not in documented]
