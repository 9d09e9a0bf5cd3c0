"""The runner of `test_snippets.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documentation.machine import Machine, PythonSession
from tests.documentation.snippets import CHECKS, snippets


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    (folder / "models").mkdir()
    machine = Machine(folder / "home", (folder / "models",), {})
    yield machine
    machine.stop()


def roles(page: str) -> list[tuple[int, str]]:
    return [(one.line, "error" if one.error else one.role) for one in snippets(page)]


@pytest.mark.parametrize(
    ("page", "role"),
    [
        ("```sh\nsvc ls\n```\n", (1, "run")),
        ("```python\n1\n```\n", (1, "run")),
        ("```toml\n```\n", (1, "check")),
        ("```text\nx\n```\n", (1, "error")),
        ("```\nx\n```\n", (1, "error")),
        ("```nginx\nx\n```\n", (1, "error")),
        ("<!-- excerpt: output -->\n```text\nx\n```\n", (2, "excerpt")),
        ("<!-- excerpt: output -->\n\n```sh\nx\n```\n", (3, "excerpt")),
        ("<!-- excerpt: -->\n```text\nx\n```\n", (2, "error")),
        ("<!-- excerpt: output -->\n\nText.\n\n```text\nx\n```\n", (5, "error")),
        ("<!-- server -->\n```sh\nsvc up\n```\n", (2, "server")),
    ],
)
def test_snippet_role_is_set_by_language_and_comment(page: str, role: tuple[int, str]) -> None:
    assert roles(page) == [role]


@pytest.mark.parametrize(
    ("language", "valid", "invalid"),
    [
        ("toml", "[gateway]\nport = 1\n", "[gateway]\nno_such_key = 1\n"),
        ("yaml", "name: a\nstages:\n  - m@1\n", "name: a\nstages:\n  - {id: x, no_such_key: 1}\n"),
        ("json", '{"a": 1}\n{"b": 2}\n', '{"a": …}\n'),
    ],
)
def test_checks_invalid_text_raises(language: str, valid: str, invalid: str, tmp_path: Path) -> None:
    CHECKS[language](valid, tmp_path)
    with pytest.raises(Exception, match=r"."):
        CHECKS[language](invalid, tmp_path)


def test_shell_block_stops_at_first_failure(machine: Machine) -> None:
    folder = machine.folder("shell", {})
    assert machine.shell("false\necho after\n", folder) == (1, "")
    assert machine.shell("false | cat\necho after\n", folder)[0] != 0
    status, output = machine.shell("svc no-such-command\n", folder)
    assert status == 2, output


def test_shell_block_keeps_exports_and_working_directory(machine: Machine) -> None:
    folder = machine.folder("exports", {})
    assert machine.shell("export GREETING='two words'\nmkdir below\ncd below\n", folder)[0] == 0
    assert machine.shell('echo "$GREETING $(basename "$PWD")"\n', folder) == (0, "two words below\n")


def test_python_block_keeps_names_and_reports_exception(machine: Machine) -> None:
    folder = machine.folder("python", {})
    machine.shell("export GREETING=hello\n", folder)
    session = PythonSession(machine, folder)
    try:
        assert session.run("import os\nword = os.environ['GREETING']\n") == (0, "")
        assert session.run("print(word)\n") == (0, "hello\n")
        status, output = session.run("print(nothing)\n")
        assert status == 1
        assert "NameError" in output
    finally:
        session.close()


def test_with_own_ports_replaces_default_ports(machine: Machine) -> None:
    text = machine.with_own_ports("http://127.0.0.1:3000/v1 localhost:8080 10.0.0.5:8000")
    assert text == f"http://127.0.0.1:{machine.gateway_port}/v1 localhost:{machine.registry_port} 10.0.0.5:8000"


def test_serve_failing_command_raises_with_output(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="no such thing"):
        machine.serve("echo no such thing\nexit 1\n", machine.folder("server", {}))
