"""Writes docs/reference/faults.md from the catalogue, which the matrix holds the gateway to: `make faults`."""

from __future__ import annotations

from pathlib import Path

from tests.faults.catalogue import FAULTS, WHOLE, Fault

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"
TOP = """# What a client sees when a provider fails

Made by `make faults` from `tests/faults/catalogue.py`; `tests/faults/test_matrix.py` runs every cell against the real
gateway, with an upstream of each dialect (`openai`, `anthropic`), and holds the gateway to this table. Settings there:
one retry, and time-outs of one second to connect, to the first byte and between two pieces, three in all. The fallback
is a provider of the other dialect.

* *tries* is what `x-svc-attempts` says.
* *within* is the longest time until the client knows, in seconds, under these settings.
* The access log has one line for each request: `error` for a status of 400 and more, `cut` for an error in a stream
  that had begun, `ok` for a whole answer.
* Nothing is left behind: after the matrix the gateway has as many tasks and sockets as before, and no connection to
  a provider but those that wait in its pool.

| The upstream | JSON | stream | JSON, with a fallback | stream, with a fallback | within |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return TOP + "".join(row(fault) for fault in FAULTS)


def row(fault: Fault) -> str:
    cells = [cell(fault, stream, chained) for chained in (False, True) for stream in (False, True)]
    return f"| {fault.name} | {' | '.join(cells)} | {fault.seconds:g} |\n"


def cell(fault: Fault, stream: bool, chained: bool) -> str:
    sees, tries = fault.sees(stream, chained), fault.attempts(stream, chained)
    moved = chained and sees == WHOLE and (fault.moves_stream if stream else fault.moves_json)
    return f"{sees}{' of the fallback' if moved else ''}{f', {tries} tries' if tries > 1 else ''}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
