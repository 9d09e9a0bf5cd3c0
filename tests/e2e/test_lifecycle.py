"""Start, failed start and stop of the command."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, SVC, Gateway, environment, run
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.ports import closed_port, closed_ports
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, body, end, hold, sse, stall


def ask(client: RawClient, *, stream: bool = True) -> None:
    body_fields = {"model": GPT, "messages": HI, "stream": stream}
    client.send(request_bytes("POST", "/v1/chat/completions", json.dumps(body_fields).encode(), key=KEY))


def refuses_connections(port: int, within: float = 3.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionError:
            return True
        time.sleep(0.01)
    return False


def test_start_is_ready_within_three_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    started = Gateway(tmp_path, env={}).start()
    took = time.monotonic() - began
    assert started.request("GET", "/health").status == 200
    assert started.stop() == 0
    assert took < 3, "the goal is 0.5 s on an idle machine"


def test_start_raises_soft_limit_of_open_files(tmp_path: Path) -> None:
    """Many systems set the soft limit to 1024, which allows 500 streams. The hard limit stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = len(list(Path("/proc/self/fd").iterdir()))  # descriptors of this process count until exec
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, own + 8), hard))
    try:
        started = Gateway(tmp_path, env={}).start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(started.raw()) for _ in range(150)]
        assert all(client.request("GET", "/health").status == 200 for client in clients)
    assert started.stop() == 0


@pytest.mark.parametrize("stream", [True, False])
def test_sigterm_completes_response_in_progress(
    start_gateway: StartGateway, provider_a: FakeProvider, stream: bool
) -> None:
    started = start_gateway()
    gate = Gate()
    if stream:
        first, *rest = openai_wire.stream("eins zwei drei")
        provider_a.plays(sse([first, rest[0]], end=hold(gate) + body(b"".join(rest[1:])) + end()))
    else:
        provider_a.plays(hold(gate) + answer(200, openai_wire.chat("eins zwei drei")))
    with started.raw() as client, started.raw() as idle:
        assert idle.request("GET", "/health").status == 200
        ask(client, stream=stream)
        gate.reached()
        started.send_sigterm()
        assert refuses_connections(started.port)
        assert idle.closed(), "an idle connection is closed at once"
        assert started.process.poll() is None
        gate.open()
        got = client.read()
        assert client.closed()
    text = text_of(complete_chunks(got.body)) if stream else got.json["choices"][0]["message"]["content"]
    assert text == "eins zwei drei"
    assert started.process.wait(5) == 0


def test_sigterm_drain_timeout_interrupts_stream_with_error(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    started = start_gateway(config="[gateway]\ndrain_timeout = 1\n")
    provider_a.plays(sse(openai_wire.stream("eins zwei")[:2], end=stall()))
    with started.raw() as client:
        ask(client)
        client.read_until(b"eins")
        began = time.monotonic()
        started.send_sigterm()
        got = client.read()
        assert time.monotonic() - began < 4
    assert got.status == 200
    chunks, _ = broken_stream(got.body)
    assert text_of(chunks) == "eins"
    assert started.process.wait(5) == 0
    provider_a.wait().wait_left(1)


def test_sigterm_without_requests_exits_within_two_seconds(start_gateway: StartGateway) -> None:
    started = start_gateway()
    with started.raw() as idle:
        assert idle.request("GET", "/health").status == 200
        began = time.monotonic()
        assert started.stop() == 0
    assert time.monotonic() - began < 2


def test_sigint_stops_gateway_without_traceback(start_gateway: StartGateway) -> None:
    started = start_gateway()
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(5) in (0, 130)
    assert "Traceback" not in started.log
    assert "KeyboardInterrupt" not in started.log


def test_sigint_twice_stops_without_drain(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway()
    provider_a.plays(stall())
    with started.raw() as client:
        ask(client)
        provider_a.wait()
        started.process.send_signal(signal.SIGINT)
        assert refuses_connections(started.port)
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(5) in (0, 130)
    assert "Traceback" not in started.log


def test_start_port_in_use_exits_with_one_line(start_gateway: StartGateway, tmp_path: Path) -> None:
    started = start_gateway()
    done = run("gateway", "--port", str(started.port), home=tmp_path, env={"SVC_API_KEYS": KEY})
    assert done.returncode in (1, 2)
    assert str(started.port) in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("[gateway]\nprot = 1\n", "prot"),
        ("[gatway]\nport = 1\n", "gatway"),
        ("[routing]\nretry = 1\n", "retry"),
        ('[[providers]]\nname = "x"\ndialect = "openai"\nbase = "http://x"\n', "base"),
        ('[gateway]\nport = "high"\n', "port"),
        ("[gateway]\nport = 70000\n", "port"),
        ("[gateway]\nidle_timeout = -1\n", "idle_timeout"),
        ("[gateway]\nidle_timeout = nan\n", "idle_timeout"),
        ("[gateway]\nmax_body = true\n", "max_body"),
        ("[routing]\nretries = 1.5\n", "retries"),
        ('[[providers]]\ndialect = "openai"\nbase_url = "http://x/v1"\n', "name"),
        ("[gateway\n", "line 1"),
        ("gateway = 3\n", "gateway"),
    ],
    ids=lambda value: value.replace("\n", " ")[:40],
)
def test_config_invalid_exits_2_and_names_mistake(tmp_path: Path, config: str, named: str) -> None:
    (tmp_path / "mine.toml").write_text(config)
    done = run("gateway", "--config", "mine.toml", home=tmp_path, env={"SVC_API_KEYS": KEY})
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "mine.toml" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("dialect", ["klingon", "flow", "base", "../openai"])
def test_config_unknown_dialect_exits_2(tmp_path: Path, dialect: str) -> None:
    (tmp_path / "svc.toml").write_text(
        f'[[providers]]\nname = "x"\ndialect = "{dialect}"\nbase_url = "http://x/v1"\napi_key_env = "HOME"\n'
    )
    done = run("gateway", "--port", "0", home=tmp_path, env={"SVC_API_KEYS": KEY})
    assert done.returncode == 2
    assert dialect in done.stderr
    assert "known: anthropic, openai." in done.stderr
    assert done.stderr.count("\n") == 1


def test_config_missing_file_exits_2(tmp_path: Path) -> None:
    done = run("gateway", "--config", "nowhere.toml", home=tmp_path)
    assert done.returncode == 2
    assert "nowhere.toml" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["gateway", "--port", "x"], ["gateway", "--port", "70000"], ["gateway", "--nope"], ["gatway"], []]
)
def test_command_invalid_arguments_exit_2(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, home=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_command_invalid_port_variable_exits_2(tmp_path: Path) -> None:
    done = run("gateway", home=tmp_path, env={"PORT": "many"})
    assert done.returncode == 2
    assert "PORT" in done.stderr


def started_with(home: Path, arguments: list[str], env: dict[str, str]) -> str:
    """Start the gateway and return the line with its address."""
    process = subprocess.Popen(
        [SVC, "gateway", *arguments], env=environment(home, env), cwd=home, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        return process.stdout.readline()
    finally:
        process.terminate()
        assert process.wait(5) == 0


def test_config_precedence_is_command_line_environment_file(tmp_path: Path) -> None:
    in_file, in_env, given = map(str, closed_ports(3))
    (tmp_path / "svc.toml").write_text(f"[gateway]\nport = {in_file}\n")
    assert f":{in_file}" in started_with(tmp_path, [], {})
    assert f":{in_env}" in started_with(tmp_path, [], {"PORT": in_env})
    assert f":{given}" in started_with(tmp_path, ["--port", given], {"PORT": in_env})


def test_config_file_in_state_folder_is_read(tmp_path: Path) -> None:
    port = closed_port()
    (tmp_path / "svc").mkdir()
    (tmp_path / "svc" / "svc.toml").write_text(f"[gateway]\nport = {port}\n")
    assert f":{port}" in started_with(tmp_path, [], {})


def test_config_additional_openai_provider_is_used(start_gateway: StartGateway, provider_c: FakeProvider) -> None:
    config = f"""
        [[providers]]
        name = "vllm"
        dialect = "openai"
        base_url = "{provider_c.address}/v1"
        api_key_env = "VLLM_API_KEY"
        models = [{{ id = "qwen3-32b", context_window = 32768, max_output_tokens = 8192 }}]
    """
    started = start_gateway(config=config, env={"VLLM_API_KEY": provider_c.key})
    listed = {row["id"]: row for row in started.request("GET", "/v1/models").json["data"]}
    assert len(listed) == 14
    assert (listed["qwen3-32b"]["owned_by"], listed["qwen3-32b"]["context_window"]) == ("vllm", 32768)
    got = started.chat("qwen3-32b")
    assert (got.status, got.headers["x-svc-provider"]) == (200, "vllm")
    assert provider_c.wait().json["model"] == "qwen3-32b"
    assert started.message("qwen3-32b").status == 200


def test_config_additional_anthropic_provider_is_used(start_gateway: StartGateway, provider_b: FakeProvider) -> None:
    config = f"""
        [[providers]]
        name = "mine"
        dialect = "anthropic"
        base_url = "{provider_b.address}"
        api_key_env = "MINE_API_KEY"
        models = [{{ id = "mine-1", max_output_tokens = 777 }}]
    """
    started = start_gateway(config=config, env={"MINE_API_KEY": provider_b.key})
    assert started.chat("mine-1").status == 200
    assert provider_b.wait().json["max_tokens"] == 777


def test_config_built_in_provider_is_overridden_by_name(start_gateway: StartGateway, provider_c: FakeProvider) -> None:
    config = f"""
        [[providers]]
        name = "openai"
        base_url = "{provider_c.address}/v1"
        api_key_env = "OTHER_KEY"
    """
    env = {"PROVIDER_A_BASE_URL": "", "PROVIDER_A_API_KEY": "", "OTHER_KEY": provider_c.key}
    started = start_gateway(config=config, env=env)
    assert started.chat(GPT).status == 200
    assert len(provider_c.requests) == 1


def test_config_fallbacks_are_used_for_server_errors_only(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.plays(
        answer(503, openai_wire.error()), answer(401, openai_wire.error()), answer(400, openai_wire.error())
    )
    for _ in range(2):
        got = started.chat(GPT)
        assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "anthropic", "2")
        assert got.json["model"] == CLAUDE
    assert started.chat(GPT).status == 400
    assert [seen.json["model"] for seen in provider_b.requests] == [CLAUDE, CLAUDE]


def test_config_fallback_is_used_for_provider_without_key(
    start_gateway: StartGateway, provider_b: FakeProvider
) -> None:
    config = f'[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
    started = start_gateway(config=config, env={"PROVIDER_A_API_KEY": ""})
    got = started.chat(GPT, stream=True)
    assert (got.status, got.headers["x-svc-provider"]) == (200, "anthropic")
    assert provider_b.wait().json["model"] == CLAUDE


def test_config_base_url_with_trailing_slash_is_accepted(
    start_gateway: StartGateway, fakes: dict[str, FakeProvider]
) -> None:
    env = {
        "PROVIDER_A_BASE_URL": f"{fakes['A'].address}/v1/",
        "PROVIDER_B_BASE_URL": f"{fakes['B'].address}/",
    }
    started = start_gateway(env=env)
    assert started.chat(GPT).status == 200
    assert started.chat(CLAUDE).status == 200


@pytest.mark.parametrize("address", ["nonsense", "ftp://x/v1", "http://", "http://x:99999/v1", "http://a b/v1"])
def test_config_invalid_base_url_exits_2_without_leaking_key(tmp_path: Path, address: str) -> None:
    env = {"PROVIDER_A_BASE_URL": address, "PROVIDER_A_API_KEY": "sk-secret-in-env"}
    done = run("gateway", "--port", "0", home=tmp_path, env=env)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "sk-secret-in-env" not in done.stderr


def test_process_command_line_has_no_keys(gateway: Gateway, fakes: dict[str, FakeProvider]) -> None:
    line = Path(f"/proc/{gateway.process.pid}/cmdline").read_bytes().decode()
    assert not [secret for secret in (KEY, *(fake.key for fake in fakes.values())) if secret in line]


def test_gateway_listens_on_loopback_only_by_default(gateway: Gateway) -> None:
    state = Path(f"/proc/{gateway.process.pid}/net/tcp").read_text()
    rows = [line.split() for line in state.splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{gateway.port:04X}")]
    assert listening == [f"0100007F:{gateway.port:04X}"]


def test_upstream_failures_leak_no_descriptors(gateway: Gateway, provider_a: FakeProvider) -> None:
    """The number of descriptors is the same after many interrupted responses."""

    def descriptors() -> int:
        return len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))

    def settled(most: int) -> bool:
        deadline = time.monotonic() + 3
        while descriptors() > most and time.monotonic() < deadline:
            time.sleep(0.02)
        return descriptors() <= most

    assert gateway.chat(stream=True).status == 200
    before = descriptors()
    for number in range(60):
        provider_a.plays(sse(openai_wire.stream()[: 2 + number % 3]))
        with gateway.raw() as client:
            ask(client)
            if number % 2:
                client.read()
    assert settled(before + 3)
