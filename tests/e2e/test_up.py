"""`svc up` and `svc chat`."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.harness import SVC, environment, run

KEY = re.compile(r"svc_sk_[A-Za-z0-9_-]{43}")


class Up:
    """`svc up` on free ports, with the models of the test cache."""

    def __init__(self, home: Path, registry: Path, *arguments: str) -> None:
        self.home = home
        self.env = {"SVC_REGISTRY_ROOT": str(registry)}
        self.process = subprocess.Popen(
            [SVC, "up", "--port", "0", "--registry-port", "0", *arguments],
            env=environment(home, {**self.env, "PIP_NO_INDEX": "1"}),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_announcement(self) -> str:
        assert self.process.stdout is not None
        output = ""
        while "Press Ctrl-C to stop." not in output:
            line = self.process.stdout.readline()
            assert line, output
            output += line
        return output

    def chat(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        if text is None:
            return run("chat", *arguments, home=self.home, env=self.env)
        return subprocess.run(
            [SVC, "chat", *arguments],
            env=environment(self.home, self.env),
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture(scope="module")
def up(model_home: Path, speech_model: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, str]]:
    one = Up(tmp_path_factory.mktemp("up"), model_home / "registry")
    try:
        yield one, one.read_announcement()
    finally:
        one.process.terminate()
        assert one.process.wait(20) == 0


def test_up_prints_working_addresses_and_key(up: tuple[Up, str]) -> None:
    one, output = up
    (gateway,) = re.findall(r"^gateway +(\S+)$", output, re.M)
    (registry,) = re.findall(r"^registry +(\S+)$", output, re.M)
    key = KEY.search(output)
    assert key
    request = urllib.request.Request(f"{gateway}/models", headers={"authorization": f"Bearer {key.group()}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        listed = [model["id"] for model in json.load(answer)["data"] if model.get("kind") != "speech"]
    assert listed == ["smollm2-135m", "moonshine-tiny-en"]  # other tests may have added a voice to this registry
    with urllib.request.urlopen(f"{registry}/health", timeout=10) as answer:
        assert json.load(answer)["status"] == "ok"
    path = one.home / "svc" / "api_key"
    assert path.read_text().strip() == key.group()
    assert path.stat().st_mode & 0o777 == 0o600


def open_login_link(url: str) -> str | None:
    """Open a login link as a browser does. Return the cookie, or None if the link does not log in."""
    address = urlsplit(url)
    client = http.client.HTTPConnection(address.netloc, timeout=10)
    client.request("GET", f"{address.path}?{address.query}")
    response = client.getresponse()
    cookie = response.getheader("set-cookie")
    client.close()
    assert response.status == 303
    return cookie.partition(";")[0] if cookie else None


def test_console_links_log_in_once_as_admin(up: tuple[Up, str]) -> None:
    one, output = up
    (printed,) = re.findall(r"^console +(\S+)", output, re.M)
    created = run("console", home=one.home)
    assert created.returncode == 0, created.stderr
    assert (one.home / "svc" / "console_key").stat().st_mode & 0o777 == 0o600
    for url in (printed, created.stdout.strip()):
        cookie = open_login_link(url)
        assert cookie is not None
        request = urllib.request.Request(url.partition("/console/")[0] + "/v1/admin/keys", headers={"cookie": cookie})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["object"] == "list"
        assert open_login_link(url) is None


def test_console_command_without_gateway_says_what_to_do(tmp_path: Path) -> None:
    result = run("console", home=tmp_path)
    assert result.returncode == 2
    assert "`svc up` is not running" in result.stderr


def test_pull_command_of_a_bundle_works_on_another_machine(up: tuple[Up, str], tmp_path: Path) -> None:
    one, output = up
    (gateway,) = re.findall(r"^gateway +(\S+)/v1", output, re.M)
    key = (one.home / "svc" / "api_key").read_text().strip()
    request = urllib.request.Request(f"{gateway}/v1/admin/bundles", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        smallest = min(json.load(answer)["data"], key=lambda bundle: int(bundle["size_bytes"]))
    name, *arguments = shlex.split(smallest["pull_command"])
    assert name == "svc"
    pulled = run(*arguments, home=tmp_path)
    assert pulled.returncode == 0, pulled.stderr
    assert (tmp_path / "svc" / "registry" / smallest["key"] / "content" / "model_metadata.json").is_file()


def test_up_prints_working_curl_command(up: tuple[Up, str]) -> None:
    (line,) = re.findall(r"(curl .*\\\n.*)", up[1])
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert result.stdout.count("data: {") > 3
    assert result.stdout.rstrip().endswith("data: [DONE]")


def test_chat_uses_running_gateway_and_its_key(up: tuple[Up, str]) -> None:
    result = up[0].chat("Say hello.", "--max-tokens", "200")
    assert result.returncode == 0
    assert result.stdout.strip()


def listed_first(one: Up) -> str:
    url = json.loads((one.home / "svc" / "gateway.json").read_text())["url"]
    key = (one.home / "svc" / "api_key").read_text().strip()
    request = urllib.request.Request(f"{url}/models", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


def test_models_ls_shows_state_of_models_in_running_gateway(up: tuple[Up, str], model_path: Path) -> None:
    one, _ = up
    added = run("models", "add", str(model_path), "--name", "another", home=one.home, env=one.env)
    assert added.returncode == 0, added.stderr
    deadline = time.monotonic() + 30
    while True:
        listed = json.loads(run("models", "ls", "--json", home=one.home, env=one.env).stdout)
        states = {row["name"]: row["state"] for row in listed if row["state"]}
        if states == {"smollm2-135m": "loaded", "another": "unloaded"} or time.monotonic() > deadline:
            break
    assert states == {"smollm2-135m": "loaded", "another": "unloaded"}
    assert listed_first(one) == "smollm2-135m"  # without `--model`, `svc chat` uses it
    answered = one.chat("--model", "another", "--max-tokens", "3", "Hi")
    assert answered.returncode == 0, answered.stderr
    table = run("models", "ls", home=one.home, env=one.env).stdout
    assert re.search(r"^another .* loaded ", table, re.M), table
    removed = run("models", "rm", "another", home=one.home, env=one.env)
    assert removed.returncode == 0, removed.stderr


def test_sdk_uses_running_gateway_and_its_key(up: tuple[Up, str]) -> None:
    code = "import svc; c = svc.Client(); print(c.gateway_url); print([model.id for model in c.models()])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(up[0].home, up[0].env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    (gateway,) = re.findall(r"^gateway +(\S+)$", up[1], re.M)
    assert found.stdout.split()[0] == gateway
    assert "smollm2-135m" in found.stdout


def test_chat_reads_stdin_and_reports_token_limit(up: tuple[Up, str]) -> None:
    for more in ([], ["--no-stream"]):
        result = up[0].chat("--max-tokens", "3", "--system", "Be long.", *more, text="Tell me a story")
        assert result.returncode == 0
        assert result.stdout.strip()
        assert result.stderr.startswith("svc: the response reached the token limit")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--model", "nope", "hi"], 1, "nope"),
        (["--key", "wrong", "hi"], 1, "SVC_API_KEY"),
        (["--key", "ключ", "hi"], 2, "header"),
        (["--max-tokens", "0", "hi"], 2, "--max-tokens"),
        (["--url", "ftp://x/v1", "hi"], 2, "http://127.0.0.1:3000/v1"),
        (["--url", "http://127.0.0.1:99999/v1", "hi"], 2, "http://127.0.0.1:3000/v1"),
        (["--url", "http://127.0.0.1:9/v1", "hi"], 1, "svc up"),
        ([" "], 2, "no prompt"),
        ([], 2, "no prompt"),
    ],
)
def test_chat_error_prints_one_line(up: tuple[Up, str], arguments: list[str], status: int, message: str) -> None:
    result = up[0].chat(*arguments)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_chat_key_is_sent_only_to_its_gateway(up: tuple[Up, str]) -> None:
    result = up[0].chat("--url", re.findall(r"^registry +(\S+)$", up[1], re.M)[0], "hi")
    assert result.returncode == 1
    (gateway,) = re.findall(r"^gateway +(\S+)$", up[1], re.M)
    alias = gateway.replace("127.0.0.1", "localhost")
    error = f"svc: The gateway at {alias} needs an API key. Set one with --key or SVC_API_KEY.\n"
    assert up[0].chat("--url", alias, "hi").stderr == error
    assert "The API key is not valid. Set a valid one with --key" in up[0].chat("--key", "wrong", "hi").stderr


def read_until(terminal: int, wanted: str, timeout: float = 60) -> str:
    output = ""
    deadline = time.monotonic() + timeout
    while wanted not in output:
        assert time.monotonic() < deadline, output
        output += os.read(terminal, 4096).decode("utf-8", "replace")
    return output


def test_chat_in_terminal_continues_after_interrupt(up: tuple[Up, str]) -> None:
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [SVC, "chat", "--max-tokens", "2000"],
        env=environment(up[0].home, {**up[0].env, "TERM": "dumb"}),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    try:
        assert "smollm2-135m at http://127.0.0.1:" in read_until(terminal, "> ")
        os.write(terminal, b"Say hello.\n")
        assert len(read_until(terminal, "\n> ").split()) > 3
        os.write(terminal, b"Write a very long story about the sea, with many chapters.\n")
        read_until(terminal, "\r\n")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        read_until(terminal, "> ")
        os.write(terminal, b"\x04")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(5)
        os.close(terminal)


def test_chat_interrupted_exits_130(up: tuple[Up, str]) -> None:
    process = subprocess.Popen(
        [SVC, "chat", "Write a very long story."],
        env=environment(up[0].home, up[0].env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert b"Traceback" not in process.communicate()[1]


def test_up_port_in_use_exits_2(up: tuple[Up, str]) -> None:
    (port,) = re.findall(r"^gateway +\S+:(\d+)/v1$", up[1], re.M)
    for arguments in (["--port", port, "--registry-port", "0"], ["--port", "0", "--registry-port", port]):
        result = run("up", *arguments, home=up[0].home, env=up[0].env)
        assert result.returncode == 2
        assert port in result.stderr


def test_up_second_on_same_state_folder_exits_2(up: tuple[Up, str]) -> None:
    result = run("up", "--port", "0", "--registry-port", "0", home=up[0].home, env=up[0].env)
    assert (result.returncode, result.stdout) == (2, "")
    (gateway,) = re.findall(r"^gateway +(\S+)$", up[1], re.M)
    assert gateway in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_stopped_exits_0_and_keeps_key(
    model_home: Path, speech_model: None, tmp_path: Path, number: signal.Signals
) -> None:
    keys = []
    for _ in range(2):
        one = Up(tmp_path, model_home / "registry")
        keys.append(KEY.findall(one.read_announcement())[0])
        assert (tmp_path / "svc" / "gateway.json").exists()
        one.process.send_signal(number)
        assert one.process.wait(20) == 0
        assert not (tmp_path / "svc" / "gateway.json").exists()
    assert keys[0] == keys[1]


def test_up_invalid_key_file_exits_2(model_home: Path, tmp_path: Path) -> None:
    (tmp_path / "svc").mkdir()
    (tmp_path / "svc" / "api_key").write_text("oops\n")
    result = run("up", "--port", "0", home=tmp_path, env={"SVC_REGISTRY_ROOT": str(model_home / "registry")})
    assert result.returncode == 2
    assert "api_key" in result.stderr


def test_chat_without_gateway_names_up_command(tmp_path: Path) -> None:
    (tmp_path / "svc").mkdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "svc" / "gateway.json").write_text(json.dumps({"url": "http://127.0.0.1:1/v1", "pid": dead.pid}))
    result = run("chat", "--url", "http://127.0.0.1:9/v1", "hi", home=tmp_path)
    assert (result.returncode, "svc up" in result.stderr) == (1, True)
    result = run("chat", "hi", home=tmp_path)
    assert "http://127.0.0.1:1/v1" not in result.stderr
