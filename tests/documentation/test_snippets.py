"""Executes every command and snippet of the documentation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import add_model
from tests.documentation.machine import Machine, PythonSession
from tests.documentation.pages import name_of, pages
from tests.documentation.snippets import CHECKS, Snippet, snippets
from tests.e2e.harness import provider_environment
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.speech import material

NewMachine = Callable[[], Machine]


@pytest.fixture(scope="module")
def providers() -> Iterator[Mapping[str, str]]:
    """The environment for three fake providers, under the names of the built-in providers."""
    with (
        FakeProvider(OpenAIWire(), key="sk-a") as a,
        FakeProvider(AnthropicWire(), key="sk-b") as b,
        FakeProvider(OpenAIWire(), key="sk-c") as c,
    ):
        yield provider_environment({"A": a, "B": b, "C": c})


@pytest.fixture(scope="module")
def new_machine(
    model_home: Path,
    embedding_home: Path,
    speech_model: None,
    providers: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[NewMachine]:
    add_model("espeak-en-us")
    started: list[Machine] = []

    def make() -> Machine:
        home = tmp_path_factory.mktemp("machine") / "home"
        started.append(Machine(home, (model_home / "registry", embedding_home / "registry"), providers))
        return started[-1]

    yield make
    for machine in started:
        machine.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The files in the working directory of a page's commands."""
    clips = material.make_clips()
    clip = clips["en-hello-world"]
    folder = tmp_path_factory.mktemp("files")
    model = folder / "my-model"
    model.mkdir()
    (model / "model.bin").write_bytes(b"weights")
    (model / "model_metadata.json").write_text(
        '{"model_id": "my-model", "version": "1", "execution_template": {"type": "Custom"}, "files": ["model.bin"]}'
    )
    (folder / "files.txt").write_text("talk.wav\n")
    (folder / "questions").mkdir()
    shutil.copy(clip, folder / "questions" / "one.wav")
    return {
        "talk.wav": clip,
        "question.wav": clip,
        "speech.wav": clips["beckett"],
        "voice/moonshine_voice/assets/beckett.wav": clips["beckett"],
        **{name: folder / name for name in ("my-model", "files.txt", "questions")},
    }


def all_snippets() -> Iterator[tuple[str, Snippet]]:
    for path in pages():
        for snippet in snippets(path.read_text(encoding="utf-8")):
            yield name_of(path), snippet


def test_snippets_each_has_a_role_or_is_marked_as_excerpt() -> None:
    assert [f"{name}:{snippet.line}: {snippet.error}" for name, snippet in all_snippets() if snippet.error] == []


def test_snippets_settings_pipelines_and_json_are_valid(tmp_path: Path) -> None:
    wrong = []
    for name, snippet in all_snippets():
        if snippet.role == "check":
            try:
                CHECKS[snippet.language](snippet.text, tmp_path)
            except Exception as error:
                wrong.append(f"{name}:{snippet.line}: {error}")
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_snippets_commands_and_programs_run(new_machine: NewMachine, files: Mapping[str, Path]) -> None:
    shared: Machine | None = None
    wrong = []
    for path in pages():
        blocks = [one for one in snippets(path.read_text(encoding="utf-8")) if one.role in ("run", "server")]
        if not blocks:
            continue
        if any(one.role == "server" for one in blocks):
            machine = new_machine()
        else:
            if shared is None:
                shared = new_machine()
                shared.start()
            machine = shared
        wrong += run_page(name_of(path), blocks, machine, files)
        if machine is not shared:
            machine.stop()
    assert wrong == [], "\n".join(wrong)


def run_page(name: str, blocks: list[Snippet], machine: Machine, files: Mapping[str, Path]) -> list[str]:
    """Return `FILE:LINE: OUTPUT` of the first failing block. Later blocks may depend on it and are skipped."""
    folder = machine.folder(name.replace("/", "-").removesuffix(".md"), files)
    session: PythonSession | None = None
    try:
        for snippet in blocks:
            if snippet.role == "server":
                machine.serve(snippet.text, folder)
                continue
            if snippet.language == "python":
                session = session or PythonSession(machine, folder)
                status, output = session.run(snippet.text)
            else:
                status, output = machine.shell(snippet.text, folder)
            if status:
                return [f"{name}:{snippet.line}: exit status {status}\n{output}"]
    except AssertionError as error:
        return [f"{name}: {error}"]
    finally:
        if session:
            session.close()
    return []
