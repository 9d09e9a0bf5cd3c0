"""svc.telemetry: every line of a server's log is one JSON object, whatever its text."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

SCRIPT = """
import logging, warnings
from svc import telemetry
telemetry.log_early("before the log: \\u202e\\u2028 \\x1b[2J é \\ud800")
%s
log = logging.getLogger("svc.some")
log.info("not shown")
log.warning("two\\nlines and a %%r", "quote")
logging.getLogger("uvicorn.error").error("from uvicorn")
warnings.warn("of a package", DeprecationWarning, stacklevel=1)
warnings.warn("of ours", stacklevel=1)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
%s
"""


def lines(*parts: str) -> list[dict[str, Any]]:
    result = subprocess.run([sys.executable, "-W", "always", "-c", SCRIPT % parts], capture_output=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, b"")
    text = result.stderr.decode()
    assert not set(text) & set("\u2028\u202e\x1b")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    "parts", [("writer = telemetry.configure()", "writer.close()"), ("telemetry.configure_child()", "")]
)
def test_log_every_line_is_json_with_level_time_logger_and_message(parts: tuple[str, str]) -> None:
    found = lines(*parts)
    assert [(line["level"], line["logger"]) for line in found] == [
        ("warning", "svc"),
        ("warning", "svc.some"),
        ("error", "uvicorn.error"),
        ("warning", "svc.warnings"),
        ("warning", "svc.warnings"),
        ("error", "svc.some"),
    ]
    assert found[0]["message"] == "before the log: \u202e\u2028 \x1b[2J é \ud800"
    assert found[1]["message"] == "two\nlines and a 'quote'"
    assert found[3]["message"] == "DeprecationWarning: of a package"
    assert found[5]["message"] == "failed"
    assert found[5]["exception"].endswith("ZeroDivisionError: division by zero")
    for line in found:
        assert line["time"].endswith("Z")
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
