"""The model of `bench/scale/`: its mathematics, its agreement with the measured points, and its page."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import pytest
from bench.scale import report
from bench.scale.model import (
    Cost,
    Hardware,
    Load,
    calibrate,
    fit_cost,
    interpolate,
    process_busy,
    process_capacity,
    row_share,
    size,
)

ROOT = Path(__file__).parent.parent
FOUND = json.loads((ROOT / "bench" / "scale" / "calibration.json").read_text(encoding="utf-8"))
CALIBRATION = calibrate(FOUND)
STREAMS = Load(1_000, chunks_per_request=400, stream_seconds=20)


def test_fit_cost_exact_points_returns_their_cost() -> None:
    cost = Cost(floor=40, extra=160, half_rate=300)
    fitted = fit_cost([(rate, cost.at(rate)) for rate in (30, 100, 300, 1_000, 3_000)])
    for rate in (30, 200, 3_000):
        assert fitted.at(rate) == pytest.approx(cost.at(rate), rel=0.05)
    assert fitted.at(50_000) == fitted.at(3_000)  # never cheaper than measured


@pytest.mark.parametrize("points", [[(10.0, 5.0), (100.0, 50.0)], [(10.0, 500.0), (100.0, 1.0)]])
def test_fit_cost_any_points_never_returns_less_than_zero(points: list[tuple[float, float]]) -> None:
    fitted = fit_cost(points)
    assert fitted.floor >= 0
    assert fitted.extra >= 0


def test_fit_cost_one_rate_raises() -> None:
    with pytest.raises(ValueError, match="two rates"):
        fit_cost([(10, 1), (10, 2)])


def test_interpolate_returns_points_lines_and_ends() -> None:
    points = ((1.0, 10.0), (3.0, 30.0))
    assert [interpolate(points, at) for at in (0, 1, 2, 3, 9)] == [10, 10, 20, 30, 30]


def test_row_share_few_and_many_keys() -> None:
    assert row_share(1_000, active_keys=1) == pytest.approx(1 / 700)
    assert row_share(1_000, active_keys=10**9) == pytest.approx(1, abs=1e-3)
    assert row_share(1_000, 100) < row_share(1_000, 1_000) < row_share(1_000, 10_000)


def test_process_capacity_uses_the_planned_share() -> None:
    for load in (Load(1), STREAMS):
        rate = process_capacity(CALIBRATION, load, 0.6)
        assert process_busy(CALIBRATION, load, rate) == pytest.approx(0.6)
    assert process_capacity(CALIBRATION, STREAMS, 0.6) < process_capacity(CALIBRATION, Load(1), 0.6)


def test_open_streams_are_arrivals_times_duration() -> None:
    assert STREAMS.open_streams == 20_000


@pytest.mark.parametrize("load", [Load(1_000), STREAMS], ids=["responses", "streams"])
def test_size_more_requests_never_need_less(load: Load) -> None:
    rates = (100, 1_000, 3_000, 10_000, 30_000, 100_000)
    sizes = [size(CALIBRATION, dataclasses.replace(load, requests_per_second=rate), Hardware()) for rate in rates]
    constant = {"requests_per_process", "streams_per_node", "redis_memory_gb"}
    names = {field.name for field in dataclasses.fields(sizes[0])} - constant
    for name in names:
        values = [getattr(each, name) for each in sizes]
        assert values == sorted(values), name
        assert values[-1] > values[0], name


def test_size_units_agree() -> None:
    load = Load(10_000)
    found = size(CALIBRATION, load, Hardware())
    assert found.processes * found.requests_per_process == pytest.approx(10_000)
    assert found.gateway_cores <= found.processes * Hardware().utilization + 1e-6
    assert found.nodes == -(-found.processes // Hardware().node_cores)
    entry_bytes = found.disk_gb_per_day * 1e9 / 86_400 / 10_000
    least, most = CALIBRATION.ledger.disk_bytes[0][1], CALIBRATION.ledger.disk_bytes[-1][1]
    assert least <= entry_bytes <= most
    assert found.network_gbit_per_second == pytest.approx(10_000 * 2 * 2_000 * 8 / 1e9)


def test_size_million_streams_fit_the_ports_of_the_nodes() -> None:
    found = size(CALIBRATION, dataclasses.replace(STREAMS, requests_per_second=50_000), Hardware())
    assert found.streams_per_node <= Hardware().local_ports
    assert found.streams_per_node * found.nodes == pytest.approx(1_000_000)


def test_model_reproduces_the_measured_points() -> None:
    fitted = report.errors(FOUND, CALIBRATION, report.FITTED)
    predicted = report.errors(FOUND, CALIBRATION, ("both", "both, 2 workers"))
    assert len(fitted) + len(predicted) >= 5
    assert statistics.median(fitted) < 0.25
    assert statistics.median(predicted) < 0.25


def test_limits_are_in_the_order_in_which_they_break() -> None:
    parts = report.limits(CALIBRATION, Load(1_000))
    assert [part.limit for part in parts] == sorted(part.limit for part in parts)
    assert all(part.limit > 0 for part in parts)


def test_page_and_chart_are_those_of_the_calibration() -> None:
    page, chart = report.render(FOUND)
    folder = ROOT / "docs" / "explanation"
    assert (folder / "scale.md").read_text(encoding="utf-8") == page
    assert (folder / "scale.svg").read_text(encoding="utf-8") == chart
