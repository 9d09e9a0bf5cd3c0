"""`svc completion`: the scripts in real shells. bash and zsh get a Tab on a terminal. zsh and fish are optional."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.web import Answer, WebServer
from tests.terminal import TerminalOutput

from svc import plugins
from svc.cli import main

SETUP = {
    "bash": "PS1='> '; bind 'set enable-bracketed-paste off'; source svc.bash",
    "zsh": "PS1='> '; fpath+=$PWD/functions; autoload -Uz compinit; compinit -u -D; unset zle_bracketed_paste",
}
START = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}

Complete = Callable[[str, str], str]


def needs(shell: str) -> object:
    return pytest.param(shell, marks=pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A working folder with the scripts, a state folder with two keys, and `svc` on the PATH."""
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "home"))
    for name in ("webshop", "two words"):
        assert main(["keys", "create", "--name", name]) == 0
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "svc"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m svc "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "src"))
    work = tmp_path / "work"
    (work / "talks").mkdir(parents=True)
    (work / "ask.yaml").write_text("")
    (work / "asked.txt").write_text("")
    monkeypatch.chdir(work)
    capsys.readouterr()
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        (work / f"svc.{shell}").write_text(capsys.readouterr().out)
    (work / "functions").mkdir()
    (work / "svc.zsh").rename(work / "functions" / "_svc")
    return work


class Shell:
    """An interactive shell on a terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        controller, terminal = pty.openpty()
        environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        self._process = subprocess.Popen(
            START[name],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        os.close(terminal)
        self._controller = controller
        self.screen = TerminalOutput(80, 24)

    def complete(self, typed: str, expected: str) -> str:
        """Type a line and a Tab. Return the screen once it matches `expected`, or after 20 s."""
        os.write(self._controller, f"{SETUP[self._name]}; clear; echo REA''DY\r".encode())
        self._read_until(r"READY\n>")  # before the prompt, the shell has not set up the terminal for a line
        os.write(self._controller, f"{typed}\t".encode())
        return self._read_until(expected)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._controller)

    def _read_until(self, expected: str) -> str:
        deadline = time.monotonic() + 20
        while not re.search(expected, self.screen.text, flags=re.M) and time.monotonic() < deadline:
            if select.select([self._controller], [], [], 0.2)[0]:
                self.screen.feed(os.read(self._controller, 4096))
        return self.screen.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("svc doc", r"> svc doctor\s*$"),
        ("svc keys sh", r"> svc keys show\s*$"),
        ("svc keys show web", r"> svc keys show webshop\s*$"),
        ("svc registry push --or", r"> svc registry push --or$"),
        ("svc registry push --oc", r"> svc registry push --oci\s*$"),
        ("svc models add moon", r"> svc models add moonshine-tiny-en\s*$"),
        ("svc run ask", r"> svc run ask\.yaml\s*$"),
        ("svc completion fi", r"> svc completion fish\s*$"),
        ("svc keys create --name x --budget-period mo", r"--budget-period month\s*$"),
    ],
)
@pytest.mark.parametrize("shell", [needs("bash"), needs("zsh")])
def test_completion_tab_completes_line(shell: str, typed: str, expected: str, folder: Path) -> None:
    started = Shell(shell)
    try:
        assert re.search(expected, started.complete(typed, expected), flags=re.M), started.screen.text
    finally:
        started.close()


@pytest.mark.parametrize("shell", [needs("fish")])
def test_completion_fish_lists_values(shell: str, folder: Path) -> None:
    def complete(line: str) -> set[str]:
        done = subprocess.run(
            [shell, "--no-config", "-c", f"source svc.fish; complete -C {line!r}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return {row.partition("\t")[0] for row in done.stdout.splitlines()}

    assert complete("svc ") >= set(plugins.names("cli"))
    assert complete("svc keys sh") == {"show"}
    assert "webshop" in complete("svc keys show ")
    assert complete("svc models add moon") == {"moonshine-tiny-en"}
    assert "ask.yaml" in complete("svc run a")
    assert complete("svc registry push --oc") == {"--oci"}


def test_completion_bash_lists_commands_and_unrevoked_keys(folder: Path) -> None:
    script = 'source svc.bash; COMP_WORDS=(svc {words}); COMP_CWORD={count}; _shtab_svc; echo "${{COMPREPLY[@]}}"'

    def complete(*words: str) -> set[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        command = ["bash", "--norc", "-c", script.format(words=quoted, count=len(words))]
        return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())

    assert complete("") >= set(plugins.names("cli"))
    keys = complete("keys", "show", "")
    assert len(keys & {"webshop", "words"}) == 1
    assert len([key for key in keys if key.startswith("key_")]) == 2
    assert main(["keys", "revoke", "webshop"]) == 0
    assert "webshop" not in complete("keys", "show", "")
    assert complete("run", "a") == {"ask.yaml"}
    assert complete("registry", "add", "--root", "t") == {"talks"}


def test_completion_bash_model_name_with_command_is_not_executed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = b'{"data": [{"id": "meta/llama-3.1:8b"}, {"id": "$(touch executed)"}, {"id": "`touch executed`"}]}'
    with WebServer(lambda request: Answer(200, {"content-type": "application/json"}, models)) as server:
        monkeypatch.setenv("SVC_GATEWAY_URL", f"{server.url}/v1")
        script = 'source svc.bash; _svc_list_models ""'
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["meta/llama-3.1:8b"]
    assert not (folder / "executed").exists()


def test_completion_list_without_state_folder_creates_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "none"))
    assert main(["completion", "--list", "keys"]) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "none").exists()


def test_completion_list_models_of_silent_gateway_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        command = [sys.executable, "-m", "svc", "completion", "--list", "models"]
        done = subprocess.run(
            command, env={**os.environ, "SVC_GATEWAY_URL": url}, capture_output=True, text=True, timeout=30
        )
    assert done.returncode != 0
    assert done.stdout == ""
