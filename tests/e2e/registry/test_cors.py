"""Web pages of other origins read bundles if `gateway.cors_origins` allows it."""

import http.client

import pytest

from .conftest import Machine, make_bundle

PAGE = "https://app.example"
BUNDLE = "/bundles/m/1.0/any/m.xyb"


@pytest.fixture
def serve(tmp_path):
    """Return a function that starts a registry with one bundle."""
    one = Machine(tmp_path / "home", SVC_REGISTRY_KEYS="k1")
    one.home.mkdir()
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))

    def start(origins):
        (one.home / "svc.toml").write_text(f"[gateway]\ncors_origins = {origins}\n")
        return one.serve()

    yield start
    one.stop()


def ask(server, method, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_cors_allowed_origin_may_read_index_bundles_and_errors(serve):
    server = serve([PAGE])
    for path, status in (("/index/m", 200), (BUNDLE, 200), ("/index/other", 404), (f"{BUNDLE}x", 404)):
        answer = ask(server, "GET", path, Origin=PAGE)
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "content-range" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers["vary"].lower()
    part = ask(server, "GET", BUNDLE, Origin=PAGE, Range="bytes=5-")
    assert (part.status, part.headers["access-control-allow-origin"]) == (206, PAGE)
    preflight = {"Access_Control_Request_Method": "GET", "Access_Control_Request_Headers": "range"}
    answer = ask(server, "OPTIONS", BUNDLE, Origin=PAGE, **preflight)
    assert (answer.status, answer.headers["access-control-allow-headers"]) == (200, "range")


def test_cors_other_origin_and_publishing_are_not_allowed(serve):
    server = serve([PAGE])
    for origin in ({}, {"Origin": "https://other.example"}):
        for path in ("/index/m", BUNDLE):
            assert "access-control-allow-origin" not in ask(server, "GET", path, **origin).headers
        # A response without the header must not be taken from a cache for the page that may read it.
        assert ask(server, "GET", BUNDLE, **origin).headers["vary"] == "Origin"
    assert ask(server, "OPTIONS", BUNDLE, Origin=PAGE, Access_Control_Request_Method="PUT").status == 400


def test_cors_any_origin_is_allowed_by_a_star_and_none_by_default(serve):
    server = serve(["*"])
    for path in ("/index/m", BUNDLE):
        assert ask(server, "GET", path, Origin=PAGE).headers["access-control-allow-origin"] == "*"
    assert ask(server, "GET", BUNDLE).headers["access-control-allow-origin"] == "*"
    server = serve([])
    for path in ("/index/m", BUNDLE):
        assert "access-control-allow-origin" not in ask(server, "GET", path, Origin=PAGE).headers
