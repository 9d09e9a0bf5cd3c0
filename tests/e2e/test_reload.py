"""SIGHUP reloads the configuration and the providers' keys without interrupting requests or streams."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import signal
import subprocess
import termios
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.accounts.test_keys import until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, KEY, SVC, Gateway, environment, run
from tests.e2e.reading import complete_chunks, text_of
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, body, end, hold, sse
from tests.soak.clients import Clients

RELOADED = "reloaded the configuration"
ENDED = (0, 120)
"""Exit statuses. 120: Python could not flush standard output to a closed terminal."""


def reload(gateway: Gateway, expected: str = RELOADED) -> None:
    """Send SIGHUP and wait for a log line."""
    before = gateway.log.count(expected)
    gateway.process.send_signal(signal.SIGHUP)
    until(lambda: gateway.log.count(expected) > before, 20)


def write(gateway: Gateway, text: str) -> None:
    (gateway.home / "given.toml").write_text(text, encoding="utf-8")


def test_reload_under_load_interrupts_no_request_or_stream(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config="")
    pid = gateway.process.pid
    gate = Gate()
    first, *rest = openai_wire.stream("eins zwei drei")
    provider_a.plays(sse([first, rest[0]], end=hold(gate) + body(b"".join(rest[1:])) + end()))
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(gateway.chat(stream=True).body))
    reader.start()
    gate.reached()
    with Clients([gateway.port], KEY, 4, streams=0.5, keep=True) as clients:
        for number in range(3):
            write(gateway, f"[limits]\nrpm = {100000 + number}\n")
            reload(gateway)
        time.sleep(0.2)
    gate.open()
    reader.join(10)
    assert text_of(complete_chunks(got[0])) == "eins zwei drei"
    assert set(clients.statuses()) == {200}
    assert clients.lost == 0, "a persistent connection stays open"
    assert gateway.process.pid == pid
    assert gateway.process.poll() is None
    assert gateway.chat().headers["x-ratelimit-limit-requests"] == "100002"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_reload_included_files_and_key_file_under_load_fails_no_request(
    start_gateway: StartGateway, provider_a: FakeProvider, tmp_path: Path, workers: int
) -> None:
    key_file, limits = tmp_path / "key", tmp_path / "limits.toml"
    key_file.write_text(provider_a.key)
    limits.write_text("[limits]\nrpm = 100000\n")
    config = f'include = ["${{LIMITS}}"]\n[gateway]\nworkers = {workers}\n'
    variables = {"LIMITS": str(limits), "PROVIDER_A_API_KEY": "", "PROVIDER_A_API_KEY_FILE": str(key_file)}
    gateway = start_gateway(config=config, env=variables)
    with Clients([gateway.port], KEY, 4, streams=0.5, keep=False) as clients:
        for number in range(1, 3):
            limits.write_text(f"[limits]\nrpm = {100000 + number}\n")
            key_file.write_text(f"\n{provider_a.key}\r\n")
            answered = len(clients.answers)
            reload(gateway)
            expected = f"{100000 + number}"
            until(lambda: _rate_limits(gateway, workers) == {expected}, 60)  # noqa: B023 called at once
            until(lambda: len(clients.answers) > answered + 20, 30)  # noqa: B023
    assert set(clients.statuses()) == {200}
    assert clients.lost == 0
    limits.write_text("[limits]\nrpm = = 1\n")
    gateway.process.send_signal(signal.SIGHUP)
    until(lambda: f"{limits} is not valid TOML" in gateway.log, 30)
    assert _rate_limits(gateway, workers) == {"100002"}


def _rate_limits(gateway: Gateway, workers: int) -> set[str]:
    """Return the limits that requests on several new connections are told."""
    return {gateway.chat().headers["x-ratelimit-limit-requests"] for _ in range(4 * workers)}


@pytest.mark.parametrize("workers", [1, 2])
def test_reload_rereads_provider_key_file(
    start_gateway: StartGateway, provider_a: FakeProvider, tmp_path: Path, workers: int
) -> None:
    provider, file = provider_a, tmp_path / "key"
    file.write_text(f"{provider.key}\n")
    env = {"PROVIDER_A_API_KEY": "", "PROVIDER_A_API_KEY_FILE": str(file)}
    gateway = start_gateway(config=f"[gateway]\nworkers = {workers}\ndrain_timeout = 2\n", env=env)
    assert gateway.chat().status == 200
    old, provider.key = provider.key, "sk-rotated-key"
    try:
        file.write_text("sk-rotated-key\n")
        reload(gateway)
        # With several workers, those with the old key accept requests until they receive SIGTERM.
        until(lambda: {gateway.chat().status for _ in range(6)} == {200}, 20)
    finally:
        provider.key = old
        provider.complaints.clear()
    assert "sk-rotated-key" not in gateway.log


def test_reload_changes_models_fallbacks_and_routes(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    gateway = start_gateway(config="[routing]\nretries = 0\nbreaker = false\n")
    provider_a.plays(answer(503, openai_wire.error()))
    assert gateway.chat().status == 502
    write(
        gateway,
        f"""
        [gateway]
        cors_origins = ["https://app.example"]
        max_body = 0.001
        [routing]
        retries = 0
        breaker = false
        [routing.fallbacks]
        "{GPT}" = ["{CLAUDE}"]
        [[providers]]
        name = "more"
        base_url = "{provider_a.address}/v1"
        api_key_env = "PROVIDER_A_API_KEY"
        models = [{{ id = "new-model", upstream_id = "{GPT}" }}]
        [cache]
        enabled = true
        """,
    )
    reload(gateway)
    provider_a.plays(answer(503, openai_wire.error()))
    got = gateway.chat()
    assert (got.status, got.headers["x-svc-provider"]) == (200, "anthropic")
    assert gateway.chat("new-model").headers["x-svc-provider"] == "more"
    listed = gateway.request("GET", "/v1/models", headers={"origin": "https://app.example"})
    assert "new-model" in [row["id"] for row in listed.json["data"]]
    assert listed.headers["access-control-allow-origin"] == "https://app.example"
    assert gateway.chat(padding="x" * 4000).status == 413
    write(gateway, "")
    reload(gateway)
    assert gateway.chat("new-model").status == 404
    assert (
        "access-control-allow-origin"
        not in gateway.request("GET", "/v1/models", headers={"origin": "https://app.example"}).headers
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("[gateway]\nwrokers = 3\n", "unknown key `wrokers`"),
        ("[gateway\n", "is not valid TOML"),
        (f"x = {'[' * 5000}", "is not valid TOML"),
        ('[[providers]]\nname = "x"\nbase_url = "http://x/v1"\napi_key_file = "/nowhere/key"\n', "/nowhere/key cannot"),
    ],
)
def test_reload_invalid_file_keeps_running_configuration(
    start_gateway: StartGateway, workers: int, broken: str, reason: str
) -> None:
    head = f"[gateway]\nworkers = {workers}\ndrain_timeout = 2\n"
    gateway = start_gateway(config=f"{head}[limits]\nrpm = 1000\n")
    write(gateway, broken)
    reload(gateway, "was not reloaded, the ")
    gateway.logged(reason, timeout=20)
    assert gateway.chat().headers["x-ratelimit-limit-requests"] == "1000"


@pytest.mark.parametrize("workers", [1, 2])
def test_reload_missing_file_keeps_running_configuration(tmp_path: Path, workers: int) -> None:
    gateway = Gateway(tmp_path, env={})
    (tmp_path / "svc.toml").write_text(f"[gateway]\nworkers = {workers}\n")
    gateway.start()
    try:
        (tmp_path / "svc.toml").unlink()
        reload(gateway, "was not reloaded, the ")
        gateway.logged("svc.toml no longer exists", timeout=20)
    finally:
        assert gateway.stop() == 0


def test_reload_changed_worker_count_is_logged_by_supervisor(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="[gateway]\nworkers = 2\ndrain_timeout = 2\n")
    write(gateway, "[gateway]\nworkers = 3\ndrain_timeout = 2\n")
    reload(gateway)
    gateway.logged("only after a restart: [gateway] workers")


def test_reload_change_that_requires_restart_is_logged(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="")
    write(gateway, "[gateway]\nworkers = 3\n[speech]\nmax_sessions = 3\n")
    reload(gateway)
    gateway.logged("only after a restart: [gateway] workers, [speech] max_sessions")


def test_reload_pending_restart_is_logged_at_each_reload(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config="")
    write(gateway, "[gateway]\nhost = '0.0.0.0'\n")
    for count in (1, 2):
        reload(gateway)
        until(lambda count=count: gateway.log.count("only after a restart: [gateway] host") == count, 20)  # type: ignore[misc]
    refused = gateway.request("GET", "/", headers={"host": "rebound.example"}, key=None)
    assert refused.status == 421, "the gateway still listens on a loopback address"


def test_sighup_during_start_reloads_gateway(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, env={})
    gateway.launch()
    try:
        until(lambda: (tmp_path / "svc" / "gateway.lock").exists(), 20)
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: gateway.printed_port() > 0, 20)
        gateway.logged(RELOADED)
    finally:
        assert gateway.stop() == 0


def on_a_terminal(home: Path, sighup: signal.Handlers = signal.SIG_DFL) -> tuple[subprocess.Popen[bytes], int]:
    """Start the gateway on a pseudoterminal and return the process and the controlling side.

    `sighup` is how the program treats SIGHUP when it starts. The tests themselves may run under nohup.
    """
    controller, terminal = pty.openpty()

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, sighup)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [SVC, "gateway", "--port", "0"],
        env=environment(home, {"SVC_API_KEYS": KEY}),
        cwd=home,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    output = b""
    while b"gateway  http" not in output:
        output += os.read(controller, 4096)
    return process, controller


def test_terminal_closed_stops_gateway(tmp_path: Path) -> None:
    process, terminal = on_a_terminal(tmp_path)
    process.send_signal(signal.SIGHUP)  # the terminal is open: SIGHUP means reload
    output = b""
    while RELOADED.encode() not in output:
        output += os.read(terminal, 4096)
    os.close(terminal)
    assert process.wait(60) in ENDED


def test_sighup_on_terminal_without_free_descriptor_keeps_gateway(tmp_path: Path) -> None:
    process, terminal = on_a_terminal(tmp_path)
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, hard))
    process.send_signal(signal.SIGHUP)
    output = b""
    while b"reloaded" not in output:  # or "not reloaded": either shows that the gateway continues
        output += os.read(terminal, 4096)
    assert process.poll() is None
    os.close(terminal)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in ENDED


def test_terminal_closed_under_nohup_keeps_gateway(tmp_path: Path) -> None:
    process, terminal = on_a_terminal(tmp_path, signal.SIG_IGN)
    os.close(terminal)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
    finally:
        process.terminate()
        assert process.wait(60) in ENDED


@pytest.mark.parametrize("workers", [1, 2])
def test_start_without_provider_logs_variables_to_set(tmp_path: Path, workers: int) -> None:
    config = f'[gateway]\nworkers = {workers}\n[[providers]]\nname = "mine"\nbase_url = "http://x/v1"\n' + (
        'api_key_env = "MINE_API_KEY"\nmodels = [{ id = "m" }]\n'
    )
    gateway = Gateway(tmp_path, env={}, config=config).start()
    output = gateway.log
    assert gateway.stop() == 0
    assert output.count("No provider is available") == 1
    assert "MINE_API_KEY for mine" in output
    assert "OPENAI_API_KEY, ANTHROPIC_API_KEY, GROQ_API_KEY" in output


def test_start_with_provider_logs_no_missing_provider_warning(gateway: Gateway) -> None:
    assert "No provider is available" not in gateway.log


@pytest.mark.parametrize(("content", "reason"), [(None, "cannot be read"), ("  \n", "contains no key")])
def test_key_file_invalid_at_start_exits_2(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    done = run("gateway", "--port", "0", home=tmp_path, env={"PROVIDER_A_API_KEY_FILE": str(file)})
    assert done.returncode == 2
    assert f"PROVIDER_A_API_KEY_FILE: {file} {reason}" in done.stderr
