"""Where the OCI registry client sends credentials. Each loopback server is an origin of its own."""

import contextlib
import json
import ssl
from urllib.parse import parse_qsl

import pytest
from tests.fakes.certificate import certificate, context
from tests.fakes.ports import closed_port
from tests.fakes.web import Answer, WebServer

from svc.bundles import oci
from svc.bundles.oci_credentials import OciCredentials
from svc.errors import BundleNotFound, RegistryFailed

BASIC = "Basic dTpw"
DIGEST = f"sha256:{'0' * 64}"
MANIFEST = {
    "schemaVersion": 2,
    "config": {"mediaType": "x", "digest": DIGEST, "size": 2},
    "layers": [{"mediaType": "x", "digest": DIGEST, "size": 2}],
}
FOUND = Answer(body=json.dumps(MANIFEST).encode())


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Start servers. `tls` names the host of the certificate."""
    files = {name: certificate(tmp_path, name) for name in ("localhost", "other.localhost")}
    bundle = tmp_path / "authorities.pem"
    bundle.write_bytes(b"".join(file.read_bytes() for file in files.values()))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with contextlib.ExitStack() as stack:

        def start(answer, tls: str | None = None) -> WebServer:
            made: ssl.SSLContext | None = context(files[tls]) if tls else None
            return stack.enter_context(WebServer(answer, made, tls or ""))

        yield start


def client(server, *token_hosts, user: str | None = "u"):
    credentials = None if user is None else OciCredentials(user, "p")
    return oci.OciRepository(oci.parse_oci_reference(f"{server.url}/team/m:1"), lambda: credentials, token_hosts)


def registry_with(realm):
    """Return a handler for a registry that accepts tokens of the token service at `realm`."""

    def answer(request):
        if request.authorization == "Bearer t0ken":
            return FOUND
        return Answer(401, {"www-authenticate": f'Bearer realm="{realm()}",service="s"'})

    return answer


def give_token(request):
    return Answer(body=b'{"token": "t0ken"}')


def authorizations(server):
    return [request.authorization for request in server.requests]


@pytest.mark.parametrize("challenge", ["Basic realm=x", 'Bearer realm="{url}/token",service="s"'])
def test_oci_challenge_from_redirect_target_gets_no_credentials(serve, challenge):
    other_host = serve(lambda request: Answer(401, {"www-authenticate": challenge.format(url=other_host.url)}))
    server = serve(lambda request: Answer(307, {"location": f"{other_host.url}/blob"}))
    with pytest.raises(RegistryFailed, match="401"), client(server).open_blob(DIGEST):
        pass
    assert authorizations(other_host) == [None]


def test_oci_redirect_after_login_carries_no_credentials(serve):
    other_host = serve(lambda request: Answer(body=b"blob"))

    def answer(request):
        if request.authorization != BASIC:
            return Answer(401, {"www-authenticate": "Basic realm=x"})
        return Answer(307, {"location": f"{other_host.url}/blob"})

    server = serve(answer)
    with client(server).open_blob(DIGEST) as found:
        assert found.read() == b"blob"
    assert authorizations(server) == [None, BASIC]
    assert authorizations(other_host) == [None]


def test_oci_upload_location_on_other_host_gets_no_credentials(serve, tmp_path):
    other_host = serve(lambda request: Answer(401, {"www-authenticate": "Basic realm=x"}))

    def answer(request):
        if request.authorization != BASIC:
            return Answer(401, {"www-authenticate": "Basic realm=x"})
        return Answer(404) if request.method == "HEAD" else Answer(202, {"location": f"{other_host.url}/upload"})

    file = tmp_path / "m.xyb"
    file.write_bytes(b"bytes")
    with pytest.raises(RegistryFailed, match="401"):
        client(serve(answer)).push(file, "0" * 64, {})
    assert authorizations(other_host) == [None]


def test_oci_redirect_from_https_to_http_carries_no_credentials(serve):
    plain = serve(lambda request: Answer(401, {"www-authenticate": "Basic realm=x"}))

    def answer(request):
        if request.authorization != BASIC:
            return Answer(401, {"www-authenticate": "Basic realm=x"})
        return Answer(302, {"location": f"http://localhost:{plain.server_address[1]}/blob"})

    with pytest.raises(RegistryFailed, match="401"), client(serve(answer, "localhost")).open_blob(DIGEST):
        pass
    assert authorizations(plain) == [None]


def test_oci_token_service_on_same_origin_gets_credentials(serve):
    def answer(request):
        if request.path.startswith("/token?"):
            return give_token(request)
        return registry_with(lambda: f"{server.url}/token")(request)

    server = serve(answer)
    client(server).fetch_manifest()
    assert authorizations(server) == [None, BASIC, "Bearer t0ken"]


def test_oci_token_service_with_https_on_same_host_gets_credentials(serve):
    service = serve(give_token, "localhost")
    server = serve(registry_with(lambda: f"{service.url}/token?a=b"), "localhost")
    client(server).fetch_manifest()
    assert authorizations(service) == [BASIC]
    assert service.requests[0].path.startswith("/token?a=b&service=s&scope=")


@pytest.mark.parametrize("tls", [None, "localhost"])
def test_oci_token_service_on_other_host_gets_credentials_only_if_configured(serve, tls):
    """Without https, another port is another origin. With https, another domain is."""
    service = serve(give_token, tls)
    server = serve(registry_with(lambda: f"{service.url}/token"))
    host = service.host.partition(":")[0]
    with pytest.raises(RegistryFailed, match=f"SVC_OCI_TOKEN_HOST={host}"):
        client(server).fetch_manifest()
    assert service.requests == []
    client(server, host).fetch_manifest()
    assert authorizations(service) == [BASIC]


@pytest.mark.parametrize("user", ["u", None])
def test_oci_plaintext_token_service_of_https_registry_is_not_contacted(serve, user):
    service = serve(give_token)
    server = serve(registry_with(lambda: f"http://localhost:{service.server_address[1]}/token"), "localhost")
    with pytest.raises(RegistryFailed, match="without https"):
        client(server, "localhost", user=user).fetch_manifest()
    assert service.requests == []


def test_oci_token_service_redirect_is_not_followed(serve):
    other_host = serve(give_token)

    def answer(request):
        if request.path.startswith("/token?"):
            return Answer(307, {"location": f"{other_host.url}/token"})
        return registry_with(lambda: f"{server.url}/token")(request)

    server = serve(answer)
    with pytest.raises(RegistryFailed, match="307"):
        client(server).fetch_manifest()
    assert other_host.requests == []


def test_oci_identity_token_is_sent_as_form_to_token_service(serve):
    service = serve(give_token, "localhost")
    server = serve(registry_with(lambda: f"{service.url}/token"), "localhost")
    reference = oci.parse_oci_reference(f"{server.url}/team/m:1")
    oci.OciRepository(reference, lambda: OciCredentials(identity_token="a+b")).fetch_manifest()
    (request,) = service.requests
    assert (request.method, request.path, request.authorization) == ("POST", "/token", None)
    form = dict(parse_qsl(request.body.decode()))
    assert form == {
        "grant_type": "refresh_token",
        "client_id": "svc",
        "service": "s",
        "scope": "repository:team/m:pull,push",
        "refresh_token": "a+b",
    }


def test_oci_identity_token_is_not_sent_to_other_host(serve):
    service = serve(give_token)
    server = serve(registry_with(lambda: f"{service.url}/token"))
    reference = oci.parse_oci_reference(f"{server.url}/team/m:1")
    with pytest.raises(RegistryFailed, match="SVC_OCI_TOKEN_HOST"):
        oci.OciRepository(reference, lambda: OciCredentials(identity_token="t")).fetch_manifest()
    assert service.requests == []


def test_oci_credentials_are_searched_only_after_challenge(serve):
    def find():
        raise AssertionError("no challenge")

    server = serve(lambda request: FOUND)
    oci.OciRepository(oci.parse_oci_reference(f"{server.url}/team/m:1"), find).fetch_manifest()


def test_oci_token_without_credentials_is_requested_from_any_host(serve):
    service = serve(give_token)
    server = serve(registry_with(lambda: f"{service.url}/token"))
    client(server, user=None).fetch_manifest()
    assert authorizations(service) == [None]


@pytest.mark.parametrize(
    ("host", "registry", "related"),
    [
        ("auth.docker.io", "registry-1.docker.io", True),
        ("gitlab.com", "registry.gitlab.com", True),
        ("auth.example.co.uk", "registry.example.co.uk", True),
        ("auth.quay.io", "quay.io", True),
        ("docker.io.evil.net", "registry-1.docker.io", False),
        ("evil-docker.io", "registry-1.docker.io", False),
        ("evil.io", "quay.io", False),
        ("10.0.0.9", "10.0.0.1", False),
    ],
)
def test_oci_token_service_host_is_compared_with_parent_domain(host, registry, related):
    assert oci._is_under_parent_domain(host, registry) is related


@pytest.mark.parametrize("realm", ["", "file:///etc/passwd", "http://[::1", "https://"])
def test_oci_malformed_token_service_raises_registry_failed(serve, realm):
    with pytest.raises(RegistryFailed):
        client(serve(registry_with(lambda: realm))).fetch_manifest()


def test_oci_deeply_nested_manifest_raises_registry_failed(serve):
    body = b'{"schemaVersion": 2, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(RegistryFailed):
        client(serve(lambda request: Answer(body=body))).fetch_manifest()


def test_oci_plaintext_request_to_tls_server_names_the_scheme(serve):
    server = serve(lambda request: Answer(400, body=b"Client sent an HTTP request to an HTTPS server."))
    with pytest.raises(RegistryFailed) as caught:
        client(server).fetch_manifest()
    assert caught.value.message.endswith(f" begin the reference with oci://https://{server.url.partition('://')[2]}/")


@pytest.mark.parametrize(("user", "advice"), [(None, "Log in with: docker login 127.0.0.1:"), ("u", "refuses these")])
def test_oci_forbidden_token_says_how_to_log_in(serve, user, advice):
    """Some token services respond with 403 to a request without credentials."""
    services = serve(lambda request: Answer(403))
    with pytest.raises(RegistryFailed, match="returned status 403") as caught:
        client(serve(registry_with(lambda: services.url)), services.host.partition(":")[0], user=user).fetch_manifest()
    assert advice in caught.value.message


def test_oci_missing_tag_raises_bundle_not_found_that_names_it(serve):
    body = b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{"Tag":"nope"}}]}'
    server = serve(lambda request: Answer(404, body=body))
    with pytest.raises(BundleNotFound) as caught:
        client(server).fetch_manifest()
    assert caught.value.message == f"There is no team/m:1 at {server.url}."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"errors":[{"code":"DENIED","message":"access is denied","detail":[1]}]}', "access is denied"),
        (b'{"errors":[{"code":"DENIED"},{"message":"really"}]}', "DENIED; really"),
        (b'{"errors":[]}', '{"errors":[]}'),
        (b'{"errors": 5}', '{"errors": 5}'),
    ],
)
def test_oci_error_shows_the_messages_of_the_registry(serve, body, text):
    with pytest.raises(RegistryFailed) as caught:
        client(serve(lambda request: Answer(500, body=body))).fetch_manifest()
    assert caught.value.message.endswith(f" returned status 500: {text}")


def test_oci_unreachable_proxy_is_named(serve, monkeypatch):
    proxy = f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@{proxy}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(RegistryFailed) as caught:
        client(serve(lambda request: Answer())).fetch_manifest()
    assert caught.value.message.endswith(
        f"cannot be reached: the proxy at {proxy} cannot be reached: Connection refused."
    )


def test_oci_error_text_escapes_control_characters(serve):
    answer = Answer(500, body="\x1b[2J\u202eoops".encode())
    with pytest.raises(RegistryFailed) as caught:
        client(serve(lambda request: answer)).fetch_manifest()
    assert caught.value.message.endswith("\\u001b[2J\\u202eoops")
