"""Show why a request got 429, failed or was slow, and what to do, by the x-request-id of its response.

For a limit: its size, what used it, when it refills, and the command that changes it. Otherwise: where the time went,
each attempt, and what is usual at the provider in the same hour.
With --gateway URL, the command asks a remote gateway. SVC_API_KEY must be the key of the request, or one with the scope
admin.

Examples:
  svc why req_cc5ac4d813c6dab80000001a
  svc why req_cc5ac4d813c6dab80000001a --json
  svc why req_cc5ac4d813c6dab80000001a --gateway https://gateway.example.com
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from svc.cli import _admin_client
from svc.cli._admin_client import AdminClient
from svc.cli._key_lookup import printable_label
from svc.cli._output import print_json, print_table
from svc.errors import CommandFailed
from svc.gateway.observability.explanation import RequestExplanation, RequestTiming
from svc.stores.database.base import AttemptDetail

ENTRY_DELAY_SECONDS: Final = 3.0
"""How long a request of a moment ago can take to appear."""
_PAUSE_SECONDS: Final = 0.25
_PHASE_TITLES: Final = {
    "before_attempts": "before and between attempts",
    "earlier_attempts": "earlier attempts",
    "first_byte": "until the first byte",
    "output": "output",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the request id and the output options."""
    parser.add_argument("request", metavar="REQUEST_ID", help="the x-request-id of the response")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _admin_client.add_gateway_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    with _admin_client.open_admin_client(args) as admin:
        explanation = _find(admin, args.request)
    if args.json:
        print_json(msgspec.to_builtins(explanation))
    else:
        _print(explanation)
    return 0


def _find(admin: AdminClient, request_id: str) -> RequestExplanation:
    """Wait for the explanation of a request of a moment ago. Raises CommandFailed if there is none."""
    deadline = time.monotonic() + ENTRY_DELAY_SECONDS
    while (explanation := admin.explain_request(request_id)) is None:
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"There is no request {printable_label(request_id)!r} in the ledger, and none was refused on this "
                "machine. With several machines, ask the one that refused it: --gateway URL."
            )
        time.sleep(_PAUSE_SECONDS)
    return explanation


def _print(explanation: RequestExplanation) -> None:
    code = f" ({explanation.code})" if explanation.code else ""
    print(f"{explanation.request_id}  {explanation.status}  {explanation.http_status}{code}")
    print(f"\n{_printable(explanation.why)}")
    if explanation.action:
        print(f"{_printable(explanation.action)}")
    if explanation.command:
        print(f"\n  {_printable(explanation.command)}")
    if explanation.consumers:
        _print_consumers(explanation)
    if explanation.other_refusals and explanation.limit is not None and explanation.limit.name == "rpm":
        print(f"\nRefused requests that counted for rpm: {explanation.other_refusals}")
    if explanation.timing is not None:
        _print_timing(explanation.timing)
    print(f"\nGuide: {_find_guide(explanation.guide)}")


def _find_guide(name: str) -> str:
    """Return the file of a guide: the one that the package installed, or that of the repository."""
    installed = Path(sys.prefix, "share", "svc", f"{name}.md")
    return str(installed) if installed.is_file() else f"docs/{name}.md"


def _print_consumers(explanation: RequestExplanation) -> None:
    print("\nWhat used the limit:")
    table: list[tuple[str, ...]] = [("MODEL", "REQUESTS", "RUNNING", "TOKENS", "USD")]
    for each in explanation.consumers:
        numbers = (str(each.requests), str(each.running), str(each.tokens), f"{each.cost_usd:.6f}")
        table.append((_printable(each.model), *numbers))
    print_table(table, right_aligned=range(1, 5))


def _print_timing(timing: RequestTiming) -> None:
    print()
    phases: list[tuple[str, ...]] = [("PHASE", "MS")]
    phases += [(_PHASE_TITLES[phase.name], f"{phase.ms:.0f}") for phase in timing.phases]
    print_table(phases, right_aligned=[1])
    if timing.attempts:
        print()
        names = AttemptDetail.__struct_fields__
        table = [("ATTEMPT", *(name.upper() for name in names))]
        for number, attempt in enumerate(timing.attempts, 1):
            table.append((str(number), *(_format(getattr(attempt, name)) for name in names)))
        print_table(table, right_aligned=[len(names) - 1, len(names)])
    print()
    usual = timing.provider_p50
    latency, first_byte, pace = (
        (None, None, None) if usual is None else (usual.latency_ms, usual.ttfb_ms, usual.tokens_per_second)
    )
    rows: list[tuple[str, ...]] = [("", "THIS REQUEST", "PROVIDER P50")]
    rows.append(("latency ms", _format(timing.latency_ms), _format(latency)))
    rows.append(("first byte ms", _format(timing.ttfb_ms), _format(first_byte)))
    rows.append(("tokens/s", _format(timing.tokens_per_second), _format(pace)))
    print_table(rows, right_aligned=[1, 2])


def _format(value: str | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else _printable(str(value))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
