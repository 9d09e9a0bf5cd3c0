from pathlib import Path

import pytest

from svc import settings
from svc.errors import UsageError


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "svc.toml"
    path.write_text(text)
    return str(path)


def test_nothing_needs_configuring(tmp_path: Path) -> None:
    found = settings.load({"SVC_HOME": str(tmp_path)})
    assert (found.gateway.host, found.gateway.port, found.gateway.max_body) == ("127.0.0.1", 3000, 32)
    assert found.home == tmp_path
    assert found.registry_root == tmp_path / "registry"


def test_command_line_beats_environment_beats_file(tmp_path: Path) -> None:
    config = write(tmp_path, "[gateway]\nport = 1\nidle_timeout = 7")
    from_file = settings.load({"SVC_HOME": str(tmp_path)}, config=config)
    assert (from_file.gateway.port, from_file.gateway.idle_timeout) == (1, 7)
    assert settings.load({"PORT": "2"}, config=config).gateway.port == 2
    options = {"gateway": {"port": 3, "host": None}}
    found = settings.load({"PORT": "2"}, config=config, overrides=options)
    assert (found.gateway.port, found.gateway.host) == (3, "127.0.0.1")


def test_the_file_in_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("gateway = 3", ("gateway",)),
        ("[gateway", ("TOML",)),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        settings.load({}, config=write(tmp_path, text))
    assert all(word in caught.value.message for word in words), caught.value.message


def test_a_file_that_was_named_and_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.toml"):
        settings.load({}, config=str(tmp_path / "missing.toml"))


def test_keys_come_from_the_environment() -> None:
    assert settings.load({"SVC_API_KEYS": " a, b,,"}).api_keys == ("a", "b")


def test_a_port_that_is_no_number() -> None:
    with pytest.raises(UsageError, match="PORT"):
        settings.load({"PORT": "http"})


@pytest.mark.parametrize("port", ["http", "99999", "-1"])
def test_a_port_on_the_command_line_wins_over_any_in_the_environment(port: str) -> None:
    found = settings.load({"PORT": port}, overrides={"gateway": {"port": 4, "host": None}})
    assert found.gateway.port == 4
    with pytest.raises(UsageError, match=r"^PORT"):
        settings.load({"PORT": port}, overrides={"gateway": {"port": None, "host": "localhost"}})


@pytest.mark.parametrize(("text", "enabled"), [("", True), ("[local]\nenabled = false", False), ("[local]", True)])
def test_a_default_of_the_command_gives_way_to_the_file(tmp_path: Path, text: str, enabled: bool) -> None:
    (tmp_path / "svc.toml").write_text(text)
    found = settings.load({}, config=str(tmp_path / "svc.toml"), defaults={"local": {"enabled": True}})
    assert found.local.enabled is enabled


@pytest.mark.parametrize(
    ("environ", "overrides", "said"),
    [
        ({"PORT": "99999"}, None, "PORT: "),
        ({"PORT": "1"}, {"gateway": {"port": -5}}, "the command line: "),
        ({}, {"gateway": {"workers": 1000}}, "the command line: "),
    ],
)
def test_what_is_out_of_range_is_blamed_on_where_it_was_said(
    tmp_path: Path, environ: dict[str, str], overrides: dict[str, dict[str, int]] | None, said: str
) -> None:
    (tmp_path / "svc.toml").write_text("[gateway]\nport = 3000\n")
    with pytest.raises(UsageError, match=f"^{said}Expected `int`"):
        settings.load({"SVC_HOME": str(tmp_path), **environ}, config=str(tmp_path / "svc.toml"), overrides=overrides)


@pytest.mark.parametrize(
    ("environ", "wanted"), [({}, True), ({"SVC_FASTPATH": "1"}, True), ({"SVC_FASTPATH": "0"}, False)]
)
def test_fast_paths_are_on_unless_the_environment_turns_them_off(environ: dict[str, str], wanted: bool) -> None:
    assert settings.load(environ).fast_paths is wanted


def test_a_switch_that_is_neither_0_nor_1_is_an_error() -> None:
    with pytest.raises(UsageError, match="SVC_FASTPATH is neither 0 nor 1: 'off'"):
        settings.load({"SVC_FASTPATH": "off"})
