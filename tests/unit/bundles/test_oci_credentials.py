"""Credentials of `docker login`: the file, and real helper programs."""

import base64
import json

import pytest

from svc.bundles.oci_credentials import OciCredentials, find_credentials
from svc.errors import RegistryFailed, UsageError

HELPER = """#!/bin/sh
[ "$1" = get ] || exit 2
read -r server
echo "$server" >> "$LOG"
case $server in
  ghcr.io|localhost:5000|https://index.docker.io/v1/) echo '{"ServerURL": "x", "Username": "helped", "Secret": "s"}' ;;
  token.io) echo '{"Username": "<token>", "Secret": "identity"}' ;;
  broken.io) echo 'secret output' ; exit 1 ;;
  text.io) echo 'no json' ;;
  *) echo 'credentials not found in native keychain' ; exit 1 ;;
esac
"""


def encode(text):
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def find(tmp_path):
    """Return a function that writes the configuration, and finds the credentials of a host."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "docker-credential-test"
    program.write_text(HELPER)
    program.chmod(0o755)
    log = tmp_path / "servers"

    def search(config, host="ghcr.io", repository="team/m"):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        environ = {"DOCKER_CONFIG": str(tmp_path), "PATH": f"{bin_folder}:/usr/bin:/bin", "LOG": str(log)}
        return find_credentials(host, repository, environ)

    return search


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("ghcr.io", "ghcr.io"),
        ("https://ghcr.io", "ghcr.io"),
        ("https://ghcr.io/v2/", "ghcr.io"),
        ("localhost:5000", "localhost:5000"),
        ("https://index.docker.io/v1/", "registry-1.docker.io"),
        ("https://index.docker.io/v1/", "docker.io"),
    ],
)
def test_find_credentials_auth_entry_is_decoded(find, key, host):
    config = {"auths": {key: {"auth": encode("u:p:q")}, "other.io": {"auth": encode("x:y")}}, "HttpHeaders": {"a": "b"}}
    assert find(config, host) == OciCredentials("u", "p:q")


def test_find_credentials_most_specific_key_wins(find):
    entries = {name: {"auth": encode(f"{name}:p")} for name in ("q.io", "q.io/team", "q.io/team/m", "q.io/te")}
    assert find({"auths": entries}, "q.io", "team/m").user == "q.io/team/m"
    assert find({"auths": entries}, "q.io", "team/n").user == "q.io/team"
    assert find({"auths": entries}, "q.io", "tea").user == "q.io"
    assert find({"auths": entries}, "q.io.evil.net", "team/m") is None


def test_find_credentials_helper_precedes_store_and_file(find, tmp_path):
    auths = {"auths": {"ghcr.io": {}, "other.io": {"auth": encode("u:p")}}}
    assert find(auths | {"credHelpers": {"ghcr.io": "test"}, "credsStore": "none"}).user == "helped"
    assert find(auths | {"credsStore": "test"}).user == "helped"
    assert find(auths | {"credsStore": "test"}, "other.io") == OciCredentials("u", "p")
    assert find({"credsStore": "test"}, "nobody.io") is None
    assert find({"credsStore": "test"}, "registry-1.docker.io").user == "helped"
    servers = (tmp_path / "servers").read_text().split()
    assert servers == ["ghcr.io", "ghcr.io", "other.io", "nobody.io", "https://index.docker.io/v1/"]


def test_find_credentials_identity_tokens_are_found(find):
    assert find({"credsStore": "test"}, "token.io") == OciCredentials(identity_token="identity")
    entry = {"auth": encode("00000000-0000-0000-0000-000000000000:"), "identitytoken": "t"}
    assert find({"auths": {"a.azurecr.io": entry}}, "a.azurecr.io").identity_token == "t"


def test_find_credentials_without_file_or_entry_returns_none(find, tmp_path):
    assert find_credentials("ghcr.io", "m", {"DOCKER_CONFIG": str(tmp_path / "none")}) is None
    assert find_credentials("ghcr.io", "m", {"HOME": str(tmp_path / "none")}) is None
    assert find({"auths": {"ghcr.io": {}}}) is None
    assert find({"auths": {"ghcr.io": None}}) is None
    assert find({}) is None


def test_find_credentials_home_folder_is_default(tmp_path):
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(json.dumps({"auths": {"q.io": {"auth": encode("u:p")}}}))
    assert find_credentials("q.io", "m", {"HOME": str(tmp_path)}) == OciCredentials("u", "p")


@pytest.mark.parametrize(
    "config",
    ["{", "[]", '{"auths": []}', {"auths": {"ghcr.io": {"auth": "%"}}}, {"auths": {"ghcr.io": {"auth": encode("u")}}}],
)
def test_find_credentials_malformed_file_raises_usage_error(find, config):
    with pytest.raises(UsageError, match=r"config\.json"):
        find(config)


@pytest.mark.parametrize("name", ["../evil", "a/b", "-x", "a b"])
def test_find_credentials_malformed_helper_name_raises_usage_error(find, name):
    with pytest.raises(UsageError, match="malformed credential helper"):
        find({"credsStore": name})


@pytest.mark.parametrize(
    ("helper", "host", "message"),
    [
        ("test", "broken.io", "ended with status 1"),
        ("test", "text.io", "did not print"),
        ("absent", "ghcr.io", "docker-credential-absent, .* does not start"),
    ],
)
def test_find_credentials_failing_helper_raises_registry_failed_without_its_output(find, helper, host, message):
    with pytest.raises(RegistryFailed, match=message) as caught:
        find({"credHelpers": {host: helper}}, host)
    assert "secret output" not in caught.value.message


def test_oci_credentials_repr_has_no_secret():
    assert "hidden" not in repr(OciCredentials("u", "hidden", "hidden"))
