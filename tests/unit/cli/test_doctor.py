import json
import socket
from pathlib import Path

import pytest
from tests.fakes.certificate import certificate, context
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider

from svc.cli import _running, main
from svc.errors import UsageError
from svc.gateway.upstream import default_tls


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "home"))
    for name in ("OPENAI_API_KEY", "PROVIDER_A_API_KEY", "SVC_API_KEYS", "SVC_REDIS_URL", "PORT"):
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


def test_a_provider_is_reached_and_its_key_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-very-secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PROVIDER_A_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        assert main(["doctor"]) == 0
        assert "reachable" in (text := capsys.readouterr().out)
    assert "sk-very-secret" not in text
    assert main(["doctor", "--json"]) == 1
    assert findings(capsys)["provider openai"]["state"] == "bad"


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
    assert "its gpt-4o is not used: openai has one of that name" in capsys.readouterr().out


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
    with _running.alone(home / "home"):
        _running.remember(home / "home", "http://127.0.0.1:5/v1")
        assert main(["doctor", "--json"]) == 0
    found = findings(capsys)["svc up"]
    assert (found["state"], found["says"]) == ("ok", "runs at http://127.0.0.1:5/v1")


def test_redis(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("SVC_REDIS_URL", f"redis://:s3cret@127.0.0.1:{server.getsockname()[1]}/0")
        assert main(["doctor", "--json"]) == 0
        assert findings(capsys)["redis"]["state"] == "ok"
    for url in (f"redis://:s3cret@127.0.0.1:{closed_port()}/0", "unix:///nowhere", "nonsense"):
        monkeypatch.setenv("SVC_REDIS_URL", url)
        assert main(["doctor", "--json"]) == 1
        found = findings(capsys)["redis"]
        assert found["state"] == "bad"
        assert "s3cret" not in str(found)


def test_a_provider_behind_tls_must_be_trusted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-1")
    file = certificate(tmp_path, "localhost")
    with FakeProvider(OpenAIWire(), tls=context(file)) as fake, socket.create_server(("127.0.0.1", 0)) as silent:
        for trusted, address, said in (
            (str(file), fake.address, "reachable"),
            (str(file), fake.address.replace("localhost", "127.0.0.1"), "certificate is refused: IP address mismatch"),
            ("", fake.address, "certificate is refused: self-signed"),
            (str(file), f"https://localhost:{silent.getsockname()[1]}", "not reachable: "),
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
                default_tls()
