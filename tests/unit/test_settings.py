import re
from pathlib import Path

import pytest

from svc import settings
from svc.errors import UsageError


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "svc.toml"
    path.write_text(text)
    return str(path)


def test_load_without_configuration_uses_defaults(tmp_path: Path) -> None:
    found = settings.load({"SVC_HOME": str(tmp_path)})
    assert (found.gateway.host, found.gateway.port, found.gateway.max_body) == ("127.0.0.1", 3000, 32)
    assert found.home == tmp_path
    assert found.registry_root == tmp_path / "registry"


def test_load_command_line_overrides_environment_overrides_file(tmp_path: Path) -> None:
    config = write(tmp_path, "[gateway]\nport = 1\nidle_timeout = 7")
    from_file = settings.load({"SVC_HOME": str(tmp_path)}, config=config)
    assert (from_file.gateway.port, from_file.gateway.idle_timeout) == (1, 7)
    assert settings.load({"PORT": "2"}, config=config).gateway.port == 2
    options = {"gateway": {"port": 3, "host": None}}
    found = settings.load({"PORT": "2"}, config=config, overrides=options)
    assert (found.gateway.port, found.gateway.host) == (3, "127.0.0.1")


def test_load_file_in_working_directory_or_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(tmp_path, "[gateway]\nport = 9")
    assert settings.load({"SVC_HOME": str(tmp_path)}).gateway.port == 9
    (tmp_path / "here" / "svc.toml").write_text("[gateway]\nport = 8")
    assert settings.load({"SVC_HOME": str(tmp_path)}).gateway.port == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gateway]\nprot = 1", ("prot", "gateway", "svc.toml")),
        ("[gatway]\nport = 1", ("gatway",)),
        ("[gateway]\nport = 'x'", ("port",)),
        ("[gateway]\nport = 70000", ("port", "65535")),
        ("[gateway]\nidle_timeout = 0", ("idle_timeout",)),
        ("[[providers]]\nname = 'UPPER CASE'", ("name",)),
        ("[[providers]]\nname = 'x'\nmodels = [{ id = 'm', context = 1 }]", ("context", "models")),
        ("[[providers]]\nname = 'x'\nmodels = [{ id = '' }]", ("id", "models")),
        ("[routing]\nretry_share = 11", ("retry_share", "10")),
        ("[cache]\nshared_by = ''", ("shared_by",)),
        ("[local]\nmemory = '4'", ("memory", "4GiB")),
        ("[local]\nmemory = '0GiB'", ("memory",)),
        ("# a\n[local]\nenabled = true\n# memory = '4 cows'\nmemory = '4 cows'", ("svc.toml, line 5: `memory`",)),
        ("[local]\nmemory = 4", ("memory",)),
        ("[[local.models]]\nname = ''", ("name", "local.models")),
        ("[[local.models]]\nname = 'm'\n[[local.models]]\nname = 'm'", ("models", "'m'", "local")),
        ("[[local.models]]\nname = 'm'\ncontext_window = 5", ("context_window", "128")),
        ("[[local.models]]\nname = 'm'\nlayers = 5", ("layers", "local.models")),
        ("gateway = 3", ("gateway",)),
        ("[gateway", ("TOML",)),
    ],
)
def test_load_invalid_file_names_the_fault(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        settings.load({}, config=write(tmp_path, text))
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("2TB", 2 * 10**12)]
)
def test_load_local_memory_is_parsed(tmp_path: Path, text: str, size: int) -> None:
    found = settings.load({}, config=write(tmp_path, f"[local]\nmemory = '{text}'"))
    assert found.local.memory_bytes(0) == size


def test_load_missing_named_file_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.toml"):
        settings.load({}, config=str(tmp_path / "missing.toml"))


def test_load_api_keys_from_environment_are_split() -> None:
    assert settings.load({"SVC_API_KEYS": " a, b,,"}).api_keys == ("a", "b")


def test_load_non_numeric_port_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="PORT"):
        settings.load({"PORT": "http"})


@pytest.mark.parametrize("port", ["http", "99999", "-1"])
def test_load_port_on_command_line_overrides_invalid_environment(port: str) -> None:
    found = settings.load({"PORT": port}, overrides={"gateway": {"port": 4, "host": None}})
    assert found.gateway.port == 4
    with pytest.raises(UsageError, match=r"^PORT"):
        settings.load({"PORT": port}, overrides={"gateway": {"port": None, "host": "localhost"}})


@pytest.mark.parametrize(("text", "enabled"), [("", True), ("[local]\nenabled = false", False), ("[local]", True)])
def test_load_command_default_is_overridden_by_file(tmp_path: Path, text: str, enabled: bool) -> None:
    (tmp_path / "svc.toml").write_text(text)
    found = settings.load({}, config=str(tmp_path / "svc.toml"), defaults={"local": {"enabled": True}})
    assert found.local.enabled is enabled


@pytest.mark.parametrize(
    ("environ", "overrides", "source"),
    [
        ({"PORT": "99999"}, None, "PORT must be 0 to 65535."),
        ({"PORT": "1"}, {"gateway": {"port": -5}}, "--port must be 0 to 65535."),
        ({}, {"gateway": {"workers": 1000}}, "--workers must be 1 to 256."),
        ({}, {"gateway": {"host": ""}}, "--host: Expected string of length at least 1 in [gateway.host]."),
    ],
)
def test_load_value_out_of_range_names_its_source(
    tmp_path: Path, environ: dict[str, str], overrides: dict[str, dict[str, int]] | None, source: str
) -> None:
    (tmp_path / "svc.toml").write_text("[gateway]\nport = 3000\n")
    with pytest.raises(UsageError, match=f"^{re.escape(source)}$"):
        settings.load({"SVC_HOME": str(tmp_path), **environ}, config=str(tmp_path / "svc.toml"), overrides=overrides)


@pytest.mark.parametrize(
    ("environ", "expected"), [({}, True), ({"SVC_FASTPATH": "1"}, True), ({"SVC_FASTPATH": "0"}, False)]
)
def test_load_fast_paths_are_enabled_unless_disabled_by_environment(environ: dict[str, str], expected: bool) -> None:
    assert settings.load(environ).fast_paths is expected


def test_load_switch_neither_0_nor_1_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="SVC_FASTPATH must be 0 or 1, not 'off'"):
        settings.load({"SVC_FASTPATH": "off"})


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[gateway]\nprot = 1", "unknown key `prot` in [gateway]. Did you mean `port`?"),
        ("port = 1", "unknown key `port`. It belongs to [gateway]."),
        ("[gateway]\nnothing_similar = 1", "unknown key `nothing_similar` in [gateway]."),
        ("[routing]\nnum_retries = 3", "unknown key `num_retries` in [routing]. Use `retries` in [routing]."),
        ("[[providers]]\nname = 'a'\napi_base = 'http://x/v1'", "in [providers[0]]. Use `base_url`."),
        (
            "[[providers]]\nname = 'a'\nmodels = [{ id = 'm', input_cost_per_token = 1 }]",
            "in [providers[0].models[0]]. Use `input_price`, in USD per million tokens.",
        ),
        (
            "[routing]\nfallbacks = [{ a = ['b'] }]",
            'in [routing.fallbacks]. Write a line such as `"gpt-4o" = ["gpt-4o-mini"]` below [routing.fallbacks].',
        ),
        (
            "[[providers]]\nname = 'a'\nmodels = ['m']",
            'in [providers[0].models[0]]. Write each model as `{ id = "NAME" }`.',
        ),
        ("model_list:\n  - model_name: a", "(at line 1, column 11). It looks like YAML, and svc reads TOML only."),
        (
            "[[providers]]\nname = 'a'\nmodels = [{ id = 'openai/*' }]",
            "`id` must be one name, because there are no wildcards such as 'openai/*' in [providers[0].models[0]].",
        ),
        (
            "[[aliases]]\nname = 'gpt-*'\nmodel = 'gpt-4o'",
            "line 2: `name` must be one name, because there are no wildcards such as 'gpt-*' in [aliases[0]].",
        ),
    ],
)
def test_file_with_habits_of_other_gateways_error_ends_with_hint(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.load({}, config=write(tmp_path, text))
    assert caught.value.message.endswith(hint)


@pytest.mark.parametrize("value", ["sk-proj-SECRET", "os.environ/SECRET", "${VALUE}", "SECRET KEY"])
@pytest.mark.parametrize("table", ["", "[[providers.accounts]]\n"])
def test_file_with_key_as_name_of_its_variable_error_omits_it(tmp_path: Path, table: str, value: str) -> None:
    config = write(tmp_path, f"[[providers]]\nname = 'a'\n{table}api_key_env = '{value}'")
    with pytest.raises(UsageError) as caught:
        settings.load({"VALUE": "aSECRETvalue"}, config=config)
    line = 4 if table else 3
    assert caught.value.message.startswith(f"{config}, line {line}: `api_key_env` must be the name of an environment")
    assert "SECRET" not in caught.value.message


def test_file_with_variable_in_name_of_key_variable_is_valid_if_it_is_set(tmp_path: Path) -> None:
    config = write(tmp_path, "[[providers]]\nname = 'a'\napi_key_env = '${TENANT}_KEY'")
    assert settings.load({"TENANT": "A", "A_KEY": "k"}, config=config).providers[0].api_key_env == "A_KEY"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[gateway]\n\nport = "x"', ", line 3: Expected integer, got string in [gateway.port]."),
        ("# [gateway]\n[gateway]\nhots = 1", ", line 3: unknown key `hots` in [gateway]."),
        ("[nothing]\nx = 1", ", line 1: unknown key `nothing`."),
        (
            '[routing]\nretries = 1\nstrategy = "fastest"',
            ", line 3: Invalid enum value 'fastest' in [routing.strategy]; "
            "allowed: 'order', 'weighted', 'least_busy', 'cheapest'.",
        ),
        (
            '[[providers]]\nname = "a"\nweight = 1\n[[providers]]\nname = "b"\nmodels = [{ id = "m", kind = "x" }]',
            ", line 3: unknown key `weight` in [providers[0]].",
        ),
        (
            '[[providers]]\nname = "a"\n[[providers]]\nname = "b"\nmodels = [{ id = "m", kind = "x" }]',
            ", line 5: Invalid enum value 'x' in [providers[1].models[0].kind]; allowed: 'chat', ",
        ),
        ('[[providers]]\nname = "a"\n[providers.quirks]\nrejects = 5', ", line 4: Expected array, got integer"),
    ],
)
def test_file_with_wrong_value_error_has_line_and_allowed_values(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "svc.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        settings.load({}, config=str(path))
    assert caught.value.message.startswith(f"{path}{message}")
