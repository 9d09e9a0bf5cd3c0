"""Writes docs/reference/faults.md from the catalogue of faults: `make faults`."""

from __future__ import annotations

from pathlib import Path

from tests.faults.catalogue import FAULTS, WHOLE, Fault

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"
TOP = """# Faults of providers

`make faults` generates this page from `tests/faults/catalogue.py`. A test runs each cell against a real gateway, with
an upstream of each dialect, over HTTP, and for chat completions also over TLS.

The client uses chat completions, or the Responses API, which is tested with an upstream of each API. A stream of the
Responses API ends with `response.failed` after an error, never with `response.completed`, and its events keep their
numbers without a gap. For a client of the Anthropic API, one thing differs. If no attempt succeeds, it gets
[the status of an Anthropic provider](providers.md#anthropics-dialect-on-both-sides) for 529, and for 4xx other than 401
and 403.

The test uses these settings: one retry, and timeouts of one second to connect, to the first byte and between two
chunks. A request may take three seconds in total. The fallback is a provider of the other dialect.

* *complete response* is status 200, and for a stream also a finish reason and its last event.
* A stream is complete once it has its finish reason, also if the connection is lost before the provider's end mark. The
  gateway adds the mark. If the usage was still missing, the ledger has an estimate, and so has a client of the Messages
  API, whose usage needs numbers.
* *attempts* is the value of the header `x-svc-attempts`, when it is more than 1.
* *Seconds* is the test's limit for the time until the client has the response or the error. It is not a measurement.
  For the longest bodies, the limit is one second more than the total timeout.
* The access log has one line per request, with one of three statuses:
    * `error` for an HTTP status of 400 or more
    * `cut` for an error in a stream that had started
    * `ok` for a complete response
* After the test, the gateway has as many tasks and sockets as before. Its only connections to providers are idle ones
  in the pool.

| Fault of the upstream | JSON | Stream | JSON, with a fallback | Stream, with a fallback | Seconds |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    return TOP + "".join(row(fault) for fault in FAULTS)


def row(fault: Fault) -> str:
    cells = [cell(fault, stream, chained) for chained in (False, True) for stream in (False, True)]
    return f"| {fault.name} | {' | '.join(cells)} | {fault.seconds:g} |\n"


def cell(fault: Fault, stream: bool, chained: bool) -> str:
    sees, attempts = fault.sees(stream, chained), fault.attempts(stream, chained)
    moved = chained and sees == WHOLE and (fault.moves_stream if stream else fault.moves_json)
    return f"{sees}{' of the fallback' if moved else ''}{f', {attempts} attempts' if attempts > 1 else ''}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
