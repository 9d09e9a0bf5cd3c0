"""The gateway's stable cost figures may not grow by more than 10 %. `make ratchet` records new limits."""

import json

import pytest
from bench.instructions import PLATFORM
from bench.ratchet import LIMITS, PER_PLATFORM, measure, measure_compiled, worse


@pytest.mark.slow
def test_cost_figures_stay_within_ten_percent_of_limits() -> None:
    limits = json.loads(LIMITS.read_text())
    found = measure()
    assert not worse(found, limits), "\n".join(["if that is meant: make ratchet", *worse(found, limits)])
    assert found.keys() == {name for name in limits if not name.startswith(PER_PLATFORM)}


@pytest.mark.slow
@pytest.mark.timeout(600)  # valgrind is up to fifty times slower
def test_instruction_counts_compiled_stay_within_ten_percent_of_limits() -> None:
    limits = json.loads(LIMITS.read_text())
    if not any(name.endswith(f"({PLATFORM})") for name in limits):
        pytest.skip(f"bench/ratchet.json has no instructions of {PLATFORM}")
    found = measure_compiled(limits)
    assert not worse(found, limits), "\n".join(["if that is meant: make ratchet", *worse(found, limits)])


def test_worse_figure_over_limit_is_reported() -> None:
    limits = {"Python calls per request": 100.0, "MB at rest": 40.0}
    assert worse({"Python calls per request": 110.0, "MB at rest": 30.0}, limits) == []
    assert worse({"Python calls per request": 111.0}, limits) == [
        "Python calls per request: 111, at most 110.0 (100 and a tenth)"
    ]
    assert worse({"new": 1.0}, limits) == ["new: 1, at most 0.0 (0 and a tenth)"]
