"""Many clients use one key with a request limit and a budget, on all nodes at once.

    python -m tests.soak.limits                              # 2 nodes of 4 workers, one Redis, 200 clients, rpm 600
    python -m tests.soak.limits --nodes 1 --no-redis         # one node by itself

The budget suffices for 2.5 minutes of requests, so that both limits are reached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.soak.clients import Clients, certainly_within
from tests.soak.cluster import Cluster, running

MAX_TOKENS = 40


@dataclass
class Report:
    rpm: int
    asked: int
    first_minute: int
    """Requests admitted before the window could slide."""
    let_through: int
    in_any_minute: int
    budget_usd: float
    spent_usd: float
    reserved_usd: float
    """The highest cost of one request: at most this much of the budget may remain unused."""
    other: int
    """Responses other than 200 and 429, and lost connections."""
    doubled_or_missing: int
    """Responses without exactly one entry."""

    def __str__(self) -> str:
        return (
            f"{self.asked} requests; in the first minute {self.first_minute} of {self.rpm} admitted, in any 60 s at "
            f"most {self.in_any_minute}; in all {self.let_through}; spent ${self.spent_usd:.6f} of "
            f"${self.budget_usd:.6f} (one request reserves ${self.reserved_usd:.6f}); other responses {self.other}; "
            f"not exactly one entry: {self.doubled_or_missing}"
        )


def hammer(cluster: Cluster, *, rpm: int, clients: int, seconds: float, share: float = 2.5) -> Report:
    """`share` is the number of full minutes for which the budget suffices."""
    probe = cluster.key("probe")
    with Clients(cluster.ports[:1], probe["key"], 1, max_tokens=MAX_TOKENS) as one:
        while not one.answers:
            time.sleep(0.05)
    one_id = one.answers[0].id
    (entry,) = [entry for entry in cluster.settled(probe["id"], {one_id}) if entry.request_id == one_id]
    assert entry.cost_usd
    reserved = (40 * 0.15 + MAX_TOKENS * 0.6) / 1e6  # the prompt has fewer than 40 tokens with any tokenizer
    budget = round(entry.cost_usd * rpm * share + reserved, 9)
    made = cluster.key("hammered", "--rpm", str(rpm), "--budget-usd", f"{budget:.9f}")
    with Clients(cluster.ports, made["key"], clients, pause=0.2, max_tokens=MAX_TOKENS) as many:
        time.sleep(seconds)
    through = many.let_through()
    began = min(answer.sent for answer in through)
    entries = cluster.settled(made["id"], {answer.id for answer in through})
    noted = [entry.request_id for entry in entries]
    statuses = many.statuses()
    return Report(
        rpm=rpm,
        asked=len(many.answers),
        first_minute=sum(answer.got <= began + 60 for answer in through),
        let_through=len(through),
        in_any_minute=certainly_within(through, 60.0),
        budget_usd=budget,
        spent_usd=sum(entry.cost_usd or 0.0 for entry in entries),
        reserved_usd=reserved,
        other=sum(count for status, count in statuses.items() if status not in (200, 429)) + many.lost,
        doubled_or_missing=len(noted) - len(set(noted)) + len({answer.id for answer in through} ^ set(noted)),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-redis", action="store_true")
    parser.add_argument("--rpm", type=int, default=600)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=200)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(
            Path(folder), nodes=args.nodes, workers=args.workers, redis=not args.no_redis, postgres=args.nodes > 1
        ) as cluster,
    ):
        report = hammer(cluster, rpm=args.rpm, clients=args.clients, seconds=args.seconds)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
