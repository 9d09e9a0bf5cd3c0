"""`svc config check` and `svc config show`: exit status, locations, sources, and no secrets."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server

from svc.settings import FileSettings, GatewaySettings

MAIN = """include = ["more.toml"]
[gateway]
port = 3100
hosts = ["${ZONE}"]
[[providers]]
name = "vllm"
base_url = "http://10.0.0.5:8000/v1"
api_key_env = "VLLM_API_KEY"
proxy = "http://user:confid-in-file@proxy.example:3128"
models = [{ id = "qwen" }]
"""
MORE = """[limits]
rpm = 4
[routing.fallbacks]
"gpt-4o" = ["qwen"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "svc.toml").write_text(MAIN)
    (tmp_path / "more.toml").write_text(MORE)
    return tmp_path


def svc_config(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    own = {"PATH": os.environ["PATH"], "SVC_HOME": str(folder), "ZONE": "zone.example"}
    return fork_server.run_command(["config", *arguments], {**own, **environ}, folder)


def check(folder: Path, **environ: str) -> tuple[int, dict[str, Any]]:
    completed = svc_config(folder, "check", "--json", **environ)
    return completed.returncode, json.loads(completed.stdout)


def test_check_valid_files_exits_0_and_lists_them(folder: Path) -> None:
    status, found = check(folder, OPENAI_API_KEY="sk-one")
    assert (status, found) == (0, {"valid": True, "files": ["more.toml", "svc.toml"], "errors": [], "warnings": []})
    text = svc_config(folder, "check", OPENAI_API_KEY="sk-one")
    assert (text.returncode, text.stdout, text.stderr) == (0, "valid: more.toml, svc.toml\n", "")


def test_check_without_a_file_is_valid(tmp_path: Path) -> None:
    completed = svc_config(tmp_path, "check", OPENAI_API_KEY="sk-one")
    assert completed.returncode == 0
    assert "no configuration file" in completed.stdout


@pytest.mark.parametrize(
    ("file", "text", "line", "word"),
    [
        ("svc.toml", "[gateway]\nprot = 1", 2, "prot"),
        ("svc.toml", "[gateway]\nport = = 1", 2, "TOML"),
        ("more.toml", "\n\n[limits]\nrpm = -1", 4, "rpm"),
        ("more.toml", "[routing.fallbacks]\n'gpt-4o' = ['none']", 2, "none"),
        ("svc.toml", "[gateway]\ntrusted_proxies = ['nowhere']", 2, "trusted_proxies"),
        ("svc.toml", "[gateway]\nhost = '${NOT_SET}'", 2, "NOT_SET"),
        ("svc.toml", "include = ['none.toml']", 1, "none.toml"),
        ("svc.toml", "\ufeff[telemetry]\naccess_log_file = 'none/access.log'", 2, "none/access.log"),
    ],
)
def test_check_invalid_file_exits_1_with_file_and_line(
    folder: Path, file: str, text: str, line: int, word: str
) -> None:
    (folder / file).write_text(text)
    status, found = check(folder)
    (error,) = found["errors"]
    assert (status, found["valid"], error["file"], error["line"]) == (1, False, file, line)
    assert word in error["message"]
    plain = svc_config(folder, "check")
    assert (plain.returncode, plain.stdout) == (1, f"error: {error['message']}\n")


def test_check_warns_of_models_that_are_not_installed(tmp_path: Path) -> None:
    (tmp_path / "svc.toml").write_text('[local]\nenabled = true\nmodels = [{ name = "no-such-model" }]\n')
    status, found = check(tmp_path)
    assert (status, found["errors"]) == (0, [])
    missing = [warning for warning in found["warnings"] if "not installed on this machine" in warning]
    assert [warning.rpartition(" ")[2] for warning in missing] == ["smollm2-135m", "no-such-model"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('dialect = "acme"\nbase_url = "https://acme.example/v1"', "there is no dialect 'acme'"),
        ('base_url = "ftp://acme.example/v1"', "is not an http or https address"),
        ('accounts = [{ base_url = "ftp://b.example/v1", api_key_env = "B_KEY" }]', "is not an http or https address"),
        ('base_url = "https://acme.example/v1"', None),
        ('accounts = [{ base_url = "https://b.example/v1", api_key_env = "B_KEY" }]', None),
    ],
)
def test_check_warns_of_errors_of_a_provider_without_its_key(tmp_path: Path, fields: str, message: str | None) -> None:
    entry = f'[[providers]]\nname = "acme"\napi_key_env = "ACME_KEY"\nmodels = [{{ id = "m" }}]\n{fields}\n'
    (tmp_path / "svc.toml").write_text(f'{entry}[[providers]]\nname = "anthropic"\n')  # a change of a built-in one
    status, found = check(tmp_path, OPENAI_API_KEY="sk-one")
    assert (status, found["errors"]) == (0, [])
    located = [warning for warning in found["warnings"] if warning.startswith("svc.toml")]
    assert len(located) == (message is not None)
    assert not located or message in located[0]


def test_check_wrong_use_exits_2(folder: Path) -> None:
    assert svc_config(folder, "check", "--config", "none.toml").returncode == 2
    assert svc_config(folder, "check", "--yaml").returncode == 2
    assert svc_config(folder, "chek").returncode == 2


def test_check_key_file_missing_is_an_error_and_readable_by_all_a_warning(folder: Path) -> None:
    key = folder / "key"
    environ = {"PROVIDER_A_API_KEY_FILE": str(key)}
    status, found = check(folder, **environ)
    assert (status, found["errors"][0]["line"]) == (1, None)
    assert str(key) in found["errors"][0]["message"]
    key.write_text("sk-in-file\n")
    with (folder / "more.toml").open("a") as more:
        more.write("[gateway]\ntls_cert = 'none.pem'\ntls_key = 'none.key'\n")
    status, found = check(folder, **environ)
    assert (status, "none.pem" in found["errors"][0]["message"]) == (1, True)
    (folder / "more.toml").write_text(MORE)
    key.chmod(0o644)
    status, found = check(folder, **environ)
    assert status == 0
    assert found["warnings"] == [
        f"PROVIDER_A_API_KEY_FILE: every user of this machine can read {key}: run chmod o-r on it."
    ]
    key.chmod(0o600)
    assert check(folder, **environ)[1]["warnings"] == []


def show(folder: Path, **environ: str) -> dict[str, dict[str, Any]]:
    completed = svc_config(folder, "show", "--json", **environ)
    assert completed.returncode == 0, completed.stderr
    return {value["key"]: value for value in json.loads(completed.stdout)}


def test_show_has_each_setting_with_its_source(folder: Path) -> None:
    found = show(folder, PORT="4000", SVC_FASTPATH="0")
    sources = {key: (value["value"], value["source"], value["file"], value["line"]) for key, value in found.items()}
    assert sources["gateway.port"] == (4000, "environment", None, None)
    assert sources["gateway.hosts"] == (["zone.example"], "file", "svc.toml", 4)
    assert found["gateway.hosts"]["variables"] == ["ZONE"]
    assert sources["gateway.workers"] == (1, "default", None, None)
    assert sources["limits.rpm"] == (4, "file", "more.toml", 2)
    assert sources["routing.fallbacks.gpt-4o"] == (["qwen"], "file", "more.toml", 4)
    assert sources["providers[0].models[0].id"] == ("qwen", "file", "svc.toml", 10)
    assert sources["SVC_FASTPATH"] == ("0", "environment", None, None)
    for name in GatewaySettings.__struct_fields__:
        assert f"gateway.{name}" in found
    tables = {key.partition(".")[0].partition("[")[0] for key in found}
    assert tables >= set(FileSettings.__struct_fields__)
    assert found["gateway.port"]["value"] != show(folder)["gateway.port"]["value"]


def test_show_hides_secrets(folder: Path) -> None:
    more = '[[providers]]\nname = "two"\nbase_url = "http://h/${VLLM_API_KEY}"\n'
    more += '[gateway]\ncors_origins = ["${SVC_TOKEN}", "https://a.example"]\n[cache]\nshared_by = "sk-openai-1"\n'
    (folder / "more.toml").write_text(more)
    environ = {
        "OPENAI_API_KEY": "sk-openai-1",
        "VLLM_API_KEY": "sk-vllm-1",
        "SVC_API_KEYS": "sk-client-1,sk-client-2",
        "SVC_DATABASE_URL": "postgresql://user:confid-of-db@host/name?sslpassword=confid-of-key",
        "SVC_REDIS_URL": "redis://:confid/of@redis@host:6379/0",
        "SVC_TOKEN": "t",
        "PROVIDER_B_API_KEY_FILE": "/run/secrets/anthropic",
    }
    for arguments in (("show",), ("show", "--json"), ("check",), ("check", "--json")):
        completed = svc_config(folder, *arguments, **environ)
        for secret in ("sk-", "confid", '"t"'):
            assert secret not in completed.stdout + completed.stderr, arguments
    (folder / "more.toml").write_text("")
    found = show(folder, **environ)
    assert found["SVC_DATABASE_URL"]["value"] == "postgresql://***@host/name?sslpassword=***"
    assert found["SVC_REDIS_URL"]["value"] == "redis://***@host:6379/0"
    assert found["providers[0].proxy"]["value"] == "http://***@proxy.example:3128"
    assert found["PROVIDER_B_API_KEY_FILE"]["value"] == "/run/secrets/anthropic"
    assert found["VLLM_API_KEY"]["value"] == "***"


def test_show_as_table_has_location_and_variable(folder: Path) -> None:
    lines = svc_config(folder, "show", PORT="4000").stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["gateway.port"] == ["4000", "$PORT"]
    assert rows["gateway.hosts"] == ['["zone.example"]', "svc.toml:4", "($ZONE)"]
    assert rows["limits.rpm"] == ["4", "more.toml:2"]
    assert rows["gateway.workers"] == ["1", "default"]
