"""svc.telemetry: every line of a server's log is one JSON object, whatever its text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from svc import telemetry

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


TEXT_LINE = re.compile(r"[-0-9]{10}T[:0-9]{8}\.\d{3}Z [A-Z]+ [a-z.]+ .*")


def text_lines(script: str, **variables: str) -> list[str]:
    command = [sys.executable, "-c", "import logging\nfrom svc import telemetry\n" + script]
    result = subprocess.run(command, capture_output=True, timeout=60, env={**os.environ, **variables})
    assert (result.returncode, result.stdout) == (0, b""), result.stderr
    found = result.stderr.decode().splitlines()
    assert all(TEXT_LINE.fullmatch(line) for line in found), found
    return [line.partition(" ")[2] for line in found]


def test_log_text_has_one_line_for_each_record_whatever_its_text() -> None:
    found = text_lines(
        r"""
telemetry.use_format("info", "text")
telemetry.log_early("early \u2028 \ud800")
writer = telemetry.configure("info", "text")
log = logging.getLogger("svc.some")
log.debug("not shown")
log.info("two\nlines and an \x1b[2J é")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
writer.write(b'{"time":"2027-01-31T10:00:00.123Z","http_status":200,"code":null,"key_name":"a \\"b","detail":[1]}\n')
writer.close()
"""
    )
    assert found[0] == r"WARNING svc early \u2028 \ud800"
    assert found[1] == r"INFO svc.some two\nlines and an \u001b[2J é"
    assert found[2].startswith('ERROR svc.some failed exception="Traceback')
    assert found[2].endswith('ZeroDivisionError: division by zero"')
    assert found[3] == r'INFO svc.access response http_status=200 key_name="a \"b" detail=[1]'


def test_log_child_process_has_level_and_format_of_its_parent() -> None:
    telemetry.use_format("info", "text")
    try:
        variables = telemetry.child_environment()
    finally:
        telemetry.use_format("warning", "json")
    script = 'telemetry.configure_child()\nlogging.getLogger("svc.child").info("shown")'
    assert text_lines(script, **variables) == ["INFO svc.child shown"]
