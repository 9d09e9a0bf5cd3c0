"""Runs the long soak: `python -m tests.soak`."""

import argparse
import tempfile
from pathlib import Path

from tests.soak.running import soaking

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=600)
parser.add_argument("--rate", type=float, default=300)
parser.add_argument("--scheme", choices=["https", "http"], default="https", help="of the providers")
given = parser.parse_args()
with tempfile.TemporaryDirectory() as folder, soaking(Path(folder), given.scheme) as soak:
    print(soak.run(given.seconds, given.rate))  # noqa: T201
