"""`svc keys` and `svc usage` on the local database: key selection, lists, and terminal output."""

from __future__ import annotations

import json
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from svc.cli import _local_gateway, main
from svc.cli._output import print_table
from svc.stores.database.base import AttemptDetail, LedgerEntry
from svc.stores.database.factory import open_database

Command = Callable[..., str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    for name in ("SVC_DATABASE_URL", "SVC_API_KEY", "SVC_GATEWAY_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str, status: int = 0) -> str:
        assert main(arguments) == status
        said = capsys.readouterr()
        return said.err if status else said.out

    return run


@pytest.fixture
def shop(command: Command) -> dict[str, str]:
    options = ("--models", "gpt-4o,gpt-4o-mini", "--scope", "chat,speech", "--tag", "team=shop")
    made: dict[str, str] = json.loads(command("keys", "create", "--name", "web shop", *options, "--json"))
    return made


def insert_usage(home: Path, key: dict[str, str], count: int, *, tokens: int = 7, cost_usd: float | None = 0.5) -> None:
    database = open_database(f"sqlite:///{home / 'svc.db'}")
    database.insert_entries(
        LedgerEntry(
            time=f"2026-03-04T10:{number // 60:02}:{number % 60:02}.500Z",
            request_id=f"req-{number}",
            key_id=key["id"],
            key_name=key["name"],
            endpoint="/v1/chat/completions",
            model="gpt-4o",
            provider="openai",
            attempts=1,
            status="ok",
            http_status=200,
            prompt_tokens=tokens * 10 ** (number % 4),
            completion_tokens=1,
            cost_usd=cost_usd,
            latency_ms=1.0,
        )
        for number in range(count)
    )
    database.close()


def test_usage_totals_without_all_costs_say_so(
    command: Command, shop: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    insert_usage(home, shop, 2)
    assert main(["usage", "--by", "key"]) == 0
    assert capsys.readouterr().err == ""
    insert_usage(home, shop, 3, cost_usd=None)  # the first two exist
    assert json.loads(command("usage", "--by", "key", "--json"))[0]["unpriced_requests"] == 1
    assert main(["usage", "--by", "key"]) == 0
    assert capsys.readouterr().err.startswith("svc usage: USD excludes 1 of 3 requests.")


def test_keys_show_finds_key_by_id_name_and_prefix(command: Command, shop: dict[str, str]) -> None:
    command("keys", "create", "--name", "other")
    for selector in (shop["id"], "web shop", shop["prefix"], f"{shop['prefix']}…", shop["id"][:10]):
        assert json.loads(command("keys", "show", selector, "--json"))["id"] == shop["id"], selector


def test_keys_ambiguous_name_is_rejected_with_ids(command: Command, shop: dict[str, str]) -> None:
    namesake = json.loads(command("keys", "create", "--name", "web shop", "--json"))
    for action in ("show", "revoke", "rotate"):
        said = command("keys", action, "web shop", status=2)
        assert shop["id"] in said
        assert namesake["id"] in said
    assert json.loads(command("keys", "show", shop["id"], "--json"))["revoked"] is None


def test_keys_name_shared_with_revoked_key_selects_active_key(command: Command, shop: dict[str, str]) -> None:
    command("keys", "revoke", shop["id"])
    namesake = json.loads(command("keys", "create", "--name", "web shop", "--json"))
    for action in (("show",), ("change", "--rpm", "5"), ("rotate",)):
        assert json.loads(command("keys", action[0], "web shop", *action[1:], "--json"))["id"] == namesake["id"], action
    assert namesake["id"] in command("keys", "revoke", "web shop", status=2)
    command("keys", "revoke", namesake["id"])
    assert namesake["id"] in command("keys", "show", "web shop", status=2)


def test_keys_show_unknown_key_suggests_keys_ls(command: Command, shop: dict[str, str]) -> None:
    for selector in ("nobody", "svc_sk_", "key_", "key_ffff00000000"):
        assert "See: svc keys ls" in command("keys", "show", selector, status=1)


def test_keys_change_and_revoke_accept_name(command: Command, shop: dict[str, str]) -> None:
    assert json.loads(command("keys", "change", "web shop", "--rpm", "5", "--json"))["rpm"] == 5
    assert shop["id"] in command("keys", "revoke", "web shop")


def test_keys_unknown_option_error_names_the_help_of_the_action(command: Command) -> None:
    said = command("keys", "create", "--name", "a", "--max-budget", "5", status=2)
    assert said == "svc: unrecognized arguments: --max-budget 5. See: svc keys create --help\n"


def test_keys_create_and_change_wildcard_as_model_is_rejected(command: Command, shop: dict[str, str]) -> None:
    for action in (("create", "--name", "a"), ("change", "web shop")):
        said = command("keys", *action, "--models", "gpt-4o,openai/*", status=2)
        assert said.startswith("svc: --models: there are no wildcards such as 'openai/*'."), said
    assert json.loads(command("keys", "show", "web shop", "--json"))["models"] == ["gpt-4o", "gpt-4o-mini"]


def test_keys_ls_shows_scopes_models_tags_and_last_use(command: Command, shop: dict[str, str], home: Path) -> None:
    command("keys", "create", "--name", "idle", "--scope", "admin")
    insert_usage(home, shop, 3)
    head, *rows = command("keys", "ls").splitlines()
    for column in ("SCOPES", "MODELS", "TAGS", "LAST USED"):
        assert column in head
    used = next(row for row in rows if "web shop" in row)
    for shown in ("chat, speech", "gpt-4o, gpt-4o-mini", "team=shop", "2026-03-04T10:00:02Z"):
        assert shown in used
    assert used.index("chat, speech") == head.index("SCOPES")
    idle = next(row for row in rows if "idle" in row)
    assert "never" in idle
    assert " all " in idle
    assert {row["name"]: row["last_used"] for row in json.loads(command("keys", "ls", "--json"))} == {
        "web shop": "2026-03-04T10:00:02Z",
        "idle": None,
    }


def test_keys_ls_long_model_list_is_truncated_and_complete_in_show(command: Command) -> None:
    models = ",".join(f"model-{number}" for number in range(40))
    command("keys", "create", "--name", "many", "--models", models)
    assert "…  " in command("keys", "ls")
    assert "model-39" not in command("keys", "ls")
    assert "model-39" in command("keys", "show", "many")


def test_usage_on_terminal_is_limited_with_hint(
    capsys: pytest.CaptureFixture[str], shop: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_usage(home, shop, 60)
    assert main(["usage"]) == 0
    piped = capsys.readouterr()
    assert (len(piped.out.splitlines()), piped.err) == (61, "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["usage"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 51
    assert "--limit" in shown.err
    assert shown.err.count("\n") == 1
    assert main(["usage", "--limit", "55"]) == 0
    shown = capsys.readouterr()
    assert (len(shown.out.splitlines()), shown.err) == (56, "")
    assert main(["usage", "--by", "key"]) == 0
    assert capsys.readouterr().err == ""


def test_usage_numbers_are_right_aligned(command: Command, shop: dict[str, str], home: Path) -> None:
    insert_usage(home, shop, 4)
    head, *rows = command("usage").splitlines()
    end = head.index("PROMPT") + len("PROMPT")
    assert {row[:end].rsplit(" ", 1)[1] for row in rows} == {"7", "70", "700", "7000"}
    assert len({len(row) for row in (head, *rows)}) == 1


def test_usage_request_option_shows_fields_cost_formula_and_attempts(command: Command, home: Path) -> None:
    attempts = [
        AttemptDetail(
            provider="openai", model="gpt-4o", outcome="error", code="provider_error", ms=12.34, connect_ms=9.8
        ),
        AttemptDetail(provider="anthropic", model="claude-3-haiku-20240307", outcome="ok", ms=801.0),
    ]
    database = open_database(f"sqlite:///{home / 'svc.db'}")
    database.migrate()
    entry = LedgerEntry(
        time="2026-03-04T10:20:30.456Z",
        request_id="req_c37a0b2ee7673eb900000001",
        client_request_id="mine\x1b[31m",
        key_id="k",
        key_name="web shop",
        tags={"team": "x", "app": "y"},
        endpoint="/v1/messages",
        model="claude-3-haiku-20240307",
        provider="anthropic",
        attempts=2,
        status="ok",
        http_status=200,
        prompt_tokens=10,
        completion_tokens=4,
        cost_usd=0.0000075,
        latency_ms=823.4567,
        attempts_detail=attempts,
    )
    database.insert_entries([entry])
    database.close()
    shown = command("usage", "--request", entry.request_id)
    fields, costs, table = shown.split("\n\n")
    values = {name: value.strip() for name, _, value in (line.partition(" ") for line in fields.splitlines())}
    assert list(values) == [name for name in LedgerEntry.__struct_fields__ if name != "attempts_detail"]
    assert values["client_request_id"] == "mine?[31m"
    assert values["tags"] == "team=x, app=y"
    assert values["cost_usd"] == "0.000007500  = (10 x 0.25 + 4 x 1.25) / 1000000"
    assert (values["latency_ms"], values["ttfb_ms"], values["estimated"]) == ("823.5", "-", "no")
    assert costs.split() == [
        *("COST", "OF", "COUNT", "USD", "PER", "MILLION", "USD"),
        *("input", "tokens", "10", "0.25", "0.000002500"),
        *("output", "tokens", "4", "1.25", "0.000005000"),
    ]
    assert [line.split() for line in table.splitlines()] == [
        ["ATTEMPT", "PROVIDER", "MODEL", "OUTCOME", "CODE", "MS", "CONNECT_MS"],
        ["1", "openai", "gpt-4o", "error", "provider_error", "12.3", "9.8"],
        ["2", "anthropic", "claude-3-haiku-20240307", "ok", "-", "801.0", "-"],
    ]
    row = json.loads(command("usage", "--request", entry.request_id, "--json"))
    assert row.pop("cost_formula") == "(10 x 0.25 + 4 x 1.25) / 1000000"
    assert row.pop("cost_terms") == [
        {"name": "input tokens", "count": 10, "usd_per_million": 0.25, "usd": 2.5e-06},
        {"name": "output tokens", "count": 4, "usd_per_million": 1.25, "usd": 5e-06},
    ]
    assert row == msgspec.to_builtins(entry)


def test_usage_unknown_request_exits_1(command: Command, shop: dict[str, str], home: Path) -> None:
    insert_usage(home, shop, 1)
    assert json.loads(command("usage", "--request", "req-0", "--json"))["attempts_detail"][0]["outcome"] == "ok"
    for arguments in ((), ("--json",)):
        said = command("usage", "--request", "req-1", *arguments, status=1)
        assert "no ledger entry of the request 'req-1'" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("option", ["--by", "--since", "--until", "--key", "--limit"])
def test_usage_request_option_with_other_filter_exits_2(command: Command, option: str) -> None:
    said = command("usage", "--request", "req-0", option, "1", status=2)
    assert f"--request cannot be combined with {option.removeprefix('--')}" in said


def test_print_table_wide_characters_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("NAME", "N"), ("東京", "1"), ("e\u0301t", "20")], right_aligned=(1,))
    assert capsys.readouterr().out.splitlines() == ["NAME   N", "東京   1", "e\u0301t    20"]


def test_usage_key_option_accepts_name_prefix_and_id(command: Command, shop: dict[str, str], home: Path) -> None:
    insert_usage(home, shop, 2)
    for selector in ("web shop", shop["prefix"], shop["id"]):
        assert len(json.loads(command("usage", "--key", selector, "--json"))) == 2


@pytest.mark.parametrize("name", ["--gateway", "--url"])
@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://127.0.0.1:9/v1"])
@pytest.mark.parametrize("verb", [("keys", "ls"), ("usage",), ("chat", "hi"), ("transcribe", "talk.wav")])
def test_commands_gateway_and_url_options_select_gateway(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, address: str, verb: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SVC_API_KEY", "svc_sk_some")
    monkeypatch.chdir(tmp_path)
    with wave.open(str(tmp_path / "talk.wav"), "wb") as talk:
        talk.setparams((1, 2, 16_000, 0, "NONE", ""))
        talk.writeframes(bytes(3200))
    said = command(*verb, name, address, status=1)
    assert "http://127.0.0.1:9/v1" in said


def test_registry_mirror_registry_option_or_argument_selects_registry(command: Command) -> None:
    for arguments in (["http://127.0.0.1:9"], ["--registry", "http://127.0.0.1:9"]):
        assert "http://127.0.0.1:9" in command("registry", "mirror", *arguments, status=1)
    assert "--registry" in command("registry", "mirror", status=2)


def test_limits_without_gateway_name_the_running_one(command: Command, home: Path) -> None:
    assert "use --gateway http://127.0.0.1:3000" in command("keys", "limits", status=2)
    _local_gateway.write_gateway_record(home, "http://127.0.0.1:45600/v1")
    assert "use --gateway http://127.0.0.1:45600/v1" in command("keys", "limits", status=2)
