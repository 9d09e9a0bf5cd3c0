"""The clock of the machine is set forward and back by an hour, and over midnight, while the gateway runs."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accounts.test_keys import until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, SVC, Gateway, environment
from tests.fakes.http_client import Got
from tests.fakes.wall_clock import WallClock

pytestmark = pytest.mark.slow

HOUR = 3600


class Machine:
    """A gateway and its commands with one shared clock."""

    def __init__(self, start: StartGateway, folder: Path, config: str = "") -> None:
        folder.mkdir()
        self.clock = WallClock(folder)
        self._start = start
        self._config = config
        self.gateway: Gateway = start(config=config, env=self.clock.environment)

    def command(self, *arguments: str) -> Any:
        """Run the command with `--json` and return its decoded output."""
        home = self.gateway.home
        done = subprocess.run(
            [SVC, *arguments, "--json"],
            env=environment(home, self.clock.environment),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def key(self, *options: str) -> dict[str, Any]:
        made: dict[str, Any] = self.command("keys", "create", "--name", "shop", *options)
        return made

    def ask(self, key: str, **fields: Any) -> Got:
        body = {"model": GPT, "messages": HI, "max_tokens": 20, **fields}
        return self.gateway.request("POST", "/v1/chat/completions", body, key=key)

    def entries(self, count: int) -> list[dict[str, Any]]:
        """Wait until the ledger has `count` entries and return them."""
        found: list[dict[str, Any]] = []

        def complete() -> bool:
            found[:] = self.command("usage")
            return len(found) >= count

        until(complete, 20)
        return found


@pytest.fixture
def machine(start_gateway: StartGateway, tmp_path: Path) -> Machine:
    return Machine(start_gateway, tmp_path / "clock")


def test_clock_set_forward_and_back_keeps_rpm_window(machine: Machine) -> None:
    key = machine.key("--rpm", "3")["key"]
    assert [machine.ask(key).status for _ in range(4)] == [200, 200, 200, 429]
    for hours in (1, 0, -1, 0):
        machine.clock.shift(hours * HOUR)
        time.sleep(0.6)  # the gateway's clock ticks
        refused = machine.ask(key)
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert len(machine.entries(3)) == 3


def test_clock_set_forward_and_back_keeps_spent_budget(machine: Machine) -> None:
    probe = machine.key()["key"]
    machine.ask(probe)
    cost = machine.entries(1)[0]["cost_usd"]
    made = machine.key("--budget-usd", f"{4.5 * cost + 20 * 0.6e-6:.9f}")
    statuses: Counter[int] = Counter()
    for hours in (0, 1, 0, -1, 0):
        machine.clock.shift(hours * HOUR)
        time.sleep(0.6)
        statuses.update(machine.ask(made["key"]).status for _ in range(2))
    assert statuses[200] in (4, 5)
    assert statuses[429] == 10 - statuses[200]
    ids = [entry["request_id"] for entry in machine.entries(1 + statuses[200])]
    assert len(ids) == len(set(ids)) == 1 + statuses[200]


def test_clock_over_midnight_and_back_grants_one_budget_per_day(machine: Machine) -> None:
    """Each day has its own budget. A day that the clock returns to gets no second budget."""
    now = datetime.now(UTC)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    before = int((midnight - now).total_seconds()) - 1800
    machine.clock.shift(before)
    probe = machine.key()["key"]
    machine.ask(probe)
    cost = machine.entries(1)[0]["cost_usd"]
    budget = f"{2.5 * cost + 20 * 0.6e-6:.9f}"
    key = machine.key("--budget-usd", budget, "--budget-period", "day")["key"]
    allowed = []
    for shift in (before, before + HOUR, before, before + HOUR, before):
        machine.clock.shift(shift)
        time.sleep(0.6)
        allowed.append([machine.ask(key).status for _ in range(4)].count(200))
    assert allowed[0] in (2, 3)
    assert allowed[1] in (2, 3)
    assert allowed[2:] == [0, 0, 0]


def test_clock_past_key_expiry_and_back_decides_validity(machine: Machine) -> None:
    end = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    key = machine.key("--expires", end)["key"]
    assert machine.ask(key).status == 200
    machine.clock.shift(HOUR)
    time.sleep(0.6)
    assert machine.ask(key).status == 401
    machine.clock.shift(0)
    time.sleep(0.6)
    assert machine.ask(key).status == 200


def test_clock_set_back_before_restart_counts_last_minute_once(machine: Machine) -> None:
    """The ledger's entries then lie in the future. They count for one minute from the start."""
    key = machine.key("--rpm", "3")["key"]
    assert [machine.ask(key).status for _ in range(2)] == [200, 200]
    assert len(machine.entries(2)) == 2
    assert machine.gateway.stop() == 0
    machine.clock.shift(-HOUR)
    machine.gateway.start()
    assert [machine.ask(key).status for _ in range(2)] == [200, 429]


def test_clock_set_forward_past_ttl_expires_cached_response(start_gateway: StartGateway, tmp_path: Path) -> None:
    machine = Machine(start_gateway, tmp_path / "clock", "[cache]\nenabled = true\nttl = 600\n")
    key = machine.key()["key"]
    first = machine.ask(key)
    assert machine.ask(key).headers["x-svc-cache"] == "hit"
    machine.clock.shift(-HOUR)
    assert machine.ask(key).headers["x-svc-cache"] == "hit"
    machine.clock.shift(HOUR)
    assert machine.ask(key).headers["x-svc-cache"] == "miss"
    assert first.status == 200
