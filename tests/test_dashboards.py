"""The dashboards and alert rules, without Prometheus. `make dashboards-check` executes their queries."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from svc.gateway.observability.prometheus import METRIC_HELP
from svc.registry.metrics import REGISTRY_METRIC_HELP

ROOT = Path(__file__).parent.parent
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RULES = ROOT / "deploy" / "prometheus" / "svc.rules.yml"
RUNBOOK = ROOT / "docs" / "how-to" / "find-out-what-an-alert-means.md"
METRIC = re.compile(r"\bsvc_[a-z0-9_]+")
ALERT_IN_TEXT = re.compile(r"\bSvc[A-Za-z0-9]+")


def metric_names() -> set[str]:
    """Return the names of all time series."""
    names = set()
    for name, (kind, _) in {**METRIC_HELP, **REGISTRY_METRIC_HELP}.items():
        names |= {f"{name}_{suffix}" for suffix in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_dashboards_cover_all_parts() -> None:
    names = {"svc-gateway", "svc-providers", "svc-keys-and-spend", "svc-speech", "svc-registry"}
    assert {path.stem for path in DASHBOARDS} == names


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_panels_query_documented_metrics(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    alerts = {rule["alert"] for rule in rules()}
    for panel in dashboard["panels"]:
        assert panel["description"], panel["title"]
        assert set(ALERT_IN_TEXT.findall(panel["description"])) <= alerts
        for target in panel["targets"]:
            found = set(METRIC.findall(target["expr"]))
            assert found, panel["title"]
            assert found <= metric_names(), panel["title"]
            assert target["datasource"]["uid"] == "${datasource}"


def test_alert_rules_query_documented_metrics() -> None:
    for rule in rules():
        assert set(METRIC.findall(rule["expr"])) <= metric_names(), rule["alert"]
    assert len({rule["alert"] for rule in rules()}) == len(rules()) > 10


def test_alert_rules_link_to_their_section_of_the_runbook() -> None:
    sections = re.findall(r"^## (Svc\w+)$", RUNBOOK.read_text(), flags=re.M)
    assert sections == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"how-to/{RUNBOOK.stem}.html#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"]
