"""Short runs of the soak scenarios for keys, limits and the ledger. Each module of this package has a long run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.soak import disconnects, disk, frozen, ingest_kills, key_changes, key_revocation, kills, limits, outages
from tests.soak.cluster import running

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("nodes", "redis"), [(2, True), (1, False)])
def test_rate_limits_across_workers_and_nodes_are_exact(tmp_path: Path, nodes: int, redis: bool) -> None:
    with running(tmp_path, nodes=nodes, workers=2, redis=redis, postgres=False) as cluster:
        report = limits.hammer(cluster, rpm=60, clients=30, seconds=2)
        assert (report.first_minute, report.let_through, report.in_any_minute) == (60, 60, 60), str(report)
        limited_by_budget = limits.hammer(cluster, rpm=100, clients=30, seconds=2, share=0.3)
    assert limited_by_budget.let_through in (30, 31), str(limited_by_budget)
    assert limited_by_budget.spent_usd <= limited_by_budget.budget_usd, str(limited_by_budget)
    for each in (report, limited_by_budget):
        assert (each.other, each.doubled_or_missing) == (0, 0), str(each)


def test_ledger_killed_workers_loses_no_entry(tmp_path: Path) -> None:
    with running(tmp_path, nodes=1, workers=3, redis=False, postgres=False) as cluster:
        report = kills.kill(cluster, kills=6, clients=8, every=0.4)
    assert report.complete > 50, str(report)
    assert (report.missing, report.doubled, report.left) == (0, 0, 0), str(report)


def test_journal_ingest_killed_processes_loses_no_entry(tmp_path: Path) -> None:
    report = ingest_kills.run(tmp_path, rounds=1, most=6)
    assert report.kills > 0, str(report)
    assert (report.missing, report.doubled, report.wrong_sums, report.left) == (0, 0, 0, 0), str(report)


def test_gateway_redis_and_postgres_outage_keeps_serving_and_loses_no_entry(tmp_path: Path) -> None:
    with running(tmp_path, nodes=2, workers=1) as cluster:
        report = outages.outages(cluster, seconds=2, clients=6)
    assert set(report.statuses) == {200}, str(report)
    assert report.degraded == {"postgres": [["keys", "ledger"]] * 2, "redis": [["redis"]] * 2}
    assert (report.lost, report.missing, report.doubled) == (0, 0, 0), str(report)
    assert max(report.back.values()) < 10, str(report)


@pytest.mark.parametrize(
    ("name", "degraded"),
    [("redis", [["redis"]] * 2), ("postgres", [["keys"]] * 2), ("provider", [[]]), ("fallback", [[]])],
)
def test_gateway_frozen_dependency_keeps_serving(tmp_path: Path, name: str, degraded: list[list[str]]) -> None:
    report = frozen.run(name, tmp_path, seconds=4, clients=6)
    for answers in (report.before, report.during, report.after):
        assert {answer.status for answer in answers} == {200}, str(report)
    assert report.degraded == degraded, str(report)
    assert (report.lost, report.missing, report.doubled) == (0, 0, 0), str(report)
    assert (report.by_provider["groq"] > 0) == (name == "fallback"), str(report)


def test_gateway_frozen_database_stops_within_20_seconds(tmp_path: Path) -> None:
    with running(tmp_path, nodes=1, workers=1, redis=False) as cluster, frozen.stopped_postgres(cluster):
        time.sleep(1)  # the gateway polls the database for key changes meanwhile
        assert cluster.nodes[0].stop(20) == 0


@pytest.mark.parametrize("policy", ["continue", "refuse"])
def test_ledger_full_disk_follows_policy(tmp_path: Path, policy: disk.Policy) -> None:
    config = f'access_log = false\n[ledger]\nwhen_full = "{policy}"\n'
    with running(tmp_path, nodes=1, workers=1, redis=False, postgres=False, config=config) as cluster:
        full, free = disk.by_limit(cluster)
        report = disk.fill(cluster, policy=policy, clients=4, seconds=1, full=full, free=free)
    assert set(report.during) == ({200} if policy == "continue" else {507}), str(report)
    assert set(report.after) == {200}, str(report)
    assert report.degraded == ["ledger", "journal"], str(report)
    assert (report.missing, report.doubled, report.check, report.broken) == (0, 0, "ok", False), str(report)
    if policy == "refuse":
        assert b"disk is full" in report.refusal
        assert b'"code":"' in report.refusal


def test_revoked_keys_on_every_worker_are_rejected_within_one_second(tmp_path: Path) -> None:
    with running(tmp_path, nodes=2, workers=2, postgres=False) as cluster:
        report = key_revocation.revoke(cluster, keys=2, clients=6)
    assert report.answers > 20, str(report)
    assert report.latest < 1, str(report)
    assert report.never == 0, str(report)


def test_changed_keys_on_every_worker_take_effect_within_one_second(tmp_path: Path) -> None:
    with running(tmp_path, nodes=2, workers=2, postgres=False) as cluster:
        report = key_changes.change(cluster, rounds=1)
    assert report.wrong == [], str(report)
    assert max(report.latest.values()) < 1, str(report)
    assert report.latest["made"] == report.latest["new secret"] == 0, str(report)


def test_client_disconnect_closes_upstream_and_is_billed(tmp_path: Path) -> None:
    with running(tmp_path, nodes=1, workers=2, redis=False, postgres=False) as cluster:
        report = disconnects.disconnect(cluster, streams=40, at_once=4)
    assert report.cut > 10, str(report)
    assert report.late == report.starved, str(report)
    assert sorted(report.closed_ms)[len(report.closed_ms) // 2] < 50, str(report)
    assert (report.unaccounted, report.wrong_tokens) == (0, []), str(report)
