"""svc.client.address and svc.client.config: the gateway URL, its sources and its accepted forms."""

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
def without_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("SVC_GATEWAY_URL", "SVC_PLATFORM_URL", "SVC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_HOME", str(tmp_path))  # ignores a running `svc up`
    svc.init()
    yield
    svc.init()


def fail_on_warning(message: str) -> None:
    raise AssertionError(message)


def test_resolve_gateway_url_sources_have_precedence() -> None:
    configured = "http://configured/v1"
    assert resolve_gateway_url("http://option/v1", configured, ENVIRON, fail_on_warning) == "http://option/v1"
    assert resolve_gateway_url(None, configured, ENVIRON, fail_on_warning) == configured
    assert resolve_gateway_url(None, None, ENVIRON, fail_on_warning) == "http://gateway:3000/v1"
    assert (
        resolve_gateway_url(None, None, {**ENVIRON, "SVC_GATEWAY_URL": " "}, fail_on_warning)
        == "http://platform:8000/v1"
    )
    assert resolve_gateway_url(None, None, {}, fail_on_warning) == PRODUCTION_GATEWAY


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


@pytest.mark.parametrize(("url", "expected"), FORMS)
def test_client_any_source_accepts_any_url_form(url: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert svc.Client(gateway_url=url).gateway_url == expected
    svc.init(gateway_url=url)
    assert svc.Client().gateway_url == expected
    svc.init(platform_url=url)
    assert svc.Client().gateway_url == expected
    svc.set_gateway_url(url)
    assert svc.AsyncClient().gateway_url == expected
    svc.init()
    monkeypatch.setenv("SVC_PLATFORM_URL", url)
    assert svc.Client().gateway_url == expected
    if url.rstrip("/ ").endswith("/v1"):  # SVC_GATEWAY_URL is not given a suffix
        monkeypatch.setenv("SVC_GATEWAY_URL", url)
        monkeypatch.setenv("SVC_PLATFORM_URL", "http://elsewhere")
        assert svc.Client().gateway_url == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    FORMS,
)
def test_with_v1_suffix_is_appended_once(url: str, expected: str) -> None:
    assert with_v1_suffix(url) == expected
    assert with_v1_suffix(with_v1_suffix(url)) == expected
    assert resolve_gateway_url(None, None, {"SVC_PLATFORM_URL": url}, fail_on_warning) == expected


@pytest.mark.parametrize(
    "bad",
    [
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://user:secret@host",
        "http://host?x=1",
        "http://a b",
        "ü",
        "[::1",
        "a[b]",
    ],
)
def test_with_v1_suffix_invalid_url_is_rejected_without_echo(bad: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        with_v1_suffix(bad)
    assert "secret" not in caught.value.message


def test_resolve_gateway_url_without_v1_is_accepted_with_warning() -> None:
    said: list[str] = []
    assert (
        resolve_gateway_url(None, None, {"SVC_GATEWAY_URL": "http://host:1/api/"}, said.append) == "http://host:1/api"
    )
    assert [line.split()[0] for line in said] == ["SVC_GATEWAY_URL"]


def test_init_and_setters_configure_new_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVC_GATEWAY_URL", "http://environ/v1")
    monkeypatch.setenv("SVC_API_KEY", "environ-key")
    assert svc.Client().gateway_url == "http://environ/v1"
    svc.set_gateway_url("http://set")
    svc.set_gateway_url("http://set/v1")
    svc.set_api_key(" set-key\n")
    assert svc.Client().gateway_url == "http://set/v1"
    assert svc.Client(gateway_url="http://own/v1").gateway_url == "http://own/v1"
    assert svc.Client()._core.api_key == "set-key"
    svc.init(platform_url="http://platform/", registry="http://registry:8080")
    assert current_config() == SdkConfig(None, "http://platform/v1", "http://registry:8080")
    assert svc.Client()._core.api_key == "environ-key"
    svc.init(gateway_url="a:1", platform_url="b:2")
    assert svc.AsyncClient().gateway_url == "https://a:1/v1"


def test_api_key_is_hidden_in_repr_and_must_be_a_header_value() -> None:
    svc.init(api_key="svc_sk_hidden", gateway_url="http://h")
    assert "hidden" not in repr(current_config()) + repr(svc.Client()) + repr(svc.AsyncClient())
    with pytest.raises(InvalidRequest):
        svc.set_api_key("two\r\nlines")
    assert current_config().api_key == "svc_sk_hidden"


def test_client_url_without_path_gets_v1_suffix() -> None:
    assert svc.Client(gateway_url="http://127.0.0.1:3000").gateway_url == "http://127.0.0.1:3000/v1"
