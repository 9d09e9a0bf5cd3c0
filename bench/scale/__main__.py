"""Measures, and writes the page about scale: `python -m bench.scale measure`, then `python -m bench.scale page`.

`measure` needs Linux with two processors and the compiled program, and writes `bench/scale/calibration.json`. `memory`
measures only the memory of Redis, in a minute, which no other load changes. `page`
calculates `docs/explanation/scale.md` and its chart from that file.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from bench.scale import report

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION = Path(__file__).parent / "calibration.json"
PAGE = ROOT / "docs" / "explanation" / "scale.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "memory", "page"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    given = parser.parse_args()
    if given.what == "measure":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # terminate child processes, as with Ctrl-C
        from bench.scale.measure import collect

        CALIBRATION.write_text(json.dumps(collect(given.rounds, given.seconds), indent=1) + "\n", encoding="utf-8")
    elif given.what == "memory":
        from bench.scale.redis_memory import measure_memory

        found = json.loads(CALIBRATION.read_text(encoding="utf-8"))
        found["redis_memory"] = measure_memory()
        CALIBRATION.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page, chart = report.render(json.loads(CALIBRATION.read_text(encoding="utf-8")))
    PAGE.write_text(page, encoding="utf-8")
    PAGE.with_suffix(".svg").write_text(chart, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
