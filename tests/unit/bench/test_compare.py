"""The page of `make compare` omits invalid figures and gives the reason."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from bench.compare.report import MARKS, insert_table, render

VERSIONS = {"nginx": "nginx 1.22.1", "svc": "svc 0.1.0 at abc", "litellm": "LiteLLM 1.2"}


def row(name: str, cpu: float, **more: Any) -> dict[str, Any]:
    work = {"answers": 9, "p50": 0.2, "p99": 0.9, "faults": 0, "cpu_us": cpu, "others": 0.02}
    few, stream = {**work, "per_second": 500}, {**work, "per_second": 10_000}
    figures = {"json": work, "latency": work, "stream": stream, "few": few}
    return {"target": name, "round": 0, "start_ms": 20, "rest_mb": 15.0, "peak_mb": 19.0, **figures, **more}


def page_and_chart(*rows: dict[str, Any]) -> tuple[str, str]:
    return render(list(rows), VERSIONS, "2 × a processor", 2, 3)


def test_compare_page_shows_medians_with_spread() -> None:
    page, chart = page_and_chart(row("nginx", 10), row("nginx", 20), row("svc", 30), row("svc", 50))
    assert "| CPU per JSON request, all alike | 15.0 µs (10.0–20.0) | 40.0 µs (30.0–50.0) | – |" in page
    assert "quiet" in page
    texts = [one.text for one in ET.fromstring(chart).iter("{http://www.w3.org/2000/svg}text")]
    assert "svc 0.1.0" in texts
    assert "40.0" in texts


def test_compare_chart_label_leaves_out_revision_and_parentheses() -> None:
    versions = {"svc": "svc 0.1.0, compiled, at abc", "portkey": "Portkey 1.15.2 (@hono/node-server 1.14.1)"}
    _, chart = render([row("svc", 10), row("portkey", 20)], versions, "2 × a processor", 2, 3)
    texts = [one.text for one in ET.fromstring(chart).iter("{http://www.w3.org/2000/svg}text")]
    assert {"svc 0.1.0, compiled", "Portkey 1.15.2"} < set(texts)


def test_compare_page_failing_target_shows_reason_instead_of_figure() -> None:
    broken = {"answers": 0, "faults": 7, "fault": "status 500 | oops", "others": 0.9}
    page, _ = page_and_chart(row("nginx", 10), row("svc", 30), row("litellm", 99, json=broken))
    assert "| CPU per JSON request, all alike | 10.0 µs | 30.0 µs | – |" in page
    assert "* LiteLLM 1.2, json: 7 responses failed, the first: status 500 / oops" in page
    assert "noisy" in page


def test_compare_page_target_below_offered_rate_has_no_figure() -> None:
    late = {**row("svc", 5)["stream"], "per_second": 3000}
    page, _ = page_and_chart(row("nginx", 10), row("svc", 30, stream=late))
    assert "| CPU per chunk, all alike, 200 streams of 50 chunks/s | 10.0 µs | – | – |" in page
    assert "* svc 0.1.0 at abc, stream: of 10,000 chunks/s, it forwarded 3,000" in page


def test_compare_page_latencies_on_busy_machine_are_omitted() -> None:
    page, _ = page_and_chart(row("nginx", 10), row("svc", 30, json={**row("svc", 30)["json"], "others": 0.8}))
    assert "| Latency at 100 requests/s, median | 0.2 ms | – | – |" in page
    assert "| CPU per JSON request, all alike | 10.0 µs | 30.0 µs | – |" in page


def test_compare_page_missing_target_is_named() -> None:
    page, _ = page_and_chart(row("nginx", 10), {"target": "litellm", "round": 0, "missing": "it is not installed"})
    assert "* litellm: it is not installed" in page


def test_insert_table_replaces_marked_region_of_page() -> None:
    page, _ = page_and_chart(row("nginx", 10), row("svc", 30))
    before = f"# Title\n\n{MARKS[0]}\nold\n{MARKS[1]}\n\nmore | text\n"
    after = insert_table(before, page)
    assert "| CPU per JSON request, all alike | 10.0 µs | 30.0 µs | – |" in after
    assert "old" not in after
    assert after.startswith("# Title\n\n")
    assert after.endswith("more | text\n")
    assert insert_table(after, page) == after
