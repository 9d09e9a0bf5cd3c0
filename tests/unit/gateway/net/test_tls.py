"""TLS to a provider, without sockets where what comes together matters, and on asyncio's own event loop."""

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


class Reads:
    """Keeps what comes. `slowly`: it pauses after each piece, until the loop's next turn."""

    def __init__(self, *, slowly: bool = False) -> None:
        self._slowly = slowly
        self.pieces: list[bytes] = []
        self.at_rest: list[bool] = []
        self.lost = asyncio.Event()
        self.reason: Exception | None = None

    @property
    def got(self) -> bytes:
        return b"".join(self.pieces)

    def connection_made(self, transport: ConnectionTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.at_rest.append(self.transport.is_reading())
        if self._slowly:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reason = exc
        self.lost.set()


class Wire(asyncio.Transport):
    """Below the transport: keeps what it is to send."""

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


class Provider:
    """The other end, whose bytes a test hands over as it likes."""

    def __init__(self, file: Path) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.keylog = file.with_suffix(".keys")
        made = context(file)
        made.keylog_filename = str(self.keylog)
        made.num_tickets = 0
        self._object = made.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shakes(self, data: bytes) -> bytes:
        self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._object.do_handshake()
        return self._outgoing.read()

    def says(self, *parts: bytes) -> bytes:
        for part in parts:
            self._object.write(part)
        return self._outgoing.read()

    def ends(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._object.unwrap()
        return self._outgoing.read()

    def hears(self, data: bytes) -> bytes:
        self._incoming.write(data)
        heard = b""
        while self._incoming.pending:
            heard += self._object.read(65536)
        return heard


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return file


def ready(
    file: Path, reader: Reads | None = None, buffer: bytearray | None = None
) -> tuple[TlsTransport, Reads, Wire, Provider]:
    """After the handshake."""
    buffer = buffer or bytearray(2 * MAX_TLS_RECORD_PLAINTEXT_BYTES)
    reader = reader or Reads()
    wire, provider = Wire(), Provider(file)
    sealed = TlsTransport(default_ssl_context(), "localhost", reader, buffer)
    sealed.connection_made(wire)
    while data := wire.take():
        sealed.data_received(provider.shakes(data))
    assert sealed.handshake_done.done()
    return sealed, reader, wire, provider


async def test_what_comes_together_is_handed_on_together(trusted: Path) -> None:
    sealed, reader, _, provider = ready(trusted)
    sealed.data_received(provider.says(b"HTTP/1.1 200 OK\r\n", b"content-length: 0\r\n", b"\r\n"))
    assert (reader.pieces, reader.at_rest) == ([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"], [True])


async def test_it_is_not_at_rest_while_something_more_has_come(trusted: Path) -> None:
    """Else the next request on the connection would be answered by what nobody asked for."""
    sealed, reader, _, provider = ready(trusted)
    sealed.data_received(
        provider.says(b"a" * MAX_TLS_RECORD_PLAINTEXT_BYTES, b"b" * MAX_TLS_RECORD_PLAINTEXT_BYTES, b"c")
    )
    assert [piece[:1] + piece[-1:] for piece in reader.pieces] == [b"ab", b"cc"]
    assert reader.at_rest == [False, True]
    both = provider.says(b"d") + provider.says(b"e")
    sealed.data_received(both[:-1])
    assert (reader.pieces[2:], reader.at_rest[2:]) == ([b"d"], [False])
    sealed.data_received(both[-1:])
    assert (reader.pieces[3:], reader.at_rest[3:]) == ([b"e"], [True])


async def test_an_end_behind_the_last_bytes(trusted: Path) -> None:
    sealed, reader, wire, provider = ready(trusted)
    sealed.data_received(provider.says(b"all") + provider.ends())
    assert (reader.pieces, reader.at_rest, wire.aborted) == ([b"all"], [False], True)
    sealed.connection_lost(None)
    assert reader.lost.is_set()
    assert reader.reason is None


async def test_an_end_that_tls_does_not_know_of(trusted: Path) -> None:
    sealed, reader, _, provider = ready(trusted)
    sealed.data_received(provider.says(b"all"))
    sealed.eof_received()
    sealed.connection_lost(None)
    assert isinstance(reader.reason, ConnectionResetError)


async def test_new_keys_tickets_and_nothing_at_all_between_the_bytes(trusted: Path) -> None:
    sealed, reader, wire, provider = ready(trusted)
    records = Records(provider.keylog)
    nothing = [records.seal(b"") for _ in range(20)]
    said = [
        records.ticket(2000),
        records.seal(b"one"),
        *[records.key_update() for _ in range(20)],
        records.seal(b"two"),
    ]
    for data in (*nothing, *said, b"".join([records.key_update(), records.ticket(9), records.seal(b"three")])):
        sealed.data_received(data)
    assert (reader.pieces, reader.at_rest) == ([b"one", b"two", b"three"], [True] * 3)
    reader.transport.write(b"more")
    assert provider.hears(wire.take()) == b"more"


class Hesitates(Reads):
    """Pauses, and changes its mind."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._wants = True

    def data_received(self, data: bytes) -> None:
        assert self._wants
        super().data_received(data)
        if self._chance.random() < 0.5:
            self._wants = False
            self.transport.pause_reading()
            if self._chance.random() < 0.3:
                self.transport.resume_reading()
                self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._wants = True
        self.transport.resume_reading()


@pytest.mark.parametrize("seed", range(20))
async def test_pieces_of_any_size_cut_anywhere_and_read_with_pauses(trusted: Path, seed: int) -> None:
    chance = random.Random(seed)
    buffer = bytearray(chance.choice([MAX_TLS_RECORD_PLAINTEXT_BYTES, 20_000, 2 * MAX_TLS_RECORD_PLAINTEXT_BYTES]))
    reader = Hesitates(chance)
    sealed, _, wire, provider = ready(trusted, reader, buffer)
    records = Records(provider.keylog)
    sent = [chance.randbytes(chance.choice([0, 1, 100, 5000, MAX_TLS_RECORD_PLAINTEXT_BYTES])) for _ in range(60)]
    beside = (records.key_update, lambda: records.ticket(100), bytes)
    line = b"".join([records.seal(part) + chance.choice(beside)() for part in sent])
    while line:
        while not wire.reading:
            await asyncio.sleep(0)
        size = chance.choice([1, 1000, 2 * MAX_TLS_RECORD_PLAINTEXT_BYTES])
        sealed.data_received(line[:size])
        line = line[size:]
    while len(reader.got) < sum(map(len, sent)):
        await asyncio.sleep(0)
    assert reader.got == b"".join(sent)
    assert not wire.aborted


async def test_new_keys_without_end_are_refused(trusted: Path) -> None:
    """The answer to each would wait in memory for a provider that reads none."""
    sealed, reader, wire, provider = ready(trusted)
    records = Records(provider.keylog)
    for _ in range(2 * MAX_TLS_CONTROL_BYTES // 1000):
        sealed.data_received(b"".join([records.key_update() for _ in range(40)]))
        if wire.aborted:
            break
    assert wire.aborted
    assert len(wire.take()) <= MAX_TLS_CONTROL_BYTES
    sealed.connection_lost(None)
    assert isinstance(reader.reason, ConnectionAbortedError)


@pytest.mark.parametrize("size", [0, 1, ENCRYPT_PART_BYTES, ENCRYPT_PART_BYTES + 1, 5 * ENCRYPT_PART_BYTES - 1])
async def test_all_is_sent_whatever_its_size(trusted: Path, size: int) -> None:
    _, reader, wire, provider = ready(trusted)
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    reader.transport.writelines((b"head", data))
    assert provider.hears(wire.take()) == b"head" + data
    if data:
        reader.transport.write(data)
        assert provider.hears(wire.take()) == data


def of_the_system() -> x509.Name:
    """An authority with a key of the kind that our certificates have, by which OpenSSL looks for it."""
    for file in Path(ssl.get_default_verify_paths().openssl_capath).glob("*.pem"):
        found = x509.load_pem_x509_certificate(file.read_bytes())
        if isinstance(found.public_key(), ec.EllipticCurvePublicKey):
            return found.subject
    pytest.skip("this system has no folder of certificates")


@pytest.mark.parametrize(("replaced", "said"), [(True, "unable to get local issuer"), (False, "signature failure")])
async def test_a_file_of_authorities_takes_the_place_of_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool, said: str
) -> None:
    """Whom the system trusts is not even looked at, to see whether it has signed what a provider shows."""
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    shown = certificate(tmp_path, "localhost", feigned=of_the_system())
    if replaced:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path, "other.example")))
    reader, wire, provider = Reads(), Wire(), Provider(shown)
    sealed = TlsTransport(default_ssl_context(), "localhost", reader, bytearray(2 * MAX_TLS_RECORD_PLAINTEXT_BYTES))
    sealed.connection_made(wire)
    sealed.data_received(provider.shakes(wire.take()))
    sealed.connection_lost(None)
    with pytest.raises(ssl.SSLCertVerificationError, match=said):
        await sealed.handshake_done


async def test_an_answer_that_is_read_with_pauses(trusted: Path) -> None:
    buffer = bytearray(20_000)
    reader = Reads(slowly=True)
    sealed = TlsTransport(default_ssl_context(), "localhost", reader, buffer)
    with FakeProvider(OpenAIWire(), tls=context(trusted)) as fake:
        fake.plays(answer(200, openai_wire.chat(LONG)) + fin())
        await asyncio.get_running_loop().create_connection(lambda: sealed, "127.0.0.1", fake.port)
        await asyncio.wait_for(sealed.handshake_done, 5)
        asked = request_bytes("POST", "/v1/chat/completions", HI, key=fake.key)
        reader.transport.writelines((asked[:20], asked[20:]))
        await asyncio.wait_for(reader.lost.wait(), 10)
    assert LONG.encode() in reader.got
    assert reader.reason is None
