"""Bundles in a real OCI registry, Debian's `docker-registry`. Skipped if it is not installed."""

import base64
import json
import os
import subprocess
import urllib.error
import urllib.request

import pytest

from tests.fakes.ports import closed_port

from .conftest import make_bundle, until
from .throttle import Throttle

CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}", relativeurls: true}}
auth: {{htpasswd: {{realm: r, path: {folder}/passwords}}}}
"""
PASSWORDS = "u:$2y$05$abcdefghijklmnopqrstuuqwWMzKt5N8p.u2GX5MuH1t19BMWuLOW\n"
"""User u, password p."""


@pytest.fixture(scope="module")
def oci(tmp_path_factory):
    """The port of a registry that requires a password."""
    folder, port = tmp_path_factory.mktemp("oci"), closed_port()
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, port=port))
    (folder / "passwords").write_text(PASSWORDS)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)

    def answers():
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2).close()
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            assert process.poll() is None, (folder / "log").read_text()
        return False

    until(answers)
    yield port
    process.kill()
    process.wait(10)


def test_oci_pull_by_digest_ignores_moved_tag(oci, machine, tmp_path):
    one = machine(SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    path = make_bundle(tmp_path / "m.xyb", data=os.urandom(3 << 20))
    push = ("registry", "push", path, "--oci", f"127.0.0.1:{oci}/team/m:1.0")
    output = json.loads(one.run(*push, "--json").stdout)
    assert json.loads(one.run(*push, "--json").stdout) == output, "a second push changes nothing"
    two = machine("two", SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    two.run("registry", "pull", f"oci://{output['reference']}")
    assert (two.root / "m/1.0/any/m.xyb").read_bytes() == path.read_bytes()
    other = make_bundle(tmp_path / "o.xyb", data=b"other")
    one.run("registry", "push", other, "--oci", f"127.0.0.1:{oci}/team/m:1.0")
    three = machine("three", SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    three.run("registry", "pull", f"oci://{output['reference']}")
    assert (three.root / "m/1.0/any/m.xyb").read_bytes() == path.read_bytes(), "the tag moved, the digest did not"


def test_oci_signature_is_pulled_and_verified(oci, machine, tmp_path):
    one = machine(SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    key = one.run("registry", "sign-key").stdout.strip()
    path = make_bundle(tmp_path / "s.xyb", "s", "1")
    one.run("registry", "push", "--sign", path, "--oci", f"127.0.0.1:{oci}/team/s:1")
    two = machine("two", SVC_OCI_USER="u", SVC_OCI_PASSWORD="p", SVC_TRUSTED_KEYS=key)
    two.run("registry", "pull", f"oci://127.0.0.1:{oci}/team/s:1")
    stranger = one.run("registry", "sign-key", SVC_HOME=str(tmp_path / "stranger")).stdout.strip()
    three = machine("three", SVC_OCI_USER="u", SVC_OCI_PASSWORD="p", SVC_TRUSTED_KEYS=stranger)
    assert "rejected" in three.run("registry", "pull", f"oci://127.0.0.1:{oci}/team/s:1", check=1).stderr


def test_oci_pull_interrupted_resumes(oci, machine, tmp_path):
    one = machine(SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    path = make_bundle(tmp_path / "m.xyb", data=os.urandom(12 << 20))
    one.run("registry", "push", path, "--oci", f"127.0.0.1:{oci}/team/cut:1")
    throttle = Throttle(oci, 24 << 20)
    two = machine("two", SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
    client = two.start("registry", "pull", f"oci://127.0.0.1:{throttle.port}/team/cut:1")
    parts = two.root / ".registry/downloads"
    until(lambda: parts.exists() and sum(part.stat().st_size for part in parts.glob("*.part")) > 4 << 20)
    throttle.cut()
    assert client.wait(30) == 0, client.stderr.read()
    assert throttle.sent < 1.1 * path.stat().st_size
    assert (two.root / "m/1.0/any/m.xyb").read_bytes() == path.read_bytes()
    throttle.close()


def test_oci_push_unauthorized_prints_one_line(oci, machine, tmp_path):
    path = make_bundle(tmp_path / "m.xyb")
    wrong = {"SVC_OCI_USER": "u", "SVC_OCI_PASSWORD": "wrong"}
    for environ, advice in (({}, f"docker login 127.0.0.1:{oci}, or set"), (wrong, "refuses these credentials")):
        output = (
            machine().run("registry", "push", path, "--oci", f"127.0.0.1:{oci}/team/m:9", check=1, **environ).stderr
        )
        assert "401" in output
        assert advice in output
        assert len(output.splitlines()) == 1


def test_oci_docker_login_and_credential_helper_are_used(oci, machine, tmp_path):
    path = make_bundle(tmp_path / "m.xyb", data=b"login")
    reference = f"127.0.0.1:{oci}/team/login:1"
    config = tmp_path / "docker"
    config.mkdir()

    def write(**content):
        (config / "config.json").write_text(json.dumps(content))

    one = machine(DOCKER_CONFIG=str(config))
    write(auths={f"127.0.0.1:{oci}": {"auth": base64.b64encode(b"u:p").decode()}})
    one.run("registry", "push", path, "--oci", reference)
    program = tmp_path / "bin" / "docker-credential-test"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nread -r server\necho "{\\"Username\\": \\"u\\", \\"Secret\\": \\"$TEST_SECRET\\"}"\n'
    )
    program.chmod(0o755)
    write(credHelpers={f"127.0.0.1:{oci}": "test"})
    found = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    two = machine("two", DOCKER_CONFIG=str(config))
    two.run("registry", "pull", f"oci://{reference}", **found, TEST_SECRET="p")
    assert (two.root / "m/1.0/any/m.xyb").read_bytes() == path.read_bytes()
    three = machine("three", DOCKER_CONFIG=str(config))
    assert "401" in three.run("registry", "pull", f"oci://{reference}", check=1, **found, TEST_SECRET="wrong").stderr
    assert "docker-credential-test" in three.run("registry", "pull", f"oci://{reference}", check=1).stderr
    write(auths={})
    assert "401" in three.run("registry", "pull", f"oci://{reference}", check=1).stderr
    three.run("registry", "pull", f"oci://{reference}", SVC_OCI_USER="u", SVC_OCI_PASSWORD="p")
