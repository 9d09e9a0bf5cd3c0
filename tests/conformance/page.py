"""docs/reference/conformance.md: a table of clients and checks, and what fails with its reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.places import AIMOCK, CLIENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "conformance.md"
REASONS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8"))
COLUMNS = (
    *("JSON", "stream", "usage in a stream", "tools", "tools in a stream", "structured output", "errors", "cut stream"),
    *("cancellation", "embedded model"),
)
TOP = """# Clients that were tried

Made by `make conformance`: real clients of other people, each in an environment of its own, against a real `svc gateway`
with a provider of each dialect behind it (`tests/conformance/upstream.py`) and the embedded model. Every check but the
last runs once with a model behind OpenAI's dialect and once with one behind Anthropic's.

* *errors*: 400, 401, 403, 404, 429 and 502, JSON and stream, each as the client's own exception with its code.
* *cut stream*: the provider resets the connection, ends without a finish reason, or sends an error in mid-stream: an
  exception each time, never half an answer that looks whole.
* *cancellation*: the client stops reading; the provider's connection is closed before the client asks the next thing.

✓ holds, ✗ does not (below), – the client has no such thing.

"""

PROVIDER = """
## A provider that nobody here wrote

`@copilotkit/aimock` behind the gateway, in both dialects, failing on purpose: the client gets a whole answer, or an
error with its code; a stream that was cut ends in an error, and never looks complete. In the storm the gateway tries
again as its budget allows, and every answer is whole or an honest error.

"""


@dataclass(frozen=True)
class Result:
    """One check of one client with one model. `fault` is None when it holds; `reason` is why it is known to fail."""

    client: str
    check: str
    model: str
    fault: str | None
    reason: str | None

    @classmethod
    def of(cls, client: str, check: str, model: str, fault: str | None) -> Result:
        return cls(client, check, model, fault, REASONS.get(client, {}).get(check) if fault else None)


def page(results: dict[str, list[Result]], versions: dict[str, str]) -> str:
    """The whole page."""
    head = f"| Client | {' | '.join(COLUMNS)} | more |\n|---|{'---|' * len(COLUMNS)}---|\n"
    rows = "".join(_row(client.name, results[client.name]) for client in CLIENTS)
    return TOP + head + rows + _provider(results[AIMOCK.name]) + _faults(results) + _versions(versions)


def _provider(results: list[Result]) -> str:
    """What the mock of other people did, and whether the gateway told its client the truth."""
    rows = "".join(f"| {one.check} | {one.model} | {'✗' if one.fault else '✓'} |\n" for one in results)
    return f"{PROVIDER}| The provider | model | |\n|---|---|---|\n{rows}"


def _row(name: str, results: list[Result]) -> str:
    cells = [_cell([one for one in results if one.check == column]) for column in COLUMNS]
    rest = [one for one in results if one.check not in COLUMNS]
    more = f"{sum(not one.fault for one in rest)} of {len(rest)}" if rest else "–"
    return f"| {name} | {' | '.join(cells)} | {more} |\n"


def _cell(results: list[Result]) -> str:
    if not results:
        return "–"
    return "✗" if any(one.fault for one in results) else "✓"


def _faults(results: dict[str, list[Result]]) -> str:
    failed = [one for found in results.values() for one in found if one.fault]
    if not failed:
        return "\nEverything that was tried holds.\n"
    rows = "".join(f"* **{one.client}**, {one.check}, {one.model}: {one.reason or one.fault}\n" for one in failed)
    return f"\n## What does not hold\n\n{rows}"


def _versions(versions: dict[str, str]) -> str:
    named = {one: f"{one.partition(' ')[0]} {version}" for one, version in versions.items()}
    rows = "".join(
        f"| {client.name} | {', '.join(named[one] for one in client.packages)} |\n" for client in (*CLIENTS, AIMOCK)
    )
    where = f"Python {versions['python']}, Node {versions['node']}; the locks are in `tests/conformance/locks/`."
    return f"\n## Versions\n\n| Client | Packages |\n|---|---|\n{rows}\n{where}\n"
