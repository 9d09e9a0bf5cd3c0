"""A real nginx sends the files, configured as in docs/how-to/serve-bundles-with-nginx.md. Skipped without nginx."""

import http.client
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.fakes.ports import closed_port

from .conftest import Machine, make_bundle

DOCS = Path(__file__).parents[3] / "docs/how-to/serve-bundles-with-nginx.md"
NGINX_CONFIG = """
daemon off; worker_processes 1; pid {run}/pid; error_log {run}/error.log; {user}
events {{}}
http {{ access_log off; client_body_temp_path {run}/b; proxy_temp_path {run}/p; fastcgi_temp_path {run}/f;
  uwsgi_temp_path {run}/u; scgi_temp_path {run}/s; server {{ listen 127.0.0.1:{port}; {location_block} }} }}
"""
PATH = "/bundles/m/1.0/any/m.xyb"


@pytest.fixture(scope="module")
def proxied_registry(tmp_path_factory):
    """The registry's machine, nginx's port, and a bundle's bytes."""
    folder = tmp_path_factory.mktemp("nginx")
    one = Machine(folder / "home", SVC_REGISTRY_KEYS="k1")
    one.home.mkdir()
    data = os.urandom(3 << 20)
    bundle = make_bundle(folder / "m.xyb", data=data)
    one.run("registry", "add", bundle)
    server = one.serve("--accel-redirect", "/files")
    (block,) = re.findall(r"```nginx\n(.*?)```", DOCS.read_text(), re.DOTALL)
    location_block = block.replace("http://127.0.0.1:8080", server.url).replace(
        "/var/lib/svc/registry/", f"{one.root}/"
    )
    port = closed_port()
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "conf").write_text(NGINX_CONFIG.format(run=folder, port=port, location_block=location_block, user=user))
    process = subprocess.Popen(["nginx", "-c", folder / "conf", "-p", folder])
    deadline = time.monotonic() + 10
    while True:
        try:
            ask(port, "HEAD", "/health")
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    yield one, server, port, bundle.read_bytes()
    process.terminate()
    process.wait(10)
    one.stop()


def ask(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer, answer.read()


def test_nginx_sends_file_of_x_accel_redirect(proxied_registry):
    _, server, port, data = proxied_registry
    answer, body = ask(server.port, "GET", PATH)
    assert (answer.headers["x-accel-redirect"], body) == ("/files/m/1.0/any/m.xyb", b"")
    answer, body = ask(port, "GET", PATH)
    assert body == data
    assert "x-accel-redirect" not in answer.headers
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["etag"].startswith('"sha256:')
    answer, body = ask(port, "HEAD", PATH)
    assert (int(answer.headers["content-length"]), body) == (len(data), b"")
    assert ask(port, "GET", "/files/m/1.0/any/m.xyb")[0].status == 404
    assert ask(port, "GET", "/bundles/m/2/any/m.xyb")[0].status == 404


def test_nginx_range_and_conditional_requests_return_standard_status(proxied_registry):
    _, _, port, data = proxied_registry
    tag = ask(port, "HEAD", PATH)[0].headers["etag"]
    for range_spec, expected in (("0-99", data[:100]), ("1000000-", data[1000000:]), ("-7", data[-7:])):
        answer, body = ask(port, "GET", PATH, range=f"bytes={range_spec}")
        assert (answer.status, body) == (206, expected)
        assert ask(port, "GET", PATH, range=f"bytes={range_spec}", if_range=tag)[1] == expected
    for other in ('"sha256:other"', f"W/{tag}", "Sat, 21 Nov 2099 08:00:00 GMT"):
        answer, body = ask(port, "GET", PATH, range="bytes=0-99", if_range=other)
        assert (answer.status, len(body)) == (200, len(data)), other
    assert ask(port, "GET", PATH, if_none_match=tag)[0].status == 304
    assert ask(port, "GET", PATH, range=f"bytes={len(data)}-")[0].status == 416


def test_nginx_push_and_pull_through_proxy_work(proxied_registry, machine, tmp_path):
    port = proxied_registry[2]
    two = machine("two", SVC_REGISTRY_KEY="k1", SVC_REGISTRY_URL=f"http://127.0.0.1:{port}")
    two.run("registry", "push", make_bundle(tmp_path / "n.xyb", "n", "1", data=os.urandom(2 << 20)))
    two.run("registry", "pull", "n@1")
    assert (two.root / "n/1/any/n.xyb").read_bytes() == (tmp_path / "n.xyb").read_bytes()
