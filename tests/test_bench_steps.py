"""`make bench-steps` drives the gateway's parts without a server, so what they are called by is held here."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_step_has_its_figure() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.steps"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [line.rsplit(None, 2) for line in done.stdout.splitlines()]
    assert len(figures) >= 12
    assert all(unit == "µs" and float(figure) != 0 for _, figure, unit in figures)
