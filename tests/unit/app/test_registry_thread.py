"""The registry beside a gateway."""

import http.client
import socket

from tests.fakes.ports import closed_port

from svc import settings
from svc.app.registry import RegistryThread


def test_registry_thread_bucket_unavailable_starts(tmp_path, monkeypatch):
    environ = {
        "SVC_HOME": str(tmp_path),
        "SVC_BLOB_URL": "s3://bundles/prefix",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port()}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    for name, value in environ.items():  # obstore reads the variables of the process
        monkeypatch.setenv(name, value)
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, RegistryThread(settings.load(environ), listener):
        connection = http.client.HTTPConnection(*listener.getsockname(), timeout=20)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
