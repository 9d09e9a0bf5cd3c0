"""Providers behind TLS, as all real ones are."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.e2e.harness import GPT, Gateway
from tests.e2e.reading import text_of, whole_chunks
from tests.e2e.test_backpressure import KIB
from tests.e2e.test_memory import resident
from tests.e2e.test_resume import STREAM
from tests.fakes import openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import sse

STREAMS = 8


def certificate(folder: Path, name: str) -> Path:
    """A self-signed one and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / f"{name}.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(serialization.Encoding.PEM, *form)
    )
    return path


@contextlib.contextmanager
def provider(name: str, folder: Path) -> Iterator[tuple[FakeProvider, Gateway]]:
    """A provider whose certificate is for `name`, and a gateway that trusts it."""
    file = certificate(folder, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with FakeProvider(OpenAIWire(), key="sk-tls", tls=context) as fake:
        env = {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1", "SSL_CERT_FILE": str(file)}
        gateway = Gateway(folder, env=env, config="[routing]\nretries = 0\n").start()
        yield fake, gateway
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.log


def test_answers_streams_and_connections_that_are_used_again(tmp_path: Path) -> None:
    with provider("localhost", tmp_path) as (fake, gateway):
        for stream in (False, True) * 3:
            got = gateway.chat(stream=stream)
            assert got.status == 200
            if stream:
                assert text_of(whole_chunks(got.body)) == openai_wire.TEXT
        assert {seen.connection for seen in fake.requests} == {1}


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    with provider("other.example", tmp_path) as (fake, gateway):
        got = gateway.chat()
        assert (got.status, got.code) == (502, "provider_error")
        assert not fake.requests


def test_who_does_not_read_costs_little_here_too(tmp_path: Path) -> None:
    """Of a provider that sends as fast as any does; see docs/resilience.md for one that floods."""
    with provider("localhost", tmp_path) as (fake, gateway):
        gateway.chat(GPT, stream=True)
        fake.forget()
        fake.always_plays(
            sse([openai_wire.role(), *[openai_wire.chunk({"content": " word"}) * 20] * 2000], every=0.005)
        )
        asked = request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key)
        before = resident(gateway)
        with contextlib.ExitStack() as stack:
            for _ in range(STREAMS):
                client = stack.enter_context(gateway.raw())
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.send(asked)
            fake.wait(STREAMS, 20)
            time.sleep(3)
            assert (resident(gateway) - before) / STREAMS < 256 * KIB
