"""Metrics and health, as an operator reads them."""

from __future__ import annotations

import re
import time

import pytest

from svc.gateway.metrics import HELP
from tests.e2e.accounts.test_keys import create
from tests.e2e.accounts.test_limits import ask
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Gateway

LINE = re.compile(r'(svc_\w+)(\{(\w+="[^"]*")(,\w+="[^"]*")*\})? (-?[0-9.e+-]+)')


def metrics(gateway: Gateway) -> dict[str, float]:
    got = gateway.request("GET", "/metrics", key=None)
    assert got.status == 200
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for line in got.body.decode().splitlines():
        if not line.startswith("#"):
            matched = LINE.fullmatch(line)
            assert matched, line
            name = re.sub(r"_(bucket|sum|count)$", "", matched[1])
            assert name in HELP or matched[1] in HELP
            found[line.rpartition(" ")[0]] = float(matched[5])
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_numbers_of_all_workers(start_gateway: StartGateway, workers: int) -> None:
    gateway = start_gateway(config=f"[gateway]\nworkers = {workers}\n")
    made = create(gateway, "--name", "one", "--rpm", "5")
    statuses = [ask(gateway, made["key"]).status for _ in range(7)]
    assert (statuses.count(200), statuses.count(429)) == (5, 2)
    time.sleep(1.5)
    found = metrics(gateway)
    target = 'provider="openai",model="gpt-4o-mini"'
    assert found[f'svc_requests_total{{{target},status="ok",http_status="200"}}'] == 5
    assert found['svc_requests_total{provider="",model="",status="error",http_status="429"}'] == 2
    assert found[f"svc_request_seconds_count{{{target}}}"] == 5
    assert found[f'svc_request_seconds_bucket{{{target},le="+Inf"}}'] == 5
    assert found[f"svc_attempts_total{{{target}}}"] == 5
    assert found[f"svc_cost_usd_total{{{target}}}"] >= 0
    assert found['svc_limits_reached_total{limit="requests"}'] == 2
    assert found['svc_degraded{what="keys"}'] == 0
    assert made["key"] not in str(found)


def test_strangers_need_the_scope(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    through_proxy = {"x-forwarded-for": "203.0.113.9"}
    assert gateway.request("GET", "/metrics", key=None, headers=through_proxy).status == 401
    assert gateway.request("GET", "/metrics", headers=through_proxy).status == 200
    made = create(gateway, "--name", "chatter", "--scope", "chat")
    assert gateway.request("GET", "/metrics", key=made["key"], headers=through_proxy).status == 403


def test_what_is_degraded(start_gateway: StartGateway, tmp_path: object) -> None:
    gateway = start_gateway()
    assert gateway.request("GET", "/health?verbose=1", key=None).json["degraded"] == []
    assert "degraded" not in gateway.request("GET", "/health", key=None).json
    database = gateway.home / "svc" / "svc.db"
    broken = start_gateway(env={"SVC_DATABASE_URL": f"sqlite:///{database.parent}"})  # a folder is no database
    assert broken.chat().status == 200
    time.sleep(1)
    got = broken.request("GET", "/health?verbose=1", key=None).json
    assert (got["status"], got["degraded"]) == ("ok", ["keys", "ledger"])
    assert metrics(broken)['svc_degraded{what="ledger"}'] == 1
