"""Generated ledger files are current, and entries of earlier and later versions are readable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from svc.stores.database import journal_lines
from svc.stores.database.base import AttemptDetail, LedgerEntry
from svc.stores.database.factory import open_database
from tests.unit.gateway.accounting import generate_ledger
from tests.unit.gateway.accounting.generate_ledger import Field

FIELDS_OF_FIRST_BATCHES = (
    *("time", "request_id", "client_request_id", "key_id", "key_name", "tags", "endpoint", "model_asked", "model"),
    *("provider", "attempts", "status", "http_status", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("reasoning_tokens", "cost_usd", "latency_ms", "ttfb_ms", "cache_write_tokens", "estimated", "from_cache"),
    *("resumed", "code"),
)
"""The order in which databases store the values of entries, without field names."""
VALUES: dict[str, object] = {
    "time": "2026-03-04T10:20:30.456Z",
    "request_id": "req_c37a0b2ee7673eb900000001",
    "client_request_id": "mine",
    "key_id": "k",
    "key_name": "n",
    "tags": {"team": "x"},
    "endpoint": "/v1/chat/completions",
    "model_asked": "a",
    "model": "m",
    "provider": "p",
    "attempts": 2,
    "status": "ok",
    "http_status": 200,
    "prompt_tokens": 3,
    "cached_tokens": 1,
    "completion_tokens": 2,
    "reasoning_tokens": 0,
    "cost_usd": 0.5,
    "latency_ms": 1.0,
    "ttfb_ms": 0.5,
    "cache_write_tokens": 4,
    "estimated": True,
    "from_cache": False,
    "resumed": 1,
    "code": "provider_error",
}


@pytest.mark.parametrize("path", generate_ledger.make(), ids=lambda path: path.name)
def test_generated_ledger_files_are_current(path) -> None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == generate_ledger.make()[path], "run: make ledger"


def test_ledger_generator_new_field_appears_in_all_outputs(monkeypatch) -> None:
    """A new line in the table is the only change."""
    fields = generate_ledger.fields
    new = Field("region", "str | None", "The region of the provider.", default="None", usual="None")
    monkeypatch.setattr(generate_ledger, "fields", lambda table: [*fields(table), *([new] if table == "entry" else [])])
    made = {path.name: text for path, text in generate_ledger.make().items()}
    assert "    region: str | None = None\n" in made["base.py"]
    assert "        region: str | None = None,\n" in made["record.py"]
    assert '"region":%b' in made["record.py"]
    assert "_encode_text(record.region)" in made["record.py"]
    assert '"region":null\'' in made["record.py"]
    assert "| `region` | string or null | The region of the provider. |\n" in made["ledger.md"]


SUMMED_FIELD = (
    'audio_tokens = { type = "int | None", default = "None", value = "usage.audio_tokens", json = "count",'
    ' usual = "0", column = "total", doc = "Tokens of audio." }'
)


def test_ledger_generator_new_summed_field_is_stored_and_reported(tmp_path: Path) -> None:
    """Runs a copy of the sources on a database that the version without the field created."""
    database = open_database(f"sqlite:///{tmp_path / 'svc.db'}")
    database.migrate()
    database.insert_entries([msgspec.convert(VALUES, LedgerEntry)])
    database.close()
    run_python = copy_sources(tmp_path / "copy", SUMMED_FIELD)
    found = json.loads(run_python(Path(__file__).with_name("use_new_field.py"), "audio_tokens", tmp_path))
    assert found == {
        "lines": [3, 4],
        "segments": [7, 7],
        "entries": [4, None, 3],
        "sums": [7, 4],
        "openapi": {"type": "integer"},
    }
    sums = run_python("-m", "svc", "usage", "--by", "model")
    assert [line.split() for line in sums.splitlines()] == [
        ["MODEL", "REQUESTS", "PROMPT", "COMPLETION", "USD", "AUDIO"],
        ["m", "3", "23", "12", "1.000000", "7"],
    ]
    head, *entries = run_python("-m", "svc", "usage").splitlines()
    assert head.split()[-3:] == ["USD", "AUDIO", "MS"]
    assert [line.split()[-2] for line in entries] == ["4", "-", "3"]


def copy_sources(copy: Path, line: str) -> Callable[..., str]:
    """Copy the sources, add a line to the table, and run the generator. Returns a function that runs Python there."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(generate_ledger.SOURCE, copy / "src" / "svc", ignore=ignored)
    shutil.copy(generate_ledger.ROOT / "pyproject.toml", copy)
    for path in (Path(generate_ledger.__file__), generate_ledger.PAGE):
        target = copy / path.relative_to(generate_ledger.ROOT)
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    table = copy / generate_ledger.TABLE.relative_to(generate_ledger.ROOT)
    table.write_text(
        table.read_text(encoding="utf-8").replace("\n\n[attempt]", f"\n{line}\n\n[attempt]"), encoding="utf-8"
    )

    def run_python(*arguments: object) -> str:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(copy / "src"), "SVC_HOME": str(copy.parent)}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run_python(copy / "tests" / "unit" / "gateway" / "accounting" / "generate_ledger.py")
    return run_python


@pytest.mark.parametrize("value", ["record.resume_count", "bill.is_estimated", ""])
def test_ledger_generator_unsupported_total_raises_value_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    field = Field("resumed", "int", "", value=value, column="total")
    monkeypatch.setattr(generate_ledger, "fields", lambda table: [field])
    with pytest.raises(ValueError, match="resumed"):
        generate_ledger.totals()


def test_ledger_fields_keep_their_stored_order() -> None:
    assert LedgerEntry.__struct_fields__[: len(FIELDS_OF_FIRST_BATCHES)] == FIELDS_OF_FIRST_BATCHES
    assert tuple(field.name for field in generate_ledger.fields("entry")) == LedgerEntry.__struct_fields__


def test_ledger_fields_added_later_have_defaults() -> None:
    for field in generate_ledger.fields("entry")[len(FIELDS_OF_FIRST_BATCHES) :]:
        assert field.default is not None, field.name


def test_decode_entry_without_newest_fields_succeeds() -> None:
    known = LedgerEntry(**VALUES)
    assert known.attempts_detail is None
    packed = msgspec.json.encode([VALUES[name] for name in FIELDS_OF_FIRST_BATCHES]).decode()
    line = msgspec.json.encode(VALUES).decode() + "\n"
    assert journal_lines.decode_batch(packed, None) == [known]
    assert journal_lines.decode_batch("", line) == [known]
    assert journal_lines.parse_entries(line.encode()) == ([known], 0)
    assert journal_lines.parse_segment(line.encode()).entry_count == 1


def test_decode_entry_with_unknown_fields_ignores_them() -> None:
    """An earlier version ignores the fields that a later version adds."""
    attempts = [AttemptDetail(provider="p", model="m", outcome="error", code="provider_error", ms=1.5)]
    known = LedgerEntry(**VALUES, attempts_detail=attempts)
    packed = msgspec.json.encode([*msgspec.structs.astuple(known), {"more": 1}]).decode()
    line = msgspec.json.encode({**msgspec.to_builtins(known), "newer": [1]}).decode() + "\n"
    assert journal_lines.decode_batch(packed, None) == [known]
    assert journal_lines.decode_batch("", line) == [known]
    assert journal_lines.parse_segment(line.encode() * 2).broken_lines == 0
