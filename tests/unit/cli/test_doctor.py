import contextlib
import json
import socket
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


def test_a_fresh_machine_lacks_nothing_that_cannot_be_added(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = findings(capsys)
    assert found["provider openai"]["mend"] == "set PROVIDER_A_API_KEY"
    assert found["model smollm2-135m"]["state"] == "off"
    assert found["state folder"]["state"] == "ok"


def test_a_provider_is_asked_and_its_key_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-very-secret")
    with FakeProvider(OpenAIWire(), key="sk-very-secret") as fake:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{fake.address}/v1")
        assert main(["doctor"]) == 0
        assert "5 models, reachable\n" in (text := capsys.readouterr().out)
        assert [(seen.method, seen.path) for seen in fake.requests] == [("GET", "/v1/models")]
        assert fake.complaints == []
        fake.plays(answer(404), answer(403))
        said = [_provider(capsys) for _ in range(2)]
        monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-another")
        said.append(_provider(capsys))
    assert said == [
        ("ok", "5 models, reachable, returns HTTP 404 to GET /v1/models"),
        ("off", "5 models, reachable, returns HTTP 403 to GET /v1/models"),
        ("bad", "5 models, reachable, returns HTTP 401 to GET /v1/models"),
    ]
    assert "secret" not in text
    assert _provider(capsys) == ("bad", "5 models, not reachable: Connection refused")


def _provider(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    status = main(["doctor", "--json"])
    found = findings(capsys)["provider openai"]
    assert status == (found["state"] == "bad")
    return found["state"], found["says"]


@pytest.mark.parametrize(
    ("letter", "path", "status", "mend"),
    [
        ("A", "", 404, "its base_url has no /v1; most servers want it, as in http://10.0.0.5:8000/v1"),
        ("A", "", 200, ""),
        ("A", "/v1", 404, ""),
        ("A", "/api/paas/v4", 404, ""),
        ("B", "/v1", 404, "its base_url has /v1 in it, which each request adds: leave it off"),
        ("B", "", 404, ""),
    ],
)
def test_a_version_that_seems_missing_or_too_much_in_an_address(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    letter: str,
    path: str,
    status: int,
    mend: str,
) -> None:
    monkeypatch.setenv(f"PROVIDER_{letter}_API_KEY", "sk-1")
    with _sayer(f"HTTP/1.1 {status} Some\r\ncontent-length: 0\r\n\r\n".encode()) as port:
        monkeypatch.setenv(f"PROVIDER_{letter}_BASE_URL", f"http://127.0.0.1:{port}{path}")
        assert main(["doctor", "--json"]) == 0
    found = findings(capsys)["provider openai" if letter == "A" else "provider anthropic"]
    assert (found["state"], found["mend"]) == ("ok", mend)


@pytest.mark.parametrize(
    ("scheme", "said", "words"),
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
def test_what_is_no_provider_is_told_plainly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, scheme: str, said: bytes | None, words: str
) -> None:
    """None is the end of the connection."""
    monkeypatch.setattr(_probe, "PROBE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    with _sayer(said) as port:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"{scheme}://127.0.0.1:{port}/v1")
        state, says = _provider(capsys)
    assert state == "bad"
    assert words in says


@pytest.mark.parametrize(
    "interim",
    [
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 102\r\n\r\n" * 5,
    ],
)
@pytest.mark.parametrize("every", [0.0, 0.001])
def test_an_interim_answer_is_not_taken_for_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, interim: bytes, every: float
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    for status, says in (("200 OK", ""), ("401 Unauthorized", ", returns HTTP 401 to GET /v1/models")):
        final = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode()
        with _sayer(interim + final, every=every) as port:
            monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{port}/v1")
            assert _provider(capsys) == ("bad" if says else "ok", f"5 models, reachable{says}")


def test_interim_answers_that_drip_do_not_hold_it_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "PROBE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    with _sayer(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10, every=0.1) as port:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{port}/v1")
        began = time.monotonic()
        assert "sends no response within 0.5 s" in _provider(capsys)[1]
    assert time.monotonic() - began < 5


def test_a_handshake_that_drips_does_not_hold_it_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "PROBE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    with _sayer(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc" + bytes(100), every=0.1) as port:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"https://127.0.0.1:{port}/v1")
        began = time.monotonic()
        assert "does not finish the TLS handshake" in _provider(capsys)[1]
    assert time.monotonic() - began < 5


@contextlib.contextmanager
def _sayer(said: bytes | None, every: float = 0.0) -> Iterator[int]:
    """A server that reads, and says this on its first connection, with a byte every so many seconds; its port."""
    done = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError), server.accept()[0] as one:
            one.recv(65536)
            if said is None:
                return
            for at in range(len(said)) if every else ():
                one.sendall(said[at : at + 1])
                done.wait(every)
            one.sendall(b"" if every else said)
            done.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            thread.join()


def test_what_has_no_key_is_named(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "svc.toml").write_text(
        '[[providers]]\nname = "vendor"\nbase_url = "http://127.0.0.1:1/v1"\napi_key_env = "VENDOR_KEY"\n'
        'accounts = [{ api_key_env = "OTHER_KEY" }]\n'
    )
    monkeypatch.delenv("OTHER_KEY", raising=False)
    monkeypatch.delenv("VENDOR_KEY", raising=False)
    main(["doctor"])
    said = capsys.readouterr().out
    assert "has no key, so it is not offered" in said
    assert "set VENDOR_KEY" in said
    monkeypatch.setenv("VENDOR_KEY", "sk-1")
    main(["doctor"])
    said = capsys.readouterr().out
    assert "an account has no key" in said
    assert "set OTHER_KEY" in said
    assert "set VENDOR_KEY" not in said


def test_a_model_that_another_provider_has_is_named(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "k")
    monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{closed_port()}/v1")
    entry = f'name = "mine"\nbase_url = "http://127.0.0.1:{closed_port()}/v1"\nmodels = [{{ id = "gpt-4o" }}]\n'
    (home / "svc.toml").write_text(f"[[providers]]\n{entry}")
    main(["doctor"])
    assert "its gpt-4o is tried after openai, which has a model of that name" in capsys.readouterr().out


def test_a_broken_file_is_named(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    (home / "svc.toml").write_text("[gateway]\nprot = 1")
    assert main(["doctor"]) == 1
    assert "prot" in capsys.readouterr().out


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PORT", str(server.getsockname()[1]))
        assert main(["doctor", "--json"]) == 0
    assert findings(capsys)["gateway port"]["state"] == "off"


def test_a_running_svc_up_is_noticed(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main(["doctor", "--json"]) == 0
    assert findings(capsys)["svc up"]["state"] == "off"
    with _local_gateway.hold_up_lock(home / "home"):
        _local_gateway.write_gateway_record(home / "home", "http://127.0.0.1:5/v1")
        assert main(["doctor", "--json"]) == 0
    found = findings(capsys)["svc up"]
    assert (found["state"], found["says"]) == ("ok", "runs at http://127.0.0.1:5/v1")


def test_redis(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (f"redis://:s3cret@127.0.0.1:{closed_port()}/0", "unix:///nowhere", "nonsense"):
        monkeypatch.setenv("SVC_REDIS_URL", url)
        assert main(["doctor", "--json"]) == 1
        found = findings(capsys)["redis"]
        assert found["state"] == "bad"
        assert "s3cret" not in str(found)


def test_a_provider_behind_tls_must_be_trusted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-fake")
    file = certificate(tmp_path, "localhost")
    with FakeProvider(OpenAIWire(), tls=context(file)) as fake, socket.create_server(("127.0.0.1", 0)) as silent:
        for trusted, address, said in (
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
            assert finding["state"] == ("ok" if said == "reachable" else "bad")
            assert said in finding["says"]
        for nothing in (tmp_path / "none.pem", tmp_path):
            monkeypatch.setenv("SSL_CERT_FILE", str(nothing))
            assert main(["doctor", "--json"]) == 1
            assert str(nothing) in findings(capsys)["certificates"]["says"]
            with pytest.raises(UsageError, match="SSL_CERT_FILE"):
                default_ssl_context()
