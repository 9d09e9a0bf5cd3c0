"""Reads the instructions of the Dockerfile's last stage."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
INSTALL = DOCKERFILE.parent / "install.sh"


@dataclass(frozen=True)
class Image:
    """What a container engine knows of the image."""

    environment: dict[str, str]
    user: str
    health_check: list[str]
    entrypoint: list[str]
    command: list[str]
    port: int
    stop_signal: str


def read_instructions(path: Path = DOCKERFILE) -> Image:
    """Return the instructions of the last stage."""
    text = path.read_text(encoding="utf-8").replace("\\\n", "")
    last = text[text.rindex("\nFROM ") :]
    found = dict(line.split(" ", 1) for line in last.split("\n") if " " in line)
    health_check = found["HEALTHCHECK"]
    return Image(
        environment=dict(pair.split("=", 1) for pair in shlex.split(found["ENV"])),
        user=found["USER"],
        health_check=json.loads(health_check[health_check.index("[") :]),
        entrypoint=json.loads(found["ENTRYPOINT"]),
        command=json.loads(found["CMD"]),
        port=int(found["EXPOSE"]),
        stop_signal=found["STOPSIGNAL"],
    )
