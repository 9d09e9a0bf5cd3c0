"""The page and the chart: medians over the rounds, with the least and the most of them. Pure functions."""

from __future__ import annotations

import html
import math
import statistics
from datetime import UTC, datetime
from typing import Any

Row = dict[str, Any]
FIGURES = (  # title, work, field, unit
    ("CPU for a request, JSON", "json", "cpu_us", "µs"),
    ("CPU for a piece, 200 streams of 50/s", "stream", "cpu_us", "µs"),
    ("CPU for a piece, 10 streams of 50/s", "few", "cpu_us", "µs"),
    ("Latency at 100 requests/s, median", "latency", "p50", "ms"),
    ("Latency at 100 requests/s, p99", "latency", "p99", "ms"),
    ("Memory at rest", None, "rest_mb", "MB"),
    ("Memory after the work", None, "peak_mb", "MB"),
    ("Ready after start", None, "start_ms", "ms"),
)
NOISY, STARVED = 0.15, 0.5
"""Shares of the target's processor that others took: from the second on, times on the clock are left out."""
DUE = {"stream": 200 * 50, "few": 10 * 50}
"""Pieces a second that the provider sends; who hands on much fewer is overloaded."""

MARKS = ("<!-- make compare writes from here -->", "<!-- to here -->")

TOP = """# Beside other gateways

Made by `make compare` ({when}): the same work for each, in turns, {rounds} round(s) of {seconds:g} s; each figure is the median
of the rounds, with the least and the most. The target runs alone on one processor, pinned; the load and a mock provider are one
process on the other (`bench/compare/load.py`). CPU is what the kernel charged to the target's processes. An answer counts only
when it is whole; a target that gave others has no figure there.

{machine}. {noise}

![CPU for a request and for a piece](compare.svg)

"""


def made(rows: list[Row], versions: dict[str, str], machine: str, rounds: int, seconds: float) -> tuple[str, str]:
    """The page in Markdown, and the chart in SVG."""
    names = list(versions)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    head = TOP.format(when=when, rounds=rounds, seconds=seconds, machine=machine, noise=_noise(rows))
    table = f"| Figure | {' | '.join(versions[name] for name in names)} |\n|---|{'---:|' * len(names)}\n"
    for title, work, field, unit in FIGURES:
        cells = [_cell(_values(rows, name, work, field), unit) for name in names]
        table += f"| {title} | {' | '.join(cells)} |\n"
    return head + table + _notes(rows, versions), chart(rows, versions)


def inserted(page: str, made: str) -> str:
    """`page` with the table of what was made between MARKS; raises ValueError where they are missing."""
    before, rest = page.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    table = "\n".join(line for line in made.splitlines() if line.startswith("|"))
    return f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{after}"


def _values(rows: list[Row], name: str, work: str | None, field: str) -> list[float]:
    """One for each round in which all answers were whole, and came as fast as they were sent."""
    found = []
    for row in rows:
        place = row.get(work, {}) if work else row
        if row["target"] != name or field not in place or place.get("faults"):
            continue
        if work in DUE and place["per_second"] < DUE[work] * 0.8:
            continue
        if _unit_of(field) == "ms" and row.get("json", {}).get("others", 0) > STARVED:
            continue
        found.append(float(place[field]))
    return found


def _unit_of(field: str) -> str:
    return next(unit for _, _, one, unit in FIGURES if one == field)


def _cell(values: list[float], unit: str) -> str:
    if not values:
        return "–"
    middle = statistics.median(values)
    spread = f" ({_short(min(values))}–{_short(max(values))})" if len(values) > 1 else ""
    return f"{_short(middle)} {unit}{spread}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _noise(rows: list[Row]) -> str:
    """What else ran on the target's processor, at the most."""
    shares = [
        row[work]["others"] for row in rows for work in ("json", "stream", "few") if "others" in row.get(work, {})
    ]
    if not shares:
        return ""
    word = "noisy: read the ratios, and run it again on a quiet machine" if max(shares) > NOISY else "quiet"
    return f"Others took {statistics.median(shares):.0%} of the target's processor (at most {max(shares):.0%}): {word}."


def _notes(rows: list[Row], versions: dict[str, str]) -> str:
    """Why a figure is missing."""
    found = {}
    for row in rows:
        name = row["target"]
        if "missing" in row:
            found[f"* {name}: {row['missing']}"] = None
        for _, work, _, _ in FIGURES:
            place = row.get(work, {}) if work else {}
            if place.get("faults"):
                found[
                    f"* {versions[name]}, {work}: {place['faults']} answers failed; the first: {_plain(place['fault'])}"
                ] = None
            elif work in DUE and place.get("per_second", 0) < DUE[work] * 0.8 and place:
                found[
                    f"* {versions[name]}, {work}: handed on {place['per_second']} of {DUE[work]} pieces a second{_taken(place)}"
                ] = None
    return "\n" + "\n".join(found) + "\n" if found else ""


def _taken(place: Row) -> str:
    return f", while others took {place['others']:.0%} of its processor"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ").replace("`", "'")


WIDTH, BAR, LABEL = 720, 22, 170
COLOURS = ("#9aa5b1", "#2f6fde", "#e0a030", "#c05050")


def chart(rows: list[Row], versions: dict[str, str]) -> str:
    """Bars on a scale of tens, since the figures are that far apart; the longest is the dearest."""
    parts, top = [], 10
    for title, work, field, unit in FIGURES[:3]:
        values = {name: statistics.median(found) for name in versions if (found := _values(rows, name, work, field))}
        parts.append(f'<text x="10" y="{top + 14}" font-weight="bold">{html.escape(title)}, {unit}</text>')
        top += 24
        for name, value in values.items():
            length = _length(value, max(values.values()))
            colour = COLOURS[list(versions).index(name) % len(COLOURS)]
            parts.append(f'<text x="10" y="{top + 15}">{html.escape(versions[name].partition(" at ")[0])}</text>')
            parts.append(f'<rect x="{LABEL}" y="{top + 2}" width="{length}" height="{BAR - 6}" fill="{colour}"/>')
            parts.append(f'<text x="{LABEL + length + 6}" y="{top + 15}">{_short(value)}</text>')
            top += BAR
        top += 12
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 20}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n'
        f'<text x="10" y="{top + 10}" font-size="11">A bar twice as long is ten times as dear, beyond the first.</text>\n</svg>\n'
    )


def _length(value: float, most: float) -> int:
    """Logarithmic from 1 on."""
    scale = math.log10(max(most, 10)) + 0.2
    return max(2, int((WIDTH - LABEL - 90) * (math.log10(max(value, 1.1)) + 0.05) / scale))
