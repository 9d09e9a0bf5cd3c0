"""The SDK itself, written once as coroutines over a net: `Client` and `AsyncClient` are its two faces."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from svc import plugins
from svc.client.address import resolve
from svc.client.config import check_key, current
from svc.client.discovery import find, read_key, state_folder
from svc.client.session import Session, Times
from svc.client.wires import Net
from svc.errors import GatewayFailed, InvalidRequest, ModelNotFound, UsageError
from svc.wire.production import PRODUCTION_GATEWAY

if TYPE_CHECKING:
    from svc.client.chat import ChatResult, Messages, Server, Stream

MAX_AUDIO = 512 << 20


class Model(msgspec.Struct, frozen=True):
    """A model that the gateway offers to this key."""

    id: str
    owned_by: str = ""
    created: int = 0
    context_window: int | None = None
    use_case: str | None = None


class _Models(msgspec.Struct):
    data: list[Model]


class Transcript(msgspec.Struct, frozen=True):
    """What was said. `raw` is the gateway's own JSON."""

    text: str
    raw: dict[str, Any]


class Direct(msgspec.Struct, frozen=True):
    """A provider that is called without a gateway."""

    base_url: str
    headers: dict[str, str]
    """Its key among them."""
    server: Server

    def __repr__(self) -> str:
        return f"Direct({self.base_url!r})"  # never the key


class Core:
    """Everything that a client does. Addresses and keys are read from configuration and environment when it is made."""

    def __init__(
        self,
        net: Net,
        *,
        gateway_url: str | None,
        api_key: str | None,
        registry: str | None,
        retries: int,
        times: Times,
        direct: Direct | None = None,
    ) -> None:
        told, environ = current(), os.environ
        self.direct = direct
        self.registry = registry or told.registry or environ.get("SVC_REGISTRY_URL") or None
        self.key = check_key(api_key) or told.api_key or check_key(environ.get("SVC_API_KEY"))
        if direct:
            base, headers = direct.base_url.rstrip("/"), direct.headers
        else:
            home = state_folder(environ)
            here = find(home)
            base = resolve(gateway_url, told.gateway, environ, default=here or PRODUCTION_GATEWAY)
            key = self.key or (read_key(home) if base == here else None)  # not `self.key`: a registry would get it
            headers = {"authorization": f"Bearer {key}"} if key else {}
        whose = "provider" if direct else "gateway"
        self.session = Session(net, base, headers, retries=retries, times=times, whose=whose)
        self.net = net

    # chats

    async def chat(
        self, messages: Messages, model: str | None, timeout_s: float | None, parameters: Mapping[str, Any]
    ) -> ChatResult:
        """A whole answer."""
        chats = _chats()
        server = self._server(model)
        asked = chats.ask(server, messages, parameters, stream=False)
        try:
            answer, body = await self.session.fetch("POST", asked.path, asked.body, asked.headers, timeout_s)
        except ModelNotFound:
            if model is not None or (other := await self._any_model()) is None:
                raise
            return await self.chat(messages, other, timeout_s, parameters)
        made: ChatResult = chats.result(server, answer, body)
        return made

    async def stream(
        self, messages: Messages, model: str | None, timeout_s: float | None, parameters: Mapping[str, Any]
    ) -> Stream:
        """An answer piece by piece."""
        chats = _chats()
        server = self._server(model)
        asked = chats.ask(server, messages, parameters, stream=True)
        try:
            answer, deadline = await self.session.open("POST", asked.path, asked.body, asked.headers, timeout_s)
        except ModelNotFound:
            if model is not None or (other := await self._any_model()) is None:
                raise
            return await self.stream(messages, other, timeout_s, parameters)
        made: Stream = chats.Stream(self.session, answer, deadline, server)
        return made

    def _server(self, model: str | None) -> Server:
        if self.direct:
            return self.direct.server
        server: Server = _chats().gateway(model)
        return server

    async def _any_model(self) -> str | None:
        """For one who named none: the default is not offered here, so the first that is."""
        if self.direct:
            return None
        return next((model.id for model in await self.models()), None)

    # models, files

    async def models(self) -> list[Model]:
        """What the gateway offers to this key."""
        _, body = await self.session.fetch("GET", "/models")
        try:
            return msgspec.json.decode(body, type=_Models).data
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise GatewayFailed("What came is no list of models; is the address that of a gateway?") from error

    async def transcribe(
        self, audio: str | os.PathLike[str] | bytes, model: str | None, language: str | None
    ) -> Transcript:
        """A whole WAV file."""
        data = (
            bytes(audio)
            if isinstance(audio, bytes | bytearray | memoryview)
            else await self.net.call(lambda: _read(Path(audio)))
        )
        boundary = os.urandom(16).hex()
        fields = {"model": model, "language": language, "response_format": "json"}
        body = _form({name: value for name, value in fields.items() if value}, data, boundary)
        headers = {"content-type": f"multipart/form-data; boundary={boundary}", "accept": "application/json"}
        _, answer = await self.session.fetch("POST", "/audio/transcriptions", body, headers)
        try:
            raw = msgspec.json.decode(answer, type=dict[str, Any])
            return Transcript(str(raw["text"]), raw)
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            raise GatewayFailed("What came is no transcript; is the address that of a gateway?") from error

    async def live(self, config: Mapping[str, Any]) -> Any:
        """A live session that is ready. Raises SvcError: what `config` was answered with."""
        return await plugins.load("client", "live").open_live(self.session, config)

    async def bundle(self, reference: str) -> Any:
        """Resolves a reference; blocking work."""
        bundles = plugins.load("client", "bundles")
        trusted = tuple(key.strip() for key in os.environ.get("SVC_TRUSTED_KEYS", "").split(",") if key.strip())
        options = bundles.Options(
            root=_registry_root(),
            registry=self.registry,
            key=os.environ.get("SVC_REGISTRY_KEY") or self.key,
            trusted_keys=trusted,
        )
        work: Callable[[], Any] = lambda: bundles.resolve(reference, options)  # noqa: E731 it is typed so
        return await self.net.call(work)

    def close(self) -> None:
        """Closes unused connections."""
        self.session.close()


def _chats() -> Any:
    """Loaded when the first chat asks for it: the dialects take longer to import than all the rest."""
    return plugins.load("client", "chat")


def _registry_root() -> Path:
    root = os.environ.get("SVC_REGISTRY_ROOT") or Path(os.environ.get("SVC_HOME") or "~/.svc") / "registry"
    return Path(root).expanduser()


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_AUDIO:
            raise InvalidRequest(f"{path} is larger than {MAX_AUDIO >> 20} MiB.")
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None


def _form(fields: Mapping[str, str], data: bytes, boundary: str) -> bytes:
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="audio.wav"\r\n'
        "content-type: audio/wav\r\n\r\n"
    )
    return "".join([*parts, head]).encode() + data + f"\r\n--{boundary}--\r\n".encode()
