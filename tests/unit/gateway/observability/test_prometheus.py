"""The values of the Prometheus text format."""

from __future__ import annotations

from svc.gateway.observability.prometheus import render_prometheus
from svc.gateway.observability.series import MetricsSnapshot, RequestSeries


def test_metrics_large_counters_have_all_digits() -> None:
    series = RequestSeries(("p", "m", "ok", "200"), prompt_tokens=20_382_404_557, cost_usd=151415.738739516)
    lines = render_prometheus(MetricsSnapshot(series=[series])).splitlines()
    assert 'svc_prompt_tokens_total{provider="p",model="m"} 20382404557' in lines
    assert 'svc_cost_usd_total{provider="p",model="m"} 151415.738739516' in lines
