"""Bundles in any OCI registry (distribution specification 1.1): pushed as an artifact, pulled by its digest. Blocking.

A reference is HOST[:PORT]/REPOSITORY:TAG, or …@sha256:… which pins what is pulled. The bundle is the one layer of a
manifest of the artifact type below. `http://` before it speaks plain HTTP, which loopback does anyway.

Credentials go to the origin of the reference, and to the token service that this origin names in its own challenge
(https://distribution.github.io/distribution/spec/auth/token/): a service on another origin needs https and a host
under the registry's parent domain, or one that the user has named. A host that a redirect led to gets none.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec

from svc.bundles import web
from svc.bundles.download import Side, Sink, receive
from svc.bundles.reference import check_name
from svc.errors import InvalidRequest, RegistryFailed, UsageError
from svc.wire.bundle import Entry, Signature

ARTIFACT = "application/vnd.svc.bundle.v1"
LAYER = "application/vnd.svc.bundle.layer.v1+xyb"
EMPTY = b"{}"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TIMEOUT = 60.0
BLOCK = 1 << 20
MAX_MANIFEST = 4 << 20
MAX_TOKEN = 1 << 20
REDIRECTS = 5

_REFERENCE = re.compile(
    r"(?:(https?)://)?([A-Za-z0-9.-]+(?::\d+)?)/([a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::([A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


Pieces = Callable[[], Iterable[bytes]]
"""A body; called for each attempt, so that one that is sent again starts from the beginning."""


class Place(msgspec.Struct, frozen=True):
    """Where an artifact is: `reference` is a tag or a digest."""

    origin: str
    repository: str
    tag: str
    digest: str | None

    @property
    def reference(self) -> str:
        """The digest pins; a tag may move."""
        return self.digest or self.tag


class Descriptor(msgspec.Struct, rename="camel", omit_defaults=True):
    """A piece of content (OCI image specification, "Descriptors")."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class _Token(msgspec.Struct):
    """The response of a token service, which has one of the two fields, or both with one value."""

    token: str = ""
    access_token: str = ""


class Manifest(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """An image manifest that carries an artifact."""

    schema_version: int
    media_type: str = ""
    artifact_type: str = ""
    config: Descriptor
    layers: list[Descriptor]
    annotations: dict[str, str] = {}


def parse(text: str) -> Place:
    """Raises UsageError."""
    match = _REFERENCE.fullmatch(text.removeprefix("oci://"))
    if match is None:
        raise UsageError(f"{text[:200]!r} is no OCI reference: HOST[:PORT]/REPOSITORY:TAG or …@sha256:… is.")
    scheme, host, repository, tag, digest = match.groups()
    local = host.partition(":")[0] in ("localhost", "127.0.0.1")
    return Place(f"{scheme or ('http' if local else 'https')}://{host}", repository, tag or "latest", digest)


class Oci:
    """One repository of an OCI registry. `token_hosts` may have the credentials, too, when the registry names them."""

    def __init__(
        self,
        place: Place,
        user: str | None = None,
        password: str | None = None,
        token_hosts: Collection[str] = (),
    ) -> None:
        self._place = place
        self._origin = web.origin(place.origin)
        self._token_hosts = token_hosts
        self._basic = (
            "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode() if user is not None else None
        )
        self._authorization: str | None = None

    def push(self, file: Path, sha256: str, annotations: Mapping[str, str]) -> str:
        """Uploads a bundle; gives the manifest's digest. Raises RegistryFailed."""
        layer = Descriptor(
            LAYER, f"sha256:{sha256}", file.stat().st_size, {"org.opencontainers.image.title": file.name}
        )
        config = Descriptor("application/vnd.oci.empty.v1+json", _digest(EMPTY), len(EMPTY))
        self._upload(config, lambda: iter([EMPTY]))
        self._upload(layer, lambda: _pieces(file))
        manifest = Manifest(
            schema_version=2,
            media_type=MANIFEST,
            artifact_type=ARTIFACT,
            config=config,
            layers=[layer],
            annotations=dict(annotations),
        )
        data = msgspec.json.encode(manifest)
        headers = {"content-type": MANIFEST, "content-length": str(len(data))}
        with self._ask("PUT", f"manifests/{self._place.tag}", headers, lambda: iter([data])) as answer:
            self._expect(answer, 201)
        return _digest(data)

    def manifest(self) -> tuple[Manifest, str]:
        """The manifest and its digest; one that was pinned is checked. Raises RegistryFailed."""
        with self._ask("GET", f"manifests/{self._place.reference}", {"accept": MANIFEST}) as answer:
            self._expect(answer, 200)
            data = self._read(answer, MAX_MANIFEST + 1)
        digest = _digest(data)
        if self._place.digest not in (None, digest):
            raise RegistryFailed(f"{self._place.origin} sent another manifest than {self._place.digest}.")
        try:
            manifest = msgspec.json.decode(data, type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryFailed(f"{self._place.origin} sent a manifest that cannot be read: {error}.") from error
        if len(manifest.layers) != 1:
            raise RegistryFailed("This is no bundle: its manifest has not one layer.")
        return manifest, digest

    @contextmanager
    def blob(self, digest: str, start: int = 0) -> Iterator[http.client.HTTPResponse]:
        """The answer with a layer's bytes, from `start` on if the registry can (status 206)."""
        with self._ask("GET", f"blobs/{digest}", {"range": f"bytes={start}-"} if start else {}) as answer:
            self._expect(answer, 200, 206)
            yield answer

    def _upload(self, content: Descriptor, pieces: Pieces) -> None:
        with self._ask("HEAD", f"blobs/{content.digest}", {}) as answer:
            if answer.status == 200:
                return
        with self._ask("POST", "blobs/uploads/", {"content-length": "0"}) as answer:
            self._expect(answer, 202)
            location = web.follow(self._place.origin, answer.headers.get("location", ""))
        address = location + ("&" if "?" in location else "?") + urlencode({"digest": content.digest})
        headers = {"content-length": str(content.size), "content-type": "application/octet-stream"}
        with self._ask("PUT", address, headers, pieces) as answer:
            self._expect(answer, 201)

    @contextmanager
    def _ask(
        self, method: str, path: str, headers: Mapping[str, str], body: Pieces | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """One request, after proving who we are if the registry asks for it, following redirects."""
        target = path if "://" in path else f"{self._place.origin}/v2/{self._place.repository}/{path}"
        asked = False
        for _ in range(REDIRECTS + 2):
            own = web.origin(target) == self._origin
            connection, selector = web.connect(target, TIMEOUT)
            try:
                answer = self._send(connection, method, selector, self._headers(own, headers), body)
                location = answer.headers.get("location")
                if answer.status == 401 and own and not asked:
                    asked = True
                    self._authorization = self._prove(answer.headers.get("www-authenticate", ""))
                elif answer.status in web.REDIRECTS and location and method == "GET":
                    target = web.follow(target, location)
                else:
                    yield answer
                    return
            finally:
                connection.close()
        raise RegistryFailed(f"{self._place.origin} redirects without end.")

    def _headers(self, own: bool, headers: Mapping[str, str]) -> dict[str, str]:
        ours = {"user-agent": "svc", **headers}
        if own and self._authorization:
            ours["authorization"] = self._authorization
        return ours

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        selector: str,
        headers: dict[str, str],
        body: Pieces | None,
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, selector, body=None if body is None else body(), headers=headers)
            return connection.getresponse()
        except web.FAILURES as error:
            raise RegistryFailed(f"{self._place.origin} cannot be reached: {web.reason(error)}.") from error

    def _read(self, answer: http.client.HTTPResponse, most: int) -> bytes:
        try:
            return answer.read(most)
        except web.FAILURES as error:
            raise RegistryFailed(f"{self._place.origin} broke off: {web.reason(error)}.") from error

    def _prove(self, challenge: str) -> str | None:
        """The value of `Authorization` that a challenge of the registry's own origin asks for."""
        if not challenge.lower().startswith("bearer "):
            return self._basic
        fields = dict(_CHALLENGE.findall(challenge))
        realm = fields.get("realm", "")
        self._check_realm(realm)
        scope = fields.get("scope") or f"repository:{self._place.repository}:pull,push"
        return self._token(realm, urlencode({"service": fields.get("service", ""), "scope": scope}, quote_via=quote))

    def _check_realm(self, realm: str) -> None:
        """Whether the token service may be asked, with the credentials if there are any. Raises RegistryFailed."""
        own, service = self._origin, web.origin(realm)
        if service == own:
            return
        if (own.scheme, service.scheme) == ("https", "http"):
            raise RegistryFailed(f"{self._place.origin} names a token service without https: {realm[:200]!r}.")
        if self._basic is None or service.host in self._token_hosts:
            return
        if service.scheme != "https" or not _is_related(service.host, own.host):
            raise RegistryFailed(
                f"{self._place.origin} asks for the credentials of SVC_OCI_USER to be sent to {service.host}, another "
                f"host. To allow it, set SVC_OCI_TOKEN_HOST={service.host}"
            )

    def _token(self, realm: str, query: str) -> str:
        """Asks for a token; a redirect is not followed. Raises RegistryFailed."""
        connection, selector = web.connect(realm, TIMEOUT)
        target = f"{selector}{'&' if '?' in selector else '?'}{query}"
        headers = {"user-agent": "svc"} | ({"authorization": self._basic} if self._basic else {})
        try:
            answer = self._send(connection, "GET", target, headers, None)
            if answer.status != 200:
                raise RegistryFailed(f"The token service of {self._place.origin} answered with status {answer.status}.")
            found = msgspec.json.decode(self._read(answer, MAX_TOKEN), type=_Token)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryFailed(f"The token service of {self._place.origin} gave no token.") from error
        finally:
            connection.close()
        if not (token := found.token or found.access_token):
            raise RegistryFailed(f"The token service of {self._place.origin} gave no token.")
        return f"Bearer {token}"

    def _expect(self, answer: http.client.HTTPResponse, *statuses: int) -> None:
        if answer.status not in statuses:
            said = web.printable(self._read(answer, 2000).decode("utf-8", "replace"), 200)
            raise RegistryFailed(f"{self._place.origin} answered with status {answer.status}: {said}")


def annotate(entry: Entry) -> dict[str, str]:
    """What a manifest says of its bundle."""
    said = {"model_id": entry.model_id, "version": entry.version, "platform": entry.target}
    if entry.signatures:
        said["signatures"] = " ".join(f"{each.key}:{each.value}" for each in entry.signatures)
    return {f"vnd.svc.{name}": value for name, value in said.items()}


def entry_of(manifest: Manifest) -> Entry:
    """The index entry that a manifest stands for. Raises RegistryFailed."""
    said, layer = manifest.annotations, manifest.layers[0]
    try:
        entry = Entry(
            model_id=check_name("model_id", said["vnd.svc.model_id"]),
            version=check_name("version", said["vnd.svc.version"]),
            target=check_name("platform", said["vnd.svc.platform"]),
            size_bytes=layer.size,
            path="",
            sha256=layer.digest.removeprefix("sha256:"),
        )
    except (KeyError, InvalidRequest) as error:
        raise RegistryFailed("This is no bundle: its manifest does not say which model it is.") from error
    if not re.fullmatch("[0-9a-f]{64}", entry.sha256 or ""):
        raise RegistryFailed("This is no bundle: its layer is not named by a sha256.")
    pairs = [pair.partition(":") for pair in said.get("vnd.svc.signatures", "").split()]
    return msgspec.structs.replace(entry, signatures=tuple(Signature(key, value) for key, _, value in pairs))


class OciSource:
    """Where a bundle's bytes come from, for `download`."""

    def __init__(self, registry: Oci) -> None:
        self._registry = registry

    def fetch(self, entry: Entry, start: int, side: Side, sink: Sink) -> None:
        with self._registry.blob(f"sha256:{entry.sha256}", start) as answer:
            if answer.status == 200 and start:
                sink.restart()
            receive(answer, entry.size_bytes, sink)


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while block := source.read(BLOCK):
            yield block


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _is_related(host: str, registry: str) -> bool:
    """Whether a host lies under the registry's parent domain, as auth.docker.io does for registry-1.docker.io."""
    labels = registry.split(".")
    domain = registry if len(labels) < 3 or labels[-1].isdigit() or ":" in registry else ".".join(labels[1:])
    return host == domain or host.endswith(f".{domain}")
