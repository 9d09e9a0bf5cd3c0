"""The table of platforms and capabilities in docs/reference/typescript-sdk.md, which `make sdk` writes from its run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping

from tests.typescript_sdk.node import ROOT, SDK

PAGE = ROOT / "docs" / "reference" / "typescript-sdk.md"
PLATFORMS = ("Node", "Chromium", "React Native")
"""The columns. A platform without results has no column."""
START, END = "<!-- made by `make sdk` -->\n", "<!-- end of the table of `make sdk` -->\n"
MARKS = {"ok": "✓", "absent": "–"}

Results = Mapping[str, str]
"""Capability to "ok", "absent" or what failed."""


def capability_names() -> list[str]:
    """Return the rows of the table: the checks of test/capabilities.mjs, in their order."""
    text = (SDK / "test" / "capabilities.mjs").read_text(encoding="utf-8")
    return re.findall(r'^  async "([^"]+)"\(', text, flags=re.M)


def parse_results(lines: Iterable[str]) -> Results:
    """Return the results that a platform printed, one line of JSON for each capability."""
    found = [json.loads(line) for line in lines if line.startswith('{"capability"')]
    return {each["capability"]: each["result"] for each in found}


def check(platform: str, results: Results) -> Results:
    """Return the results. Raises AssertionError if one is missing or failed."""
    missing = set(capability_names()) - set(results)
    assert not missing, f"{platform} has no result for {', '.join(sorted(missing))}"
    failed = {name: result for name, result in results.items() if result not in MARKS}
    assert not failed, f"{platform}: {failed}"
    absent = sum(result == "absent" for result in results.values())
    sys.stdout.write(f"{platform}: {len(results) - absent} capabilities work, {absent} are absent\n")
    sys.stdout.flush()
    return results


def run_node(environment: Mapping[str, str]) -> Results:
    """Run the checks in Node."""
    completed = subprocess.run(
        ["node", "test/platforms/node.mjs"],
        cwd=SDK,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    return parse_results(completed.stdout.splitlines())


def table(results: Mapping[str, Results]) -> str:
    """Return the table. `results` are by platform."""
    platforms = [name for name in PLATFORMS if name in results]
    head = f"| Capability | {' | '.join(platforms)} |\n|---|{'---|' * len(platforms)}\n"
    rows = [
        f"| {name} | {' | '.join(MARKS[results[platform][name]] for platform in platforms)} |\n"
        for name in capability_names()
    ]
    return head + "".join(rows)


def parse_table(text: str) -> dict[str, Results]:
    """Return the results that a table shows."""
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in text.splitlines()]
    results = {mark: result for result, mark in MARKS.items()}
    return {
        platform: {row[0]: results[row[column]] for row in rows[2:]}
        for column, platform in enumerate(rows[0][1:], start=1)
    }


def table_on_page() -> str:
    """Return the table of the page as it is."""
    return PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0].strip("\n") + "\n"


def write_page(results: Mapping[str, Results]) -> None:
    """Replace the table of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(f"{before}{START}\n{table(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")
