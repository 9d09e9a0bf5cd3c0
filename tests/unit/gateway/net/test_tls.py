"""TLS to a provider. Most tests use no sockets, so that they control which bytes arrive together."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tests.fakes import openai_wire
from tests.fakes.certificate import certificate, context
from tests.fakes.http_client import request_bytes
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.records import Records
from tests.fakes.script import answer, fin

from svc.gateway.net.io_batch import IoBatch
from svc.gateway.net.tls import (
    ENCRYPT_PART_BYTES,
    MAX_TLS_CONTROL_BYTES,
    MAX_TLS_RECORD_PLAINTEXT_BYTES,
    ConnectionTransport,
    TlsTransport,
)
from svc.gateway.upstream.pool import default_ssl_context

HI = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
LONG = "word " * 50_000


class RecordingProtocol:
    """Records received data. With `pauses`, it pauses after each chunk until the event loop's next turn."""

    def __init__(self, *, pauses: bool = False) -> None:
        self._pauses = pauses
        self.chunks: list[bytes] = []
        self.was_reading: list[bool] = []
        self.lost = asyncio.Event()
        self.reason: Exception | None = None

    @property
    def received(self) -> bytes:
        return b"".join(self.chunks)

    def connection_made(self, transport: ConnectionTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.was_reading.append(self.transport.is_reading())
        if self._pauses:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reason = exc
        self.lost.set()


class FakeTransport(asyncio.Transport):
    """The transport below TLS: records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.aborted = False
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def take(self) -> bytes:
        sent, self.sent = b"".join(self.sent), []
        return sent

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.abort()


class TlsServer:
    """The server side of TLS, whose bytes the test delivers."""

    def __init__(self, file: Path) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.keylog = file.with_suffix(".keys")
        made = context(file)
        made.keylog_filename = str(self.keylog)
        made.num_tickets = 0
        self._object = made.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def handshake(self, data: bytes) -> bytes:
        self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._object.do_handshake()
        return self._outgoing.read()

    def encrypt(self, *parts: bytes) -> bytes:
        for part in parts:
            self._object.write(part)
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._object.unwrap()
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        self._incoming.write(data)
        plaintext = b""
        while self._incoming.pending:
            plaintext += self._object.read(65536)
        return plaintext


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return file


def connect(
    file: Path,
    reader: RecordingProtocol | None = None,
    buffer: bytearray | None = None,
    batch: IoBatch | None = None,
) -> tuple[TlsTransport, RecordingProtocol, FakeTransport, TlsServer]:
    """Return a TLS transport after its handshake."""
    buffer = buffer or bytearray(2 * MAX_TLS_RECORD_PLAINTEXT_BYTES)
    reader = reader or RecordingProtocol()
    raw, provider = FakeTransport(), TlsServer(file)
    tls = TlsTransport(default_ssl_context(), "localhost", reader, buffer, batch=batch)
    tls.connection_made(raw)
    while data := raw.take():
        tls.data_received(provider.handshake(data))
    assert tls.handshake_done.done()
    return tls, reader, raw, provider


async def test_tls_records_received_together_are_delivered_together(trusted: Path) -> None:
    tls, reader, _, provider = connect(trusted)
    tls.data_received(provider.encrypt(b"HTTP/1.1 200 OK\r\n", b"content-length: 0\r\n", b"\r\n"))
    assert (reader.chunks, reader.was_reading) == ([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"], [True])


async def test_tls_small_read_waits_for_the_batch_or_the_end_of_the_connection(trusted: Path) -> None:
    batch = IoBatch(asyncio.get_running_loop())
    tls, reader, _, provider = connect(trusted, batch=batch)
    tls.data_received(provider.encrypt(b"one"))
    tls.data_received(provider.encrypt(b" two"))
    assert (reader.chunks, tls.is_reading()) == ([], False)
    batch.handle()
    assert (reader.chunks, tls.is_reading()) == ([b"one two"], True)
    tls.data_received(provider.encrypt(b"last"))
    tls.eof_received()
    assert reader.chunks == [b"one two", b"last"]


async def test_tls_transport_is_not_reading_while_more_data_is_buffered(trusted: Path) -> None:
    """Otherwise the buffered bytes would be taken for the next request's response."""
    tls, reader, _, provider = connect(trusted)
    tls.data_received(
        provider.encrypt(b"a" * MAX_TLS_RECORD_PLAINTEXT_BYTES, b"b" * MAX_TLS_RECORD_PLAINTEXT_BYTES, b"c")
    )
    assert [chunk[:1] + chunk[-1:] for chunk in reader.chunks] == [b"ab", b"cc"]
    assert reader.was_reading == [False, True]
    both = provider.encrypt(b"d") + provider.encrypt(b"e")
    tls.data_received(both[:-1])
    assert (reader.chunks[2:], reader.was_reading[2:]) == ([b"d"], [False])
    tls.data_received(both[-1:])
    assert (reader.chunks[3:], reader.was_reading[3:]) == ([b"e"], [True])


async def test_tls_close_notify_after_last_bytes_closes_without_error(trusted: Path) -> None:
    tls, reader, raw, provider = connect(trusted)
    tls.data_received(provider.encrypt(b"all") + provider.close_notify())
    assert (reader.chunks, reader.was_reading, raw.aborted) == ([b"all"], [False], True)
    tls.connection_lost(None)
    assert reader.lost.is_set()
    assert reader.reason is None


async def test_tls_eof_without_close_notify_is_connection_reset(trusted: Path) -> None:
    tls, reader, _, provider = connect(trusted)
    tls.data_received(provider.encrypt(b"all"))
    tls.eof_received()
    tls.connection_lost(None)
    assert isinstance(reader.reason, ConnectionResetError)


async def test_tls_key_updates_tickets_and_empty_records_are_transparent(trusted: Path) -> None:
    tls, reader, raw, provider = connect(trusted)
    records = Records(provider.keylog)
    empty_records = [records.seal(b"") for _ in range(20)]
    data_records = [
        records.ticket(2000),
        records.seal(b"one"),
        *[records.key_update() for _ in range(20)],
        records.seal(b"two"),
    ]
    for data in (
        *empty_records,
        *data_records,
        b"".join([records.key_update(), records.ticket(9), records.seal(b"three")]),
    ):
        tls.data_received(data)
    assert (reader.chunks, reader.was_reading) == ([b"one", b"two", b"three"], [True] * 3)
    reader.transport.write(b"more")
    assert provider.decrypt(raw.take()) == b"more"


class PausingProtocol(RecordingProtocol):
    """Pauses and resumes at random."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._is_reading = True

    def data_received(self, data: bytes) -> None:
        assert self._is_reading
        super().data_received(data)
        if self._chance.random() < 0.5:
            self._is_reading = False
            self.transport.pause_reading()
            if self._chance.random() < 0.3:
                self.transport.resume_reading()
                self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._is_reading = True
        self.transport.resume_reading()


@pytest.mark.parametrize("seed", range(20))
async def test_tls_random_splits_and_pauses_deliver_all_bytes(trusted: Path, seed: int) -> None:
    chance = random.Random(seed)
    buffer = bytearray(chance.choice([MAX_TLS_RECORD_PLAINTEXT_BYTES, 20_000, 2 * MAX_TLS_RECORD_PLAINTEXT_BYTES]))
    reader = PausingProtocol(chance)
    tls, _, raw, provider = connect(trusted, reader, buffer)
    records = Records(provider.keylog)
    sent = [chance.randbytes(chance.choice([0, 1, 100, 5000, MAX_TLS_RECORD_PLAINTEXT_BYTES])) for _ in range(60)]
    control_records = (records.key_update, lambda: records.ticket(100), bytes)
    line = b"".join([records.seal(part) + chance.choice(control_records)() for part in sent])
    while line:
        while not raw.reading:
            await asyncio.sleep(0)
        size = chance.choice([1, 1000, 2 * MAX_TLS_RECORD_PLAINTEXT_BYTES])
        tls.data_received(line[:size])
        line = line[size:]
    while len(reader.received) < sum(map(len, sent)):
        await asyncio.sleep(0)
    assert reader.received == b"".join(sent)
    assert not raw.aborted


async def test_tls_endless_key_updates_abort_connection(trusted: Path) -> None:
    """The replies would be buffered without limit for a provider that does not read."""
    tls, reader, raw, provider = connect(trusted)
    records = Records(provider.keylog)
    for _ in range(2 * MAX_TLS_CONTROL_BYTES // 1000):
        tls.data_received(b"".join([records.key_update() for _ in range(40)]))
        if raw.aborted:
            break
    assert raw.aborted
    assert len(raw.take()) <= MAX_TLS_CONTROL_BYTES
    tls.connection_lost(None)
    assert isinstance(reader.reason, ConnectionAbortedError)


@pytest.mark.parametrize("size", [0, 1, ENCRYPT_PART_BYTES, ENCRYPT_PART_BYTES + 1, 5 * ENCRYPT_PART_BYTES - 1])
async def test_tls_write_of_any_size_sends_all_bytes(trusted: Path, size: int) -> None:
    _, reader, raw, provider = connect(trusted)
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    reader.transport.writelines((b"head", data))
    assert provider.decrypt(raw.take()) == b"head" + data
    if data:
        reader.transport.write(data)
        assert provider.decrypt(raw.take()) == data


def system_authority_name() -> x509.Name:
    """Return the name of a system authority with the key type of the test certificates."""
    for file in Path(ssl.get_default_verify_paths().openssl_capath).glob("*.pem"):
        found = x509.load_pem_x509_certificate(file.read_bytes())
        if isinstance(found.public_key(), ec.EllipticCurvePublicKey):
            return found.subject
    pytest.skip("this system has no folder of certificates")


@pytest.mark.parametrize(("replaced", "expected"), [(True, "unable to get local issuer"), (False, "signature failure")])
async def test_tls_ssl_cert_file_replaces_system_authorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool, expected: str
) -> None:
    """With SSL_CERT_FILE, OpenSSL does not look for the issuer among the system's authorities."""
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    shown = certificate(tmp_path, "localhost", feigned=system_authority_name())
    if replaced:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path, "other.example")))
    reader, raw, provider = RecordingProtocol(), FakeTransport(), TlsServer(shown)
    tls = TlsTransport(default_ssl_context(), "localhost", reader, bytearray(2 * MAX_TLS_RECORD_PLAINTEXT_BYTES))
    tls.connection_made(raw)
    tls.data_received(provider.handshake(raw.take()))
    tls.connection_lost(None)
    with pytest.raises(ssl.SSLCertVerificationError, match=expected):
        await tls.handshake_done


async def test_tls_response_read_with_pauses_is_complete(trusted: Path) -> None:
    buffer = bytearray(20_000)
    reader = RecordingProtocol(pauses=True)
    tls = TlsTransport(default_ssl_context(), "localhost", reader, buffer)
    with FakeProvider(OpenAIWire(), tls=context(trusted)) as fake:
        fake.plays(answer(200, openai_wire.chat(LONG)) + fin())
        await asyncio.get_running_loop().create_connection(lambda: tls, "127.0.0.1", fake.port)
        await asyncio.wait_for(tls.handshake_done, 20)
        request = request_bytes("POST", "/v1/chat/completions", HI, key=fake.key)
        reader.transport.writelines((request[:20], request[20:]))
        await asyncio.wait_for(reader.lost.wait(), 10)
    assert LONG.encode() in reader.received
    assert reader.reason is None
