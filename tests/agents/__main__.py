"""Runs coding agents through a gateway and writes docs/reference/coding-agents.md: `make agents`.

`python -m tests.agents [AGENT …]` runs some of them. Results are kept in `.agents/results.json`, and the page has them
all.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.agents.agents import AGENTS, INSTALLED, ROOT
from tests.agents.page import PAGE, needs_reason, page
from tests.agents.recording import record
from tests.agents.running import Outcome, run
from tests.agents.upstream import FAULTS

AT_ONCE = 6
"""Runs at the same time. Most of them wait."""


def main(arguments: list[str]) -> int:
    """Return 1 if an agent hangs or hides a failure, or fails and the page gives no reason for it."""
    parser = argparse.ArgumentParser(prog="tests.agents")
    parser.add_argument("names", nargs="*", metavar="AGENT")
    parser.add_argument("--task", action="store_true", help="leave out the faults")
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--direct", action="store_true", help="leave out the gateway")
    parser.add_argument("--record", action="store_true", help="write the requests to tests/e2e/agent_requests/")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - {agent.name for agent in AGENTS}:
        print(f"no such agent: {', '.join(sorted(unknown))}; choose of {', '.join(agent.name for agent in AGENTS)}")
        return 2
    chosen = [agent for agent in AGENTS if not given.names or agent.name in given.names]
    missing = [agent.name for agent in chosen if not agent.is_there()]
    if missing:
        print(f"not installed, skipped: {', '.join(missing)} (`make agents` installs them; some need node and npm)")
    outcomes = []
    results = load_results()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for job in [
            pool.submit(run, agent, dialect, upstream, fault, direct=given.direct)
            for fault in given.fault or ("", *(() if given.task else FAULTS))
            for agent in chosen
            for dialect, upstream in agent.pairs
            if agent.name not in missing and (not fault or agent.faults) and (not given.direct or dialect == upstream)
        ]:
            outcomes.append(job.result())
            describe(outcomes[-1], verbose=given.verbose)
            if not given.direct:
                save_result(results, outcomes[-1])
            if given.record and one_to_record(outcomes[-1]):
                record(outcomes[-1])
    if not given.direct:
        PAGE.write_text(page(list(results.values())), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return int(any(needs_reason(one) for one in outcomes))


RESULTS = INSTALLED / "results.json"


def load_results() -> dict[str, Outcome]:
    """Return the results of earlier runs, by agent, endpoint, upstream and fault."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {
        name: Outcome(**one, streams=set(streams), hosts=set(hosts)) for name, (one, streams, hosts) in saved.items()
    }


def save_result(results: dict[str, Outcome], one: Outcome) -> None:
    """Add the result of a run to the file."""
    results[" ".join((one.agent, one.dialect, one.upstream, one.fault))] = one
    names = ("agent", "dialect", "upstream", "fault", "verdict", "detail")
    saved = {
        name: ({field: getattr(each, field) for field in names}, sorted(each.streams), sorted(each.hosts))
        for name, each in results.items()
    }
    RESULTS.write_text(json.dumps(saved, indent=1), encoding="utf-8")


def one_to_record(one: Outcome) -> bool:
    """Whether the run is the plain one of its endpoint, whose requests show the provider's own thinking."""
    return one.dialect == one.upstream and not one.fault and one.verdict == "finished"


def describe(one: Outcome, *, verbose: bool) -> None:
    """Print one run: the agent's requests and the provider's, and what the provider rejected."""
    counts = f"{len(one.requests)} requests, {len(one.received)} at the provider"
    cells = [one.agent, f"{one.dialect} → {one.upstream}", one.fault or "task", f"{one.verdict} {one.detail}".strip()]
    print(" | ".join([*cells, f"{one.seconds:.0f} s", counts, *one.complaints]), flush=True)
    if verbose:
        for request in one.requests:
            print("   ", request.method, request.path, len(request.body))
        print(one.output[-3000:], one.log[-3000:], sep="\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
