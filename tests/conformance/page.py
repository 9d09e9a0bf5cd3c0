"""Writes docs/reference/conformance.md: a table of clients and checks, and each check that fails with its reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.places import AIMOCK, CLIENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "conformance.md"
REASONS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8"))
COLUMNS = (
    *("JSON", "stream", "usage in a stream", "tools", "tools in a stream", "structured output", "errors", "cut stream"),
    *("cancellation", "embedded model", "embeddings"),
)
TOP = """# Tested client libraries

`make conformance` generates this page. It runs client libraries of other projects, and the TypeScript SDK of this one
(`@svc/client`), against a real `svc gateway`. Each client has an environment of its own. Behind the gateway are a
provider of each dialect (`tests/conformance/upstream.py`) and the embedded model. Every check except the last two runs
with a model of an OpenAI provider and with a model of an Anthropic provider. Those of the Responses API also run
with a provider that has only chat completions. The OpenAI provider gets their requests unchanged.

* *errors*: the statuses 400, 401, 403, 404, 429 and 502, for JSON and for streams. The client raises its own
  exception class with the error code.
* *cut stream*: the provider resets the connection, ends without a finish reason, or sends an error in the stream. The
  client raises an exception each time.
* *cancellation*: the client stops reading. The gateway closes the provider's connection before the client sends its
  next request.
* *embeddings*: `text-embedding-3-small` of the provider, and `all-minilm-l6-v2` on this machine. Base64 and floats
  have the same bits. Texts of similar meaning have similar vectors.

✓ means that the check passes, ✗ that it fails (see below), and – that the client has no such feature.

"""

PROVIDER = """
## A provider by another project

`@copilotkit/aimock` runs behind the gateway in both dialects and fails on purpose. The client gets a complete
response or an error with its code. A stream that was cut ends with an error.

In the last check the faults are random. The gateway retries within its retry budget, and every response is complete
or an error.

"""


@dataclass(frozen=True)
class Result:
    """One check of one client with one model. `fault` is None if it passes. `reason` says why a known failure occurs."""

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
    head = f"| Client | {' | '.join(COLUMNS)} | other checks |\n|---|{'---|' * len(COLUMNS)}---|\n"
    rows = "".join(_row(client.name, results[client.name]) for client in CLIENTS)
    return TOP + head + rows + _provider(results[AIMOCK.name]) + _faults(results) + _versions(versions)


def _provider(results: list[Result]) -> str:
    """One case: the mock's behaviour, and whether the gateway reported it correctly to the client."""
    rows = "".join(f"| {one.check} | {one.model} | {'✗' if one.fault else '✓'} |\n" for one in results)
    return f"{PROVIDER}| Behaviour of the provider | Model | |\n|---|---|---|\n{rows}"


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
    models: dict[tuple[str, str, str], list[str]] = {}
    for one in (one for found in results.values() for one in found if one.fault):
        models.setdefault((one.client, one.check, one.reason or one.fault or ""), []).append(one.model)
    if not models:
        return "\nAll checks pass.\n"
    rows = "".join(
        f"| {client} | {check} | {', '.join(named)} | {_plain(reason)} |\n"
        for (client, check, reason), named in models.items()
    )
    return f"\n## Checks that fail\n\n| Client | Check | Model | Reason |\n|---|---|---|---|\n{rows}"


def _plain(text: str) -> str:
    """The text of a cell."""
    return text.replace("|", "/").replace("\n", " ")


def _versions(versions: dict[str, str]) -> str:
    named = {one: f"{one.partition(' ')[0]} {version}" for one, version in versions.items()}
    rows = "".join(
        f"| {client.name} | {', '.join(named[one] for one in client.packages)} |\n" for client in (*CLIENTS, AIMOCK)
    )
    where = f"Python {versions['python']} and Node {versions['node']}. The locks are in `tests/conformance/locks/`."
    return f"\n## Versions\n\n| Client | Packages |\n|---|---|\n{rows}\n{where}\n"
