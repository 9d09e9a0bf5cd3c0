"""The verdict of `make audit`: a package that could not be audited never passes."""

import json

import pytest

from tests.audit.__main__ import CLEAN, UNKNOWN, VULNERABLE, verdict

SOUND = {"name": "a", "version": "1", "vulns": []}
VULNERABLE_ONE = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"], "aliases": []}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "status", "expected_text"),
    [
        ([SOUND], CLEAN, "1 packages, no known"),
        ([SOUND, VULNERABLE_ONE], VULNERABLE, "CVE-1, fixed in 3"),
        ([SOUND, SKIPPED], UNKNOWN, "no advisory data for 1 of 2"),
        ([VULNERABLE_ONE, SKIPPED], VULNERABLE, "1 known vulnerabilities in 2"),
        ([], UNKNOWN, "nothing was audited"),
    ],
)
def test_verdict_of_report_gives_status_and_reason(packages, status, expected_text):
    found, text = verdict(json.dumps({"dependencies": packages, "fixes": []}), "")
    assert found == status
    assert expected_text in text


@pytest.mark.parametrize("output", ["", "ERROR", "{}"])
def test_verdict_without_report_is_unknown_with_reason(output):
    status, text = verdict(output, "warning\nERROR: Could not connect\n")
    assert status == UNKNOWN
    assert text.endswith("ERROR: Could not connect")
