"""The files in `deploy/` are those that the guides show, and are valid."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT
from tests.documentation.snippets import snippets

UNIT = ROOT / "deploy" / "systemd" / "svc.service"
PROGRAM = "/opt/svc/bin/svc"


def test_systemd_unit_is_the_one_in_the_guide() -> None:
    page = (ROOT / "docs" / "how-to" / "run-under-systemd.md").read_text(encoding="utf-8")
    shown = [each.text for each in snippets(page) if each.language == "ini"]
    assert [text.strip() for text in shown] == [UNIT.read_text(encoding="utf-8").strip()]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8")
    assert PROGRAM in text
    (tmp_path / "svc.service").write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "svc.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if "svc.service" in line]
    assert complaints == []
