"""The docstrings of `src/svc` name only what exists. Wrong and correct names, in small modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation.docstring_names import EXTERNAL, SOURCE, DocstringNames

MODULES = {
    "counter.py": '''
class Base:
    limit = 3

class Counter(Base):
    """Counts."""
    total: int

    def add(self, amount: int) -> None:
        step = {"unit_name": amount}
''',
    "sub/__init__.py": "",
    "names.toml": "# stale_name\ndata_key = 1\n",
}


@pytest.fixture
def unknown(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """The names of a docstring that are reported."""
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "caller.py").write_text(f'import asyncio\n\ndef run(path):\n    """{request.param}"""\n')
    return list(DocstringNames(tmp_path).find_unknown())


@pytest.fixture(scope="module")
def names_of_source() -> DocstringNames:
    return DocstringNames(SOURCE)


def test_docstrings_of_the_source_name_only_what_exists(names_of_source: DocstringNames) -> None:
    assert names_of_source.find_unknown() == []


def test_external_names_are_all_mentioned(names_of_source: DocstringNames) -> None:
    mentioned = {name for names in names_of_source.mentioned.values() for _, name in names}
    assert mentioned >= set(EXTERNAL)


@pytest.mark.parametrize(
    "unknown",
    [
        "Read `missing`.",
        "Read `amount`.",  # a parameter in another file
        "Read `stale_name`.",  # only in a comment
        "Call `Counter.remove`.",
        "Call `counter.remove`.",
        "Call `other.Counter`.",
        "Call `asyncio.remove`.",
        "Call `missing()` at last.",
        "Read `counters.py`.",
    ],
    indirect=True,
)
def test_find_unknown_missing_name_is_reported_at_its_line(unknown: list[str]) -> None:
    (found,) = unknown
    assert found.startswith("caller.py:4: ")


@pytest.mark.parametrize(
    "unknown",
    [
        "Read `path`.",
        "Read `Counter`, `counter`, `sub`, `unit_name` and `data_key`.",
        "Call `Counter.add()`, `Counter.total`, `Counter.limit` and `counter.Counter.add`.",
        "Call `asyncio.Protocol`, `asyncio.sleep(0)` and `os.path.join`.",
        "Read `counter.py` and `names.toml`, and write `output.json`.",
        "Send `GET /missing`, `X-Missing: 1`, `[missing] name`, `missing > 0` and `--missing`.",
        "Read ``missing``.",
    ],
    indirect=True,
)
def test_find_unknown_existing_names_and_other_spans_pass(unknown: list[str]) -> None:
    assert unknown == []


@pytest.mark.parametrize("unknown", ["Text.\n\n    More: `missing`."], indirect=True)
def test_find_unknown_second_line_is_reported_with_its_number(unknown: list[str]) -> None:
    assert unknown == ["caller.py:6: missing"]
