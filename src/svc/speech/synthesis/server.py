"""The process that speaks: loaded voices behind `POST /v1/audio/speech` on a loopback address.

`python -m svc.speech.synthesis.server` reads one line of JSON (`VoiceServerOptions`) from stdin, and serves on the
socket that it inherits. Each further line is the name of a voice to load. It exits when stdin is closed, so that it
never outlives the gateway. The gateway calls it like any other provider.

A request is spoken in a thread, one part after the other. The event loop takes the next part when the gateway has read
the previous one, and stops when the gateway closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from svc import telemetry
from svc.errors import AuthenticationFailed, InternalError, InvalidRequest, NotFound, SvcError
from svc.speech.synthesis.catalog import open_catalog
from svc.speech.synthesis.options import VOICE_HEARTBEAT_SECONDS, VoiceServerOptions
from svc.speech.synthesis.synthesizer import check_supported, synthesize
from svc.speech.synthesis.voice import TimedVoice, VoiceEngine
from svc.speech.work import SpeechWork, SpeechWorkTimer
from svc.wire.error import encode_error_body
from svc.wire.synthesis import SPEECH_CONTENT_TYPES, SpeechRequest

log = logging.getLogger("svc.speech.voices")

MAX_LOADED_VOICES = 4
"""Voices in memory. The one that was used least recently is unloaded for another."""
MAX_REQUEST_BYTES = 1 << 20
BUSY_RETRY_SECONDS = 1
"""The `retry-after` of a request that finds no free place. The gateway waits that long before it tries again."""
VOICES_BUSY_CODE = "voices_busy"
KEEP_ALIVE_SECONDS = 90
"""Longer than the gateway keeps an idle connection."""


class LoadedVoices:
    """The voices in memory. Thread-safe. Loading one voice delays no other."""

    def __init__(self, registry_root: Path) -> None:
        self._catalog = open_catalog(registry_root)
        self._engines: OrderedDict[str, Future[VoiceEngine]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> VoiceEngine:
        """Return a voice, after loading it if necessary. Raises ModelNotFound, and PipelineFailed if that fails."""
        with self._lock:
            future = self._engines.get(name)
            is_first = future is None
            if future is None:
                future = self._engines[name] = Future()
                while len(self._engines) > MAX_LOADED_VOICES:
                    self._engines.popitem(last=False)
            self._engines.move_to_end(name)
        if is_first:
            self._load(name, future)
        return future.result()

    def _load(self, name: str, future: Future[VoiceEngine]) -> None:
        try:
            engine = self._catalog.load(name)
            engine.say("a")  # the first text takes longer
            future.set_result(engine)
        except Exception as error:  # noqa: BLE001 all requests that wait for the voice get it
            with self._lock:
                self._engines.pop(name, None)
            future.set_exception(error)


class VoiceApp:
    """The ASGI application."""

    def __init__(self, options: VoiceServerOptions) -> None:
        self._options = options
        self._voices = LoadedVoices(Path(options.registry_root))
        self._threads = ThreadPoolExecutor(options.max_requests, thread_name_prefix="voice")
        # A request can begin while a part of an abandoned one is still being spoken.
        self._free_places = 2 * options.max_requests
        self._work_socket = socket.socket(fileno=options.work_descriptor)
        self._work_socket.setblocking(False)

    def preload(self, name: str) -> None:
        """Load a voice in a thread. A failure is only logged: a request will report it."""
        if name:
            threading.Thread(target=self._preload, args=(name,), daemon=True).start()

    def _preload(self, name: str) -> None:
        try:
            self._voices.get(name)
        except SvcError as error:
            log.warning("the voice %s cannot be loaded: %s", name, error.message)
        except Exception:  # boundary: a request will report it
            log.exception("the voice %s cannot be loaded", name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. An exception after the head closes the connection, so that the audio is incomplete."""
        if scope["type"] != "http":
            return
        response = _SpeechResponse(send)
        try:
            http_request = Request(scope, receive)
            request = await self._read_request(http_request)
            if self._free_places <= 0:
                await response.send_busy()
                return
            request_id = http_request.headers.get("x-request-id", "")
            timer = SpeechWorkTimer(request_id, "synthesize", request.model, os.getpid())
            await self._speak(request, receive, response, timer)
        except SvcError as error:
            if response.has_started:
                raise
            await response.send_error(error.status, encode_error_body(error))
        except Exception as error:
            log.exception("a text could not be spoken")
            if response.has_started:
                raise
            failure = InternalError(f"The voice failed: {type(error).__name__}.")
            await response.send_error(failure.status, encode_error_body(failure))

    async def _read_request(self, request: Request) -> SpeechRequest:
        if not hmac.compare_digest(
            request.headers.get("authorization", "").encode(), f"Bearer {self._options.key}".encode()
        ):
            raise AuthenticationFailed("The key is not valid.")
        if request.url.path != "/v1/audio/speech" or request.method != "POST":
            raise NotFound("There is no such path.")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_REQUEST_BYTES:
                raise InvalidRequest("The body is too large.")
        try:
            speech_request = msgspec.json.decode(body, type=SpeechRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"The request is not valid: {str(error)[:200]}.") from None
        check_supported(speech_request)
        return speech_request

    async def _speak(
        self, request: SpeechRequest, receive: Receive, response: _SpeechResponse, timer: SpeechWorkTimer
    ) -> None:
        self._free_places -= 1
        chunks = self._synthesize(request, timer)
        loop = asyncio.get_running_loop()
        disconnected = asyncio.create_task(_wait_for_disconnect(receive), name="voice-client")
        next_chunk = loop.run_in_executor(self._threads, next, chunks, None)
        next_chunk.add_done_callback(lambda _: None)
        try:
            while not disconnected.done():
                await asyncio.wait((next_chunk, disconnected), return_when=asyncio.FIRST_COMPLETED)
                if not next_chunk.done():
                    break
                chunk = next_chunk.result()
                if chunk is None:
                    await response.finish()
                    return
                next_chunk = loop.run_in_executor(self._threads, next, chunks, None)
                await response.send_chunk(SPEECH_CONTENT_TYPES[request.format], chunk)
            timer.set_cancelled()
        except Exception as error:
            timer.set_error(error.code if isinstance(error, SvcError) else InternalError.code)
            raise
        finally:
            disconnected.cancel()
            await asyncio.gather(disconnected, next_chunk, return_exceptions=True)  # a part cannot be interrupted
            self._free_places += 1
            self._report(timer.finish())

    def _synthesize(self, request: SpeechRequest, timer: SpeechWorkTimer) -> Iterator[bytes | None]:
        engine = self._voices.get(request.model)
        timer.add_wait_since_start()
        yield from synthesize(TimedVoice(engine, timer), request)

    async def serve(self, server: uvicorn.Server, listener: socket.socket) -> None:
        """Serve on a socket until the server stops, and send heartbeats to the gateway."""
        heartbeats = asyncio.create_task(self._send_heartbeats(), name="voice-heartbeats")
        try:
            await server.serve(sockets=[listener])
        finally:
            heartbeats.cancel()

    async def _send_heartbeats(self) -> None:
        while True:
            self._send_line(b"")
            await asyncio.sleep(VOICE_HEARTBEAT_SECONDS)

    def _report(self, work: SpeechWork) -> None:
        self._send_line(msgspec.json.encode(work))

    def _send_line(self, line: bytes) -> None:
        """Tell the gateway. A line that does not fit the socket's buffer is dropped: nothing may wait for it."""
        with contextlib.suppress(OSError):
            self._work_socket.send(line + b"\n")


class _SpeechResponse:
    """Sends the head before the first chunk."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def send_chunk(self, content_type: str, chunk: bytes) -> None:
        await self._start(200, content_type)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_error(self, status: int, body: bytes) -> None:
        await self._start(status, "application/json")
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def send_busy(self) -> None:
        """Reject a request: all threads speak."""
        error = {
            "message": "All voices of this machine are in use. Try again later.",
            "type": "rate_limit_error",
            "code": VOICES_BUSY_CODE,
        }
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"%d" % BUSY_RETRY_SECONDS)]
        self.has_started = True
        await self._send({"type": "http.response.start", "status": 429, "headers": headers})
        await self._send({"type": "http.response.body", "body": msgspec.json.encode({"error": error})})

    async def _start(self, status: int, content_type: str) -> None:
        if not self.has_started:
            self.has_started = True
            headers = [(b"content-type", content_type.encode())]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _read_commands(app: VoiceApp) -> None:
    """Load the voices that the gateway names. Exit when stdin is closed.

    Threads of libraries may still run then, and there is nothing to save.
    """
    with contextlib.suppress(OSError):
        for line in sys.stdin.buffer:
            app.preload(line.decode("utf-8", "replace").strip())
    os._exit(0)


def main() -> None:
    """Serve until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    telemetry.configure_child()
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=VoiceServerOptions)
    os.nice(options.nice)
    app = VoiceApp(options)
    threading.Thread(target=_read_commands, args=(app,), daemon=True).start()
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    app.preload(options.preload)
    with socket.socket(fileno=options.descriptor) as listener:
        asyncio.run(app.serve(uvicorn.Server(config), listener))


if __name__ == "__main__":
    main()
