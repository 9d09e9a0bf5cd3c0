"""The `svc` program: its output streams and exit status."""

import errno
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from tests import fork_server

import svc
import svc.cli
from svc import plugins

TOP = Path(__file__).parents[3]


def command(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run_command(args, {**os.environ, **environ}, Path.cwd())


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version_option_prints_version_and_build_facts(option: str) -> None:
    result = command(option)
    assert (result.returncode, result.stderr) == (0, "")
    code = (
        "compiled" if (Path(svc.__file__).parent / "dialects" / f"base{EXTENSION_SUFFIXES[0]}").exists() else "source"
    )
    pattern = (
        rf"svc {re.escape(svc.__version__)} \(commit (\w+), {code}, CPython {platform.python_version()}, linux \w+\)\n"
    )
    assert re.fullmatch(pattern, result.stdout)


def test_version_json_has_the_commit_of_the_checkout() -> None:
    facts = json.loads(command("--version", "--json").stdout)
    assert facts.keys() == {"version", "commit", "commit_time", "compiled", "python", "platform"}
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TOP, capture_output=True, text=True, check=False).stdout
    assert (facts["version"], facts["commit"]) == (svc.__version__, head.strip() or None)


def test_version_unknown_option_is_wrong_use() -> None:
    result = command("--version", "--yaml")
    assert (result.returncode, result.stdout) == (2, "")
    assert "'--yaml'" in result.stderr


def test_entry_point_is_cli_main() -> None:
    scripts = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"svc": "svc.cli:main"}


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(args: list[str]) -> None:
    result = command(*args)
    assert result.returncode == 0
    for verb in plugins.names("cli"):
        assert f"  {verb} " in result.stdout


def test_main_without_command_exits_2_with_usage() -> None:
    result = command()
    assert result.returncode == 2
    assert "usage: svc COMMAND" in result.stdout


@pytest.mark.parametrize("verb", plugins.names("cli"))
def test_help_of_every_command_has_examples(verb: str) -> None:
    result = command(verb, "--help")
    assert result.returncode == 0
    assert f"svc {verb}" in result.stdout.partition("Examples")[2]


@pytest.mark.parametrize(
    "args", [["no-such-verb"], ["--no-such-option"], ["models"], ["models", "add"], ["models", "ls", "--no-such"]]
)
def test_main_wrong_usage_exits_2_with_one_line(args: list[str]) -> None:
    result = command(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("svc: ")
    assert "--help" in result.stderr


def test_main_closed_output_pipe_prints_no_traceback() -> None:
    script = f"{sys.executable} -m svc --help | true"
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("args", [["up"], ["gateway"], ["keys", "ls"], ["models", "ls"], ["registry", "ls"]])
def test_main_home_is_file_exits_2_with_reason(args: list[str], tmp_path: Path) -> None:
    file = tmp_path / "home"
    file.write_text("")
    result = command(*args, SVC_HOME=str(file))
    assert (result.returncode, result.stderr.splitlines()[-1]) == (2, f"svc: SVC_HOME is not a folder: {file}")


def test_main_state_folder_that_cannot_be_created_names_the_variable(tmp_path: Path) -> None:
    result = command("keys", "ls", SVC_HOME="/proc/none/svc")
    assert result.returncode == 2
    assert result.stderr == (
        "svc: The state folder /proc/none/svc cannot be created: No such file or directory. "
        "Set SVC_HOME to a folder that this user may write to.\n"
    )


def test_main_missing_package_is_one_line_with_the_command_that_installs_it() -> None:
    script = "import sys; sys.modules['msgspec'] = None; from svc.cli import main; sys.exit(main(['gateway']))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr == ("svc: The Python package 'msgspec' is missing, which svc needs: pip install svc-gateway\n")


def install_broken_plug_in(folder: Path) -> None:
    """Write an installed package whose command and dialect cannot be imported."""
    info = folder / "extra-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[svc.cli]\nextra = extra_command\n\n[svc.dialects]\nextra = extra_command\n"
    )
    (folder / "extra_command.py").write_text("import absent_package\n")


def test_main_help_with_a_broken_plugin_lists_all_commands(tmp_path: Path) -> None:
    install_broken_plug_in(tmp_path)
    result = command("--help", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert re.search(r"^  extra +fails to load: No module named 'absent_package'$", result.stdout, re.M)
    assert re.search(r"^  gateway +\S", result.stdout, re.M)


def test_config_check_with_a_broken_plugin_that_is_not_used_names_the_dialects(tmp_path: Path) -> None:
    install_broken_plug_in(tmp_path)
    config = tmp_path / "svc.toml"
    for dialect, address, message in (
        ("nope", "http://127.0.0.1:9/v1", "there is no dialect 'nope'; known: anthropic, openai."),
        ("openai", "http://127.0.0.1:9", ""),
    ):
        entry = f'name = "x"\ndialect = "{dialect}"\nbase_url = "{address}"\nmodels = [{{ id = "m" }}]\n'
        config.write_text(f"[[providers]]\n{entry}")
        result = command("config", "check", "--config", str(config), PYTHONPATH=str(tmp_path))
        assert "Traceback" not in result.stderr
        assert result.returncode == (1 if message else 0), result.stderr
        assert message in result.stderr + result.stdout


def test_main_package_that_a_plugin_lacks_is_a_traceback(tmp_path: Path) -> None:
    install_broken_plug_in(tmp_path)
    result = command("extra", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "extra_command.py" in result.stderr
    assert "No module named 'absent_package'" in result.stderr
    assert "pip install" not in result.stderr


@pytest.mark.slow
def test_up_registry_that_does_not_start_is_reported_in_one_line(tmp_path: Path) -> None:
    result = command("up", "--port", "0", SVC_HOME=str(tmp_path), SVC_BLOB_URL="gs://bucket")
    assert "svc: The registry did not start: SVC_BLOB_URL must begin with file:// or s3://.\n" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["smollm2-135m", "moonshine-tiny-en"])
def test_models_rm_of_model_in_use_is_rejected(name: str, tmp_path: Path) -> None:
    record = {"url": "http://127.0.0.1:1/v1", "pid": os.getpid()}
    (tmp_path / "gateway.json").write_text(json.dumps(record))
    result = command("models", "rm", name, SVC_HOME=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith(f"svc: `svc up` at http://127.0.0.1:1/v1 uses {name}. Stop it first.")
    assert "not installed" in command("models", "rm", "espeak-en-us", SVC_HOME=str(tmp_path)).stderr


def test_models_ls_invalid_recipe_is_reported_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "broken.toml").write_text("x")
    result = command("models", "ls", SVC_HOME=str(tmp_path))
    assert result.returncode == 0
    assert "smollm2-135m" in result.stdout
    assert result.stderr.startswith(f"svc: {tmp_path}/recipes/broken.toml: The recipe broken is not valid: ")
    assert "'nope' is not installed" in command("models", "rm", "nope", SVC_HOME=str(tmp_path)).stderr


def test_models_rm_of_unknown_model_lists_installed_ones(tmp_path: Path) -> None:
    result = command("models", "rm", "nope", SVC_HOME=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == "svc: 'nope' is not installed. Installed: none. See: svc models ls\n"


def test_speak_to_missing_folder_fails_before_the_request(tmp_path: Path) -> None:
    for output, problem in ((tmp_path / "no" / "a.wav", "there is no folder"), (tmp_path / "b.wav", "it is a folder")):
        (tmp_path / "b.wav").mkdir(exist_ok=True)
        gateway = "http://127.0.0.1:1/v1"  # would fail with another message
        result = command("speak", "Hi", "-o", str(output), "--gateway", gateway, SVC_HOME=str(tmp_path))
        assert result.returncode == 2
        assert problem in result.stderr


def test_help_begins_with_first_sentence_of_readme() -> None:
    sentence = "svc is an AI gateway, a live speech server and a model registry in one program."
    assert command("--help").stdout.startswith(f"{sentence}\n")
    assert sentence in (TOP / "README.md").read_text().replace("`", "").replace("\n", " ")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["foo"], "There is no command 'foo'. Available: backup, bundle, "),
        (["model"], "There is no command 'model'. Did you mean 'models'?"),
        (["keys", "list"], "There is no action 'list'. Did you mean 'ls'? Available: create, ls, "),
        (["models", "delete", "x"], "There is no action 'delete'. Did you mean 'rm'?"),
        (["registry", "zzz"], "There is no action 'zzz'. Available: add, "),
        (["up", "--port", "abc"], "argument --port: expected a number, not 'abc'. See: svc up --help"),
        (["up", "--port", "99999"], "--port must be 0 to 65535."),
    ],
)
def test_main_wrong_usage_message_is_in_plain_terms(args: list[str], error: str, tmp_path: Path) -> None:
    assert command(*args, SVC_HOME=str(tmp_path)).stderr.startswith(f"svc: {error}")


def test_chat_without_gateway_names_reason_without_errno(tmp_path: Path) -> None:
    error = "The gateway at http://127.0.0.1:1/v1 cannot be reached: Connection refused. Start one with: svc up"
    assert command("chat", "--gateway", "http://127.0.0.1:1", "hi", SVC_HOME=str(tmp_path)).stderr == f"svc: {error}\n"


@pytest.mark.parametrize(("encoding", "printed"), [("latin-1", b"p?th-\xfc.yaml"), ("ascii", b"p?th-?.yaml")])
def test_output_that_the_locale_cannot_encode_is_no_error(tmp_path: Path, encoding: str, printed: bytes) -> None:
    pipeline = "name: p→th-ü.yaml\nstages:\n  - {id: p→th-ü.yaml, target: integration, model: gpt-4o-mini}\n"
    (tmp_path / "p.yaml").write_text(pipeline, encoding="utf-8")
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "SVC_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "svc", "run", str(tmp_path / "p.yaml"), "--check"],
        env=environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert printed in done.stdout


@pytest.mark.parametrize(
    ("unbuffered", "message"),
    [
        ("", "svc: Standard output cannot be written: No space left on device.\n"),
        ("1", "svc: No space left on device. Free space on the disk, or write to another one.\n"),
    ],
)
@pytest.mark.parametrize("args", [["--help"], ["registry", "--help"], ["registry", "ls"]])
def test_full_standard_output_is_one_error(args: list[str], unbuffered: str, message: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "svc", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "SVC_HOME": str(tmp_path), "PYTHONUNBUFFERED": unbuffered},
        )
    assert (result.returncode, result.stderr) == (1, message)


def test_permission_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/file")

    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    monkeypatch.setattr(os, "mkdir", deny)  # root is denied nothing
    assert svc.cli.main(["registry", "ls"]) == 1
    expected = (
        "svc: Permission denied: /srv/file. Check the owner and the permissions of the file and of its folders.\n"
    )
    assert capsys.readouterr().err == expected
