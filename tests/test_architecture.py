"""What keeps the documents and the code together. The layers themselves are import-linter's (`make lint`)."""

import re
from pathlib import Path

import msgspec

from svc import plugins
from svc.settings import FileSettings

ROOT = Path(__file__).parent.parent
TABLES = ("gateway", "routing", "local", "speech", "limits", "ledger")


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    for table in TABLES:
        for field in msgspec.structs.fields(type(getattr(FileSettings(), table))):
            assert f"`{field.encode_name}`" in page, f"[{table}] {field.encode_name}"


def test_the_example_in_the_documents_is_a_valid_file(tmp_path: Path) -> None:
    from svc import settings

    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    path = tmp_path / "svc.toml"
    path.write_text(example)
    assert settings.load({}, config=str(path)).providers[0].name == "vllm"


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for verb in plugins.names("cli"):
        assert f"`svc {verb}" in page, verb


def test_every_package_that_is_depended_on_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text().lower()
    text = (ROOT / "pyproject.toml").read_text()
    section = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    for name in re.findall(r'"([A-Za-z0-9_.-]+)', section):
        assert name.lower() in page, name


TEXT_FOLDERS = ("src", "tests", "bench", "native", "examples", "docs")
TEXT_SUFFIXES = frozenset({".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".sql", ".lua", ".json"})
DOCUMENTS_ELSEWHERE = re.compile(
    r"§|\b(decisions|interface|wire-facts|moves|renames)\.md|\bdecisions,\s+sections?\b|\binterface,\s+\""
    r"|\(wire facts\)|\bbench's\s+notes|\.\./shared\b",
    re.IGNORECASE,
)


def test_no_file_refers_to_a_document_outside_the_repository() -> None:
    paths = [path for folder in TEXT_FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in (*paths, *ROOT.glob("*.md"))
        if path != Path(__file__)
        for text in [path.read_text(encoding="utf-8")]
        for match in DOCUMENTS_ELSEWHERE.finditer(text)
    ]
    assert found == []
