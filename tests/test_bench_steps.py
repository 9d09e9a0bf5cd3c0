"""`make bench-steps` calls internals of the gateway directly. This test fails when one of them is renamed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def test_bench_steps_each_step_reports_a_figure() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "bench.steps"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    figures = [line.rsplit(None, 2) for line in result.stdout.splitlines()]
    assert len(figures) >= 12
    assert all(unit == "µs" and float(figure) != 0 for _, figure, unit in figures)
