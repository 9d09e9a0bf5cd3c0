import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.certificate import certificate, context
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer

from svc.cli import _local_gateway, _probe, main
from svc.errors import UsageError
from svc.gateway.upstream.pool import default_ssl_context


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "home"))
    for name in (
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "PROVIDER_A_API_KEY",
        "PROVIDER_B_API_KEY",
        "SVC_API_KEYS",
        "SVC_REDIS_URL",
        "PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_doctor_fresh_machine_exits_0_and_suggests_fixes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = findings(capsys)
    assert found["provider openai"]["mend"] == "set OPENAI_API_KEY"
    assert found["model smollm2-135m"]["state"] == "off"
    assert found["state folder"]["state"] == "ok"


def test_doctor_provider_is_probed_and_key_is_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-very-secret")
    with FakeProvider(OpenAIWire(), key="sk-very-secret") as fake:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{fake.address}/v1")
        assert main(["doctor"]) == 0
        assert "7 models, reachable\n" in (text := capsys.readouterr().out)
        assert [(seen.method, seen.path) for seen in fake.requests] == [("GET", "/v1/models")]
        assert fake.complaints == []
        fake.plays(answer(404), answer(403))
        states = [_provider(capsys) for _ in range(2)]
        monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-another")
        states.append(_provider(capsys))
    assert states == [
        ("ok", "7 models, reachable, returns HTTP 404 to GET /v1/models"),
        ("off", "7 models, reachable, returns HTTP 403 to GET /v1/models"),
        ("bad", "7 models, reachable, returns HTTP 401 to GET /v1/models"),
    ]
    assert "secret" not in text
    assert _provider(capsys) == ("bad", "7 models, not reachable: Connection refused")


def _provider(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    status = main(["doctor", "--json"])
    found = findings(capsys)["provider openai"]
    assert status == (found["state"] == "bad")
    return found["state"], found["says"]


@pytest.mark.parametrize(
    ("letter", "path", "status", "mend"),
    [
        ("A", "", 404, "its base_url has no /v1, which most servers need, as in http://10.0.0.5:8000/v1"),
        ("A", "", 200, ""),
        ("A", "/v1", 404, ""),
        ("A", "/api/paas/v4", 404, ""),
        ("B", "/v1", 404, "its base_url contains /v1, which each request adds: remove it"),
        ("B", "", 404, ""),
    ],
)
def test_doctor_base_url_with_wrong_version_path_gives_hint(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    letter: str,
    path: str,
    status: int,
    mend: str,
) -> None:
    monkeypatch.setenv(f"PROVIDER_{letter}_API_KEY", "sk-1")
    with raw_server(f"HTTP/1.1 {status} Some\r\ncontent-length: 0\r\n\r\n".encode()) as port:
        monkeypatch.setenv(f"PROVIDER_{letter}_BASE_URL", f"http://127.0.0.1:{port}{path}")
        assert main(["doctor", "--json"]) == 0
    found = findings(capsys)["provider openai" if letter == "A" else "provider anthropic"]
    assert (found["state"], found["mend"]) == ("ok", mend)


@pytest.mark.parametrize(
    ("scheme", "data", "expected_text"),
    [
        ("http", b"", "it accepts the connection, but sends no response within 0.5 s"),
        ("http", b"SSH-2.0-OpenSSH_9.2\r\n", "the response is not HTTP"),
        ("http", b"HTTP/1.1 000 Nothing\r\n\r\n", "the response is not HTTP"),
        ("http", b"HTTP/1.1 099 Less\r\n\r\n", "the response is not HTTP"),
        ("http", b"\x15\x03\x03\x00\x02\x02\x32", "the server requires TLS: its address must begin with https://"),
        ("http", None, "the server closed the connection without a response"),
        ("http", b"HTTP/1.1 103 Early Hints\r\n\r\n", "it accepts the connection, but sends no response within 0.5 s"),
        ("http", b"HTTP/1.1 100 Continue\r\n\r\nSSH-2.0-OpenSSH_9.2\r\n", "the response is not HTTP"),
        ("http", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000, "it sends too many interim (1xx) responses"),
        ("http", b"HTTP/1.1 103 Early Hints\r\n" + b"a: b\r\n" * 20_000, "it sends too many interim (1xx) responses"),
        ("https", b"", "it accepts the connection, but does not finish the TLS handshake within 0.5 s"),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "for plaintext HTTP use http://"),
        ("https", None, "the server closed the connection during the TLS handshake"),
    ],
)
def test_doctor_server_that_is_no_provider_is_reported_with_reason(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    data: bytes | None,
    expected_text: str,
) -> None:
    """`data=None` closes the connection."""
    monkeypatch.setattr(_probe, "PROBE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    with raw_server(data) as port:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{scheme}://127.0.0.1:{port}/v1")
        state, says = _provider(capsys)
    assert state == "bad"
    assert expected_text in says


@pytest.mark.parametrize(
    "interim",
    [
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 102\r\n\r\n" * 5,
    ],
)
@pytest.mark.parametrize("every", [0.0, 0.001])
def test_doctor_interim_response_is_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, interim: bytes, every: float
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    for status, says in (("200 OK", ""), ("401 Unauthorized", ", returns HTTP 401 to GET /v1/models")):
        final = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode()
        with raw_server(interim + final, every=every) as port:
            monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{port}/v1")
            assert _provider(capsys) == ("bad" if says else "ok", f"7 models, reachable{says}")


def test_doctor_slow_interim_responses_time_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "PROBE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    with raw_server(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10, every=0.1) as port:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{port}/v1")
        started_at = time.monotonic()
        assert "sends no response within 0.5 s" in _provider(capsys)[1]
    assert time.monotonic() - started_at < 5


def test_doctor_slow_tls_handshake_times_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "PROBE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    with raw_server(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc" + bytes(100), every=0.1) as port:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"https://127.0.0.1:{port}/v1")
        started_at = time.monotonic()
        assert "does not finish the TLS handshake" in _provider(capsys)[1]
    assert time.monotonic() - started_at < 5


@contextlib.contextmanager
def raw_server(data: bytes | None, every: float = 0.0) -> Iterator[int]:
    """Run a server that sends `data` on its first connection, one byte per `every` seconds, and yield its port.

    With `data=None` it closes the connection instead.
    """
    done = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError), server.accept()[0] as one:
            one.recv(65536)
            if data is None:
                return
            for at in range(len(data)) if every else ():
                one.sendall(data[at : at + 1])
                done.wait(every)
            one.sendall(b"" if every else data)
            done.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            thread.join()


def test_doctor_provider_or_account_without_key_is_reported(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "svc.toml").write_text(
        '[[providers]]\nname = "vendor"\nbase_url = "http://127.0.0.1:1/v1"\napi_key_env = "VENDOR_KEY"\n'
        'accounts = [{ api_key_env = "OTHER_KEY" }]\n'
    )
    monkeypatch.delenv("OTHER_KEY", raising=False)
    monkeypatch.delenv("VENDOR_KEY", raising=False)
    main(["doctor"])
    output = capsys.readouterr().out
    assert "has no key, so its models are not available" in output
    assert "set VENDOR_KEY" in output
    monkeypatch.setenv("VENDOR_KEY", "sk-1")
    main(["doctor"])
    output = capsys.readouterr().out
    assert "an account has no key" in output
    assert "set OTHER_KEY" in output
    assert "set VENDOR_KEY" not in output


def test_doctor_provider_without_models_is_off_and_not_probed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{closed_port()}/v1")
    (home / "svc.toml").write_text("[[providers]]\nname = 'openai'\nmodels = []\n")
    assert main(["doctor", "--json"]) == 0
    found = findings(capsys)["provider openai"]
    assert (found["state"], found["says"]) == ("off", "has no models, so it gets no requests")


def test_doctor_model_of_two_providers_reports_order(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "k")
    monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{closed_port()}/v1")
    entry = f'name = "mine"\nbase_url = "http://127.0.0.1:{closed_port()}/v1"\nmodels = [{{ id = "gpt-4o" }}]\n'
    (home / "svc.toml").write_text(f"[[providers]]\n{entry}")
    main(["doctor"])
    assert "its gpt-4o is tried after openai, which has a model with that name" in capsys.readouterr().out
    (home / "svc.toml").write_text(f'[routing.strategies]\n"gpt-4o" = "least_busy"\n[[providers]]\n{entry}')
    main(["doctor"])
    assert "shares the requests for gpt-4o with openai (strategy least_busy)" in capsys.readouterr().out


def test_doctor_invalid_configuration_exits_1_and_names_field(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    (home / "svc.toml").write_text("[gateway]\nprot = 1")
    assert main(["doctor"]) == 1
    assert "prot" in capsys.readouterr().out


def test_doctor_port_in_use_is_reported_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PORT", str(server.getsockname()[1]))
        assert main(["doctor", "--json"]) == 0
    assert findings(capsys)["gateway port"]["state"] == "off"


def test_doctor_running_gateway_is_reported_with_url(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main(["doctor", "--json"]) == 0
    assert findings(capsys)["svc up"]["state"] == "off"
    with _local_gateway.hold_up_lock(home / "home"):
        _local_gateway.write_gateway_record(home / "home", "http://127.0.0.1:5/v1")
        assert main(["doctor", "--json"]) == 0
    found = findings(capsys)["svc up"]
    assert (found["state"], found["says"]) == ("ok", "runs at http://127.0.0.1:5/v1")


def test_doctor_unusable_redis_url_is_bad_and_hides_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (f"redis://:s3cret@127.0.0.1:{closed_port()}/0", "unix:///nowhere", "nonsense"):
        monkeypatch.setenv("SVC_REDIS_URL", url)
        assert main(["doctor", "--json"]) == 1
        found = findings(capsys)["redis"]
        assert found["state"] == "bad"
        assert "s3cret" not in str(found)


def test_doctor_provider_with_tls_reports_certificate_errors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-fake")
    file = certificate(tmp_path, "localhost")
    with FakeProvider(OpenAIWire(), tls=context(file)) as fake, socket.create_server(("127.0.0.1", 0)) as silent:
        for trusted, address, expected_text in (
            (str(file), fake.address, "reachable"),
            (
                str(file),
                fake.address.replace("localhost", "127.0.0.1"),
                "certificate is not trusted: IP address mismatch",
            ),
            ("", fake.address, "is not trusted: self-signed"),
            (str(file), f"https://localhost:{silent.getsockname()[1]}", "does not finish the TLS handshake within 3 s"),
        ):
            monkeypatch.setenv("SSL_CERT_FILE", trusted)
            monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{address}/v1")
            main(["doctor", "--json"])
            finding = findings(capsys)["provider openai"]
            assert finding["state"] == ("ok" if expected_text == "reachable" else "bad")
            assert expected_text in finding["says"]
        for missing in (tmp_path / "none.pem", tmp_path):
            monkeypatch.setenv("SSL_CERT_FILE", str(missing))
            assert main(["doctor", "--json"]) == 1
            assert str(missing) in findings(capsys)["certificates"]["says"]
            with pytest.raises(UsageError, match="SSL_CERT_FILE"):
                default_ssl_context()


def test_doctor_providers_are_probed_at_the_same_time(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    def respond_to_two(listener: socket.socket) -> None:
        for connection in [listener.accept()[0] for _ in range(2)]:
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=respond_to_two, args=(listener,), daemon=True)
        thread.start()
        entry = f'base_url = "http://127.0.0.1:{listener.getsockname()[1]}/v1"\nmodels = [{{ id = "m" }}]\n'
        names = ("one", "two")
        (home / "svc.toml").write_text("".join(f'[[providers]]\nname = "{name}"\n{entry}' for name in names))
        main(["doctor", "--json"])
    found = findings(capsys)
    assert [found[f"provider {name}"]["says"] for name in names] == ["1 model, reachable"] * 2


def test_doctor_aliases_are_reported_with_their_models(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "svc.toml").write_text('[[aliases]]\nname = "fast"\nmodel = "gpt-4o-mini"\n')
    main(["doctor", "--json"])
    alias = findings(capsys)["alias fast"]
    assert alias["state"] == "off"
    assert "gpt-4o-mini is not available: the provider openai has no API key" in alias["says"]


def test_doctor_state_folder_that_cannot_be_created_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("SVC_HOME", str(file / "home"))
    main(["doctor", "--json"])
    assert findings(capsys)["state folder"]["says"] == f"{file}/home cannot be created, because {file} is not a folder"


def test_doctor_state_folder_of_another_user_is_reported() -> None:
    drop = "import os; os.geteuid() or (os.setgid(65534), os.setuid(65534))"
    script = f"{drop}; import sys; from svc.cli import main; sys.exit(main(['doctor', '--json', *sys.argv[1:]]))"
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is only for its owner
        os.chmod(folder, 0o755)
        home = Path(folder) / "home"
        home.mkdir(mode=0o700 if os.geteuid() == 0 else 0)
        config = Path(folder) / "other.toml"
        config.touch()
        for arguments in ([], ["--config", str(config)]):
            command = [sys.executable, "-c", script, *arguments]
            environment = {"SVC_HOME": str(home), "PATH": os.environ["PATH"]}
            done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
            found = {finding["what"]: finding for finding in json.loads(done.stdout)}
            assert found["state folder"]["says"] == f"{home} is not accessible to this user"
            assert found["settings"]["state"] == ("ok" if arguments else "bad")
    assert found["model smollm2-135m"]["says"] == f"{home}/models cannot be read: Permission denied"
    assert found["database"]["state"] == "bad"
