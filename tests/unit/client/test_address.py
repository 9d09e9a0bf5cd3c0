"""svc.client.address and svc.client.config: which gateway, in which order, however it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import svc
from svc.client.address import resolve_gateway_url, with_v1_suffix
from svc.client.config import SdkConfig, current_config
from svc.errors import InvalidRequest
from svc.wire.production_gateway import PRODUCTION_GATEWAY

ENVIRON = {"SVC_GATEWAY_URL": "http://gateway:3000/v1", "SVC_PLATFORM_URL": "http://platform:8000"}


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("SVC_GATEWAY_URL", "SVC_PLATFORM_URL", "SVC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_HOME", str(tmp_path))  # no `svc up` of this machine
    svc.init()
    yield
    svc.init()


def quiet(message: str) -> None:
    raise AssertionError(message)


def test_the_four_steps_in_their_order() -> None:
    told = "http://told/v1"
    assert resolve_gateway_url("http://option/v1", told, ENVIRON, quiet) == "http://option/v1"
    assert resolve_gateway_url(None, told, ENVIRON, quiet) == told
    assert resolve_gateway_url(None, None, ENVIRON, quiet) == "http://gateway:3000/v1"
    assert resolve_gateway_url(None, None, {**ENVIRON, "SVC_GATEWAY_URL": " "}, quiet) == "http://platform:8000/v1"
    assert resolve_gateway_url(None, None, {}, quiet) == PRODUCTION_GATEWAY


FORMS = [
    ("http://host:3000", "http://host:3000/v1"),
    ("http://host:3000/", "http://host:3000/v1"),
    ("http://host:3000/v1", "http://host:3000/v1"),
    ("http://host:3000/v1///", "http://host:3000/v1"),
    ("https://host/llm", "https://host/llm/v1"),
    ("localhost:3000", "http://localhost:3000/v1"),
    ("127.0.0.1:3000/v1/", "http://127.0.0.1:3000/v1"),
    ("[::1]:3000", "http://[::1]:3000/v1"),
    ("10.1.2.3", "http://10.1.2.3/v1"),
    ("gateway.example.com", "https://gateway.example.com/v1"),
    ("  http://host  ", "http://host/v1"),
]


@pytest.mark.parametrize(("given", "meant"), FORMS)
def test_every_step_takes_every_form(given: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert svc.Client(gateway_url=given).gateway_url == meant
    svc.init(gateway_url=given)
    assert svc.Client().gateway_url == meant
    svc.init(platform_url=given)
    assert svc.Client().gateway_url == meant
    svc.set_gateway_url(given)
    assert svc.AsyncClient().gateway_url == meant
    svc.init()
    monkeypatch.setenv("SVC_PLATFORM_URL", given)
    assert svc.Client().gateway_url == meant
    if given.rstrip("/ ").endswith("/v1"):  # this one is complete
        monkeypatch.setenv("SVC_GATEWAY_URL", given)
        monkeypatch.setenv("SVC_PLATFORM_URL", "http://elsewhere")
        assert svc.Client().gateway_url == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    FORMS,
)
def test_v1_is_appended_once(given: str, meant: str) -> None:
    assert with_v1_suffix(given) == meant
    assert with_v1_suffix(with_v1_suffix(given)) == meant
    assert resolve_gateway_url(None, None, {"SVC_PLATFORM_URL": given}, quiet) == meant


@pytest.mark.parametrize(
    "bad",
    ["ftp://host", "http://", "http://host:99999", "http://user:secret@host", "http://host?x=1", "http://a b", "ü"],
)
def test_what_is_no_address_is_refused_without_being_repeated(bad: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        with_v1_suffix(bad)
    assert "secret" not in caught.value.message


def test_a_full_address_without_v1_is_taken_and_warned_about() -> None:
    said: list[str] = []
    assert (
        resolve_gateway_url(None, None, {"SVC_GATEWAY_URL": "http://host:1/api/"}, said.append) == "http://host:1/api"
    )
    assert [line.split()[0] for line in said] == ["SVC_GATEWAY_URL"]


def test_the_three_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVC_GATEWAY_URL", "http://environ/v1")
    monkeypatch.setenv("SVC_API_KEY", "environ-key")
    assert svc.Client().gateway_url == "http://environ/v1"
    svc.set_gateway_url("http://told")
    svc.set_gateway_url("http://told/v1")
    svc.set_api_key(" told-key\n")
    assert svc.Client().gateway_url == "http://told/v1"
    assert svc.Client(gateway_url="http://own/v1").gateway_url == "http://own/v1"
    assert svc.Client()._core.api_key == "told-key"
    svc.init(platform_url="http://platform/", registry="http://registry:8080")
    assert current_config() == SdkConfig(None, "http://platform/v1", "http://registry:8080")
    assert svc.Client()._core.api_key == "environ-key"
    svc.init(gateway_url="a:1", platform_url="b:2")
    assert svc.AsyncClient().gateway_url == "https://a:1/v1"


def test_a_key_never_shows_and_must_fit_a_header() -> None:
    svc.init(api_key="svc_sk_hidden", gateway_url="http://h")
    assert "hidden" not in repr(current_config()) + repr(svc.Client()) + repr(svc.AsyncClient())
    with pytest.raises(InvalidRequest):
        svc.set_api_key("two\r\nlines")
    assert current_config().api_key == "svc_sk_hidden"


def test_a_client_takes_a_bare_address_too() -> None:
    assert svc.Client(gateway_url="http://127.0.0.1:3000").gateway_url == "http://127.0.0.1:3000/v1"
