"""Checks the prose of the documentation: `python -m tests.documentation.prose [PAGE ...]`.

Prints one line `FILE:LINE: MESSAGE` per finding and exits with status 1 if there is any. The kinds of page are those
of https://diataxis.fr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.documentation.pages import ROOT, Block, blocks, name_of, pages

MAX_SENTENCE_WORDS = 30
MAX_LINE_COLUMNS = 120
MAX_GLOSSARY_ROWS = 20
MIN_REPEATED_CHARACTERS = 60

# The words that the title of a how-to guide may begin with.
IMPERATIVES = frozenset(
    [
        "Add",
        "Allow",
        "Authenticate",
        "Back",
        "Block",
        "Build",
        "Cache",
        "Call",
        "Change",
        "Check",
        "Choose",
        "Compare",
        "Configure",
        "Connect",
        "Create",
        "Debug",
        "Deploy",
        "Diagnose",
        "Embed",
        "Enable",
        "Export",
        "Find",
        "Fix",
        "Give",
        "Import",
        "Inspect",
        "Install",
        "Investigate",
        "Issue",
        "Limit",
        "Load",
        "Log",
        "Make",
        "Manage",
        "Migrate",
        "Mirror",
        "Monitor",
        "Move",
        "Pack",
        "Point",
        "Protect",
        "Publish",
        "Pull",
        "Read",
        "Record",
        "Reload",
        "Replace",
        "Report",
        "Restore",
        "Restrict",
        "Revoke",
        "Rotate",
        "Run",
        "Scale",
        "Secure",
        "Send",
        "Serve",
        "Set",
        "Spread",
        "Share",
        "Sign",
        "Start",
        "Stop",
        "Store",
        "Stream",
        "Switch",
        "Test",
        "Trace",
        "Transcribe",
        "Tune",
        "Turn",
        "Understand",
        "Upgrade",
        "Use",
        "Verify",
        "Watch",
        "Write",
    ]
)
ABBREVIATIONS = ("e.g.", "i.e.", "vs.", "cf.", "approx.")
SENTENCE_END = re.compile(r"[.!?][)\"'”’*_]*\s+")
STEP = re.compile(r"Step (\d+): \S")
NUMBERED = re.compile(r"(?:Step )?\d+[.:)]? ")
DECISION = re.compile(r"(\d{4}): \S")
TUTORIAL_EXTRA = {"Before you begin", "Next steps"}
DECISION_SECTIONS = ("Context", "Decision", "Consequences")

Finding = tuple[int, str]
Rule = Callable[[str, list[Block]], Iterator[Finding]]


def findings(name: str, text: str) -> list[Finding]:
    """Return line numbers and messages for the page `name`, a path such as `docs/how-to/manage-keys.md`."""
    parts = list(blocks(text))
    found = [*long_lines(text), *long_sentences(parts), *titles(parts), *rule_for(name)(name, parts)]
    if name == "CHANGELOG.md":
        found += repeated_entries(text)
    return sorted(found)


def repeated_entries(text: str) -> Iterator[Finding]:
    """Find entries of the changelog that begin like an earlier one. A merge that keeps both sides repeats entries."""
    first_lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("* "):
            earlier = first_lines.setdefault(line[:MIN_REPEATED_CHARACTERS], number)
            if earlier != number and len(line) >= MIN_REPEATED_CHARACTERS:
                yield number, f"the entry begins like that of line {earlier}"


def long_lines(text: str) -> Iterator[Finding]:
    """Find long lines outside fences and tables. The address of a link does not count: nothing can wrap it."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("```", "~~~")):
            inside = not inside
        elif not inside and not line.lstrip().startswith("|"):
            columns = len(re.sub(r"\]\([^)\s]*\)|<https?://[^>\s]*>", "]()", line))
            if columns > MAX_LINE_COLUMNS:
                yield number, f"{columns} columns, more than {MAX_LINE_COLUMNS}"


def long_sentences(parts: list[Block]) -> Iterator[Finding]:
    """Find long sentences in paragraphs, list items, table cells and headings."""
    for block in parts:
        if block.kind in ("paragraph", "cell", "heading"):
            for sentence in sentences(block.text):
                count = len(words(sentence))
                if count > MAX_SENTENCE_WORDS:
                    begin = " ".join(sentence.split()[:5])
                    yield block.line, f"{count} words in a sentence, more than {MAX_SENTENCE_WORDS}: {begin} …"


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph. A code span is one word, and a link is its text."""
    plain = re.sub(r"(`+).*?\1", "CODE", text)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    for short in ABBREVIATIONS:
        plain = plain.replace(short, short.replace(".", ""))
    return [part for part in SENTENCE_END.split(plain) if part.strip()]


def words(sentence: str) -> list[str]:
    """Whether a token counts as a word: it has a letter or a digit."""
    return [token for token in sentence.split() if any(letter.isalnum() for letter in token)]


def titles(parts: list[Block]) -> Iterator[Finding]:
    """Check that a page has one title, which is its first heading."""
    headings = [block for block in parts if block.kind == "heading"]
    if not headings or headings[0].level != 1:
        yield 1, "the first heading is not a title (#)"
    for extra in [block for block in headings if block.level == 1][1:]:
        yield extra.line, "a second title (#)"


def rule_for(name: str) -> Rule:
    """Apply the rules for headings in the page's folder."""
    if not name.startswith("docs/") or name == "docs/index.md":
        return any_heading
    folder = name.split("/")[1]
    return RULES.get(folder, unknown_folder)


def any_heading(name: str, parts: list[Block]) -> Iterator[Finding]:
    yield from ()


def unknown_folder(name: str, parts: list[Block]) -> Iterator[Finding]:
    yield 1, f"{name} is in none of the folders {', '.join(sorted(RULES))}"


def tutorial(name: str, parts: list[Block]) -> Iterator[Finding]:
    """Check that sections are numbered steps."""
    expected = 1
    for heading in _headings(parts, 2):
        if heading.text in TUTORIAL_EXTRA:
            continue
        step = STEP.match(heading.text)
        if not step or int(step[1]) != expected:
            yield heading.line, f"a section of a tutorial is 'Step {expected}: …', not '{heading.text}'"
        expected += 1
    if expected < 3:
        yield 1, "a tutorial has at least two steps"


def how_to(name: str, parts: list[Block]) -> Iterator[Finding]:
    """Check that the title is a goal in the imperative. Reasons belong in an explanation."""
    for title in _headings(parts, 1):
        if title.text.split(" ")[0] not in IMPERATIVES:
            yield title.line, f"the title of a how-to guide begins with a verb in the imperative, not '{title.text}'"
    yield from _headings_not(parts, ("Why ", "What is ", "How it works"), "a how-to guide")


def reference(name: str, parts: list[Block]) -> Iterator[Finding]:
    """Check that the page describes and does not instruct."""
    yield from _no_steps(parts, "a reference page")
    yield from _headings_not(parts, ("Why ", "How to "), "a reference page")
    yield from _title_is_no_instruction(parts, "a reference page")
    if name == "docs/reference/glossary.md":
        rows = {block.line for block in parts if block.kind == "cell"}
        if len(rows) - 1 > MAX_GLOSSARY_ROWS:
            yield 1, f"{len(rows) - 1} rows in the glossary, more than {MAX_GLOSSARY_ROWS}"


def explanation(name: str, parts: list[Block]) -> Iterator[Finding]:
    """Check that the page gives reasons and does not instruct."""
    yield from _no_steps(parts, "an explanation")
    yield from _headings_not(parts, ("How to ",), "an explanation")
    yield from _title_is_no_instruction(parts, "an explanation")


def decision(name: str, parts: list[Block]) -> Iterator[Finding]:
    """Check that the title has the number of the file, and that the sections of a decision exist."""
    file = name.split("/")[-1]
    if file == "index.md":
        return
    for title in _headings(parts, 1):
        number = DECISION.match(title.text)
        if not number or not file.startswith(f"{number[1]}-"):
            yield title.line, f"the title of a decision is 'NNNN: …' with the number of its file, not '{title.text}'"
    present = {heading.text for heading in _headings(parts, 2)}
    for section in DECISION_SECTIONS:
        if section not in present:
            yield 1, f"a decision has the section '{section}'"


RULES: dict[str, Rule] = {
    "tutorial": tutorial,
    "how-to": how_to,
    "reference": reference,
    "explanation": explanation,
    "adr": decision,
}


def _headings(parts: list[Block], level: int) -> list[Block]:
    return [block for block in parts if block.kind == "heading" and block.level == level]


def _headings_not(parts: list[Block], beginnings: tuple[str, ...], kind: str) -> Iterator[Finding]:
    for block in parts:
        if block.kind == "heading" and block.text.startswith(beginnings):
            yield block.line, f"'{block.text}' does not belong in {kind}"


def _no_steps(parts: list[Block], kind: str) -> Iterator[Finding]:
    for block in parts:
        if block.kind == "heading" and NUMBERED.match(block.text):
            yield block.line, f"the step '{block.text}' does not belong in {kind}"


def _title_is_no_instruction(parts: list[Block], kind: str) -> Iterator[Finding]:
    for title in _headings(parts, 1):
        first, _, rest = title.text.partition(" ")
        if rest and first in IMPERATIVES:
            yield title.line, f"the title '{title.text}' is an instruction: it does not belong in {kind}"


def check(paths: list[Path], root: Path = ROOT) -> list[str]:
    """Return `FILE:LINE: MESSAGE` for each finding in these pages."""
    return [
        f"{name_of(path, root)}:{line}: {message}"
        for path in paths
        for line, message in findings(name_of(path, root), path.read_text(encoding="utf-8"))
    ]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Check the named pages, or all."""
    named = [Path(argument).resolve() for argument in arguments]
    wrong = check(named or pages(), root)
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
