"""Push and pull bundles as artifacts of an OCI registry (OCI distribution specification 1.1). Blocking.

A reference is HOST[:PORT]/REPOSITORY:TAG, or …@sha256:… for a fixed digest. The bundle is the only layer of a
manifest with the artifact type below. `http://` selects plaintext HTTP, which is the default for loopback.

Credentials are sent to the origin of the reference, and to the token service that this origin names in its challenge
(https://distribution.github.io/distribution/spec/auth/token/). A token service on another origin needs https, and a
host under the registry's parent domain or in the user's list. A redirect target never receives credentials.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2
import msgspec

from svc.bundles import http_client
from svc.bundles.download import DownloadState, PartialFile
from svc.bundles.oci_credentials import OciCredentials
from svc.bundles.reference import check_name
from svc.errors import BundleNotFound, InvalidRequest, RegistryFailed, RegistryUnreachable, UsageError
from svc.outbound_http import (
    HTTP_ERRORS,
    checked_environment,
    create_tls_context,
    describe_http_error,
    find_environment_proxy,
)
from svc.wire.bundle import BundleEntry, Signature

BUNDLE_ARTIFACT_TYPE = "application/vnd.svc.bundle.v1"
BUNDLE_LAYER_MEDIA_TYPE = "application/vnd.svc.bundle.layer.v1+xyb"
EMPTY_OCI_CONFIG = b"{}"
OCI_MANIFEST_MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
OCI_TIMEOUT_SECONDS = 60.0
OCI_UPLOAD_CHUNK_BYTES = 1 << 20
MAX_OCI_MANIFEST_BYTES = 4 << 20
MAX_TOKEN_RESPONSE_BYTES = 1 << 20
MAX_OCI_ERROR_BYTES = 64 << 10
MAX_OCI_REDIRECTS = 5

_OCI_REFERENCE = re.compile(
    r"(?:(https?)://)?([A-Za-z0-9.-]+(?::\d+)?)/([a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::([A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?"
)
_CHALLENGE_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


BodyFactory = Callable[[], Iterable[bytes]]
"""Returns the body. Called for each attempt, so that a retry sends the body from the beginning."""


class OciReference(msgspec.Struct, frozen=True):
    """The location of an artifact: registry, repository, and a tag or a digest."""

    origin: str
    repository: str
    tag: str
    digest: str | None

    def __str__(self) -> str:
        """Return the reference without the host."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"

    @property
    def tag_or_digest(self) -> str:
        """Return the digest if there is one, else the tag. Only a digest is immutable."""
        return self.digest or self.tag


class OciDescriptor(msgspec.Struct, rename="camel", omit_defaults=True):
    """A content descriptor (OCI image specification, "Descriptors")."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class _TokenResponse(msgspec.Struct):
    """The response of a token service, which has `token`, `access_token`, or both with the same value."""

    token: str = ""
    access_token: str = ""


class _OciError(msgspec.Struct):
    code: str = ""
    message: str = ""


class _OciErrors(msgspec.Struct):
    errors: list[_OciError]


class OciManifest(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """An image manifest that contains an artifact."""

    schema_version: int
    media_type: str = ""
    artifact_type: str = ""
    config: OciDescriptor
    layers: list[OciDescriptor]
    annotations: dict[str, str] = {}


def parse_oci_reference(text: str) -> OciReference:
    """Parse a reference. Raises UsageError."""
    match = _OCI_REFERENCE.fullmatch(text.removeprefix("oci://"))
    if match is None:
        raise UsageError(f"{text[:200]!r} is not an OCI reference, such as HOST[:PORT]/REPOSITORY:TAG or …@sha256:….")
    scheme, host, repository, tag, digest = match.groups()
    is_loopback = host.partition(":")[0] in ("localhost", "127.0.0.1")
    return OciReference(
        f"{scheme or ('http' if is_loopback else 'https')}://{host}", repository, tag or "latest", digest
    )


class OciRepository:
    """One repository of an OCI registry.

    `find_credentials` is called when the registry requires authentication: it may start a program or ask the user.
    `token_hosts` are further hosts that may receive the credentials.
    """

    def __init__(
        self,
        reference: OciReference,
        find_credentials: Callable[[], OciCredentials | None] = lambda: None,
        token_hosts: Collection[str] = (),
    ) -> None:
        self._reference = reference
        self._origin = http_client.parse_origin(reference.origin)
        self._token_hosts = token_hosts
        self._find_credentials = find_credentials
        self._credentials: OciCredentials | None = None
        self._authorization: str | None = None
        with checked_environment():
            self._http = httpx2.Client(
                headers={"user-agent": "svc", "accept-encoding": "identity"},
                verify=create_tls_context(),
                timeout=OCI_TIMEOUT_SECONDS,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
                max_redirects=MAX_OCI_REDIRECTS,
            )

    def push(self, file: Path, sha256: str, annotations: Mapping[str, str]) -> str:
        """Upload a bundle, and return the manifest's digest. Raises RegistryFailed, and UsageError without a tag."""
        if self._reference.digest is not None:
            raise UsageError(f"{self._reference} has a digest, which a push cannot choose. Use a tag: REPOSITORY:TAG.")
        layer = OciDescriptor(
            BUNDLE_LAYER_MEDIA_TYPE,
            f"sha256:{sha256}",
            file.stat().st_size,
            {"org.opencontainers.image.title": file.name},
        )
        config = OciDescriptor(
            "application/vnd.oci.empty.v1+json", _oci_digest(EMPTY_OCI_CONFIG), len(EMPTY_OCI_CONFIG)
        )
        self._upload_blob(config, lambda: iter([EMPTY_OCI_CONFIG]))
        self._upload_blob(layer, lambda: _read_chunks(file))
        manifest = OciManifest(
            schema_version=2,
            media_type=OCI_MANIFEST_MEDIA_TYPE,
            artifact_type=BUNDLE_ARTIFACT_TYPE,
            config=config,
            layers=[layer],
            annotations=dict(annotations),
        )
        data = msgspec.json.encode(manifest)
        headers = {"content-type": OCI_MANIFEST_MEDIA_TYPE, "content-length": str(len(data))}
        with self._request("PUT", f"manifests/{self._reference.tag}", headers, lambda: iter([data])) as response:
            self._check_status(response, 201)
        return _oci_digest(data)

    def fetch_manifest(self) -> tuple[OciManifest, str]:
        """Return the manifest and its digest, verified if the reference has one.

        Raises BundleNotFound if the registry has no such tag or digest, and RegistryFailed.
        """
        with self._request(
            "GET", f"manifests/{self._reference.tag_or_digest}", {"accept": OCI_MANIFEST_MEDIA_TYPE}
        ) as response:
            if response.status_code == 404:
                raise BundleNotFound(f"There is no {self._reference} at {self._reference.origin}.")
            self._check_status(response, 200)
            data = self._read(response, MAX_OCI_MANIFEST_BYTES + 1)
        digest = _oci_digest(data)
        if self._reference.digest not in (None, digest):
            raise RegistryFailed(f"{self._reference.origin} sent a manifest that is not {self._reference.digest}.")
        try:
            manifest = msgspec.json.decode(data, type=OciManifest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryFailed(
                f"{self._reference.origin} sent a manifest that cannot be decoded: {error}."
            ) from error
        if len(manifest.layers) != 1:
            raise RegistryFailed("This is not a bundle: its manifest must have one layer.")
        return manifest, digest

    @contextmanager
    def open_blob(self, digest: str, start: int = 0) -> Iterator[httpx2.Response]:
        """Open a layer, from `start` on if the registry supports ranges (status 206)."""
        with self._request("GET", f"blobs/{digest}", {"range": f"bytes={start}-"} if start else {}) as response:
            self._check_status(response, 200, 206)
            yield response

    def _upload_blob(self, descriptor: OciDescriptor, body_factory: BodyFactory) -> None:
        with self._request("HEAD", f"blobs/{descriptor.digest}", {}) as response:
            if response.status_code == 200:
                return
        with self._request("POST", "blobs/uploads/", {"content-length": "0"}) as response:
            self._check_status(response, 202)
            location = http_client.resolve_redirect(self._reference.origin, response.headers.get("location", ""))
        upload_url = location + ("&" if "?" in location else "?") + urlencode({"digest": descriptor.digest})
        headers = {"content-length": str(descriptor.size), "content-type": "application/octet-stream"}
        with self._request("PUT", upload_url, headers, body_factory) as response:
            self._check_status(response, 201)

    @contextmanager
    def _request(
        self, method: str, path: str, headers: Mapping[str, str], body: BodyFactory | None = None
    ) -> Iterator[httpx2.Response]:
        """Send one request, authenticate if challenged, and follow redirects of GET."""
        url = path if "://" in path else f"{self._reference.origin}/v2/{self._reference.repository}/{path}"
        for is_last_attempt in (False, True):
            request_headers = dict(headers)
            if self._authorization and http_client.parse_origin(url) == self._origin:
                request_headers["authorization"] = self._authorization
            with self._send(method, url, request_headers, body, follow_redirects=method == "GET") as response:
                is_registry_origin = http_client.parse_origin(str(response.url)) == self._origin
                if is_last_attempt or response.status_code != 401 or not is_registry_origin:
                    yield response
                    return
                challenge = response.headers.get("www-authenticate", "")
            self._authorization = self._authorization_for(challenge)

    @contextmanager
    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: BodyFactory | None = None,
        *,
        follow_redirects: bool = False,
    ) -> Iterator[httpx2.Response]:
        """Send one request. httpx2 does not send `Authorization` to another host after a redirect."""
        try:
            content = None if body is None else body()
            request = self._http.build_request(method, url, headers=headers, content=content)
            response = self._http.send(request, stream=True, follow_redirects=follow_redirects)
        except httpx2.TooManyRedirects as error:
            raise RegistryFailed(f"{self._reference.origin} redirects too often.") from error
        except HTTP_ERRORS as error:
            reason = describe_http_error(error, find_environment_proxy(url))
            raise RegistryUnreachable(f"{self._reference.origin} cannot be reached: {reason}.") from error
        try:
            yield response
        finally:
            response.close()

    def _read(self, response: httpx2.Response, max_bytes: int) -> bytes:
        try:
            return http_client.read_limited(response, max_bytes)
        except HTTP_ERRORS as error:
            raise RegistryFailed(
                f"{self._reference.origin} closed the connection early: {describe_http_error(error)}."
            ) from error

    def _authorization_for(self, challenge: str) -> str | None:
        """Return the `Authorization` value for a challenge of the registry's origin."""
        self._credentials = self._find_credentials()
        if not challenge.lower().startswith("bearer "):
            return self._credentials.basic_authorization if self._credentials and self._credentials.user else None
        parameters = dict(_CHALLENGE_PARAMETER.findall(challenge))
        realm = parameters.get("realm", "")
        self._check_token_service(realm)
        scope = parameters.get("scope") or f"repository:{self._reference.repository}:pull,push"
        return self._fetch_token(realm, {"service": parameters.get("service", ""), "scope": scope})

    def _check_token_service(self, realm: str) -> None:
        """Check that the token service may receive the request, with credentials if set. Raises RegistryFailed."""
        registry_origin, service_origin = self._origin, http_client.parse_origin(realm)
        if service_origin == registry_origin:
            return
        if (registry_origin.scheme, service_origin.scheme) == ("https", "http"):
            raise RegistryFailed(f"{self._reference.origin} names a token service without https: {realm[:200]!r}.")
        if self._credentials is None or service_origin.host in self._token_hosts:
            return
        if service_origin.scheme != "https" or not _is_under_parent_domain(service_origin.host, registry_origin.host):
            raise RegistryFailed(
                f"{self._reference.origin} requests your credentials for {service_origin.host}, a different host. "
                f"To allow it, set SVC_OCI_TOKEN_HOST={service_origin.host}"
            )

    def _fetch_token(self, realm: str, parameters: dict[str, str]) -> str:
        """Request a token. Redirects are not followed. Raises RegistryFailed."""
        headers, body = {}, None
        if self._credentials and self._credentials.identity_token:
            # https://distribution.github.io/distribution/spec/auth/oauth/
            grant = {"grant_type": "refresh_token", "client_id": "svc"}
            form = urlencode(parameters | grant | {"refresh_token": self._credentials.identity_token}).encode()
            headers = {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(form))}
            method, url, body = "POST", realm, lambda: iter([form])
        else:
            if self._credentials:
                headers = {"authorization": self._credentials.basic_authorization}
            query = urlencode(parameters, quote_via=quote)
            method, url = "GET", f"{realm}{'&' if '?' in realm else '?'}{query}"
        with self._send(method, url, headers, body) as response:
            if response.status_code != 200:
                raise RegistryFailed(
                    f"The token service of {self._reference.origin} returned status {response.status_code}."
                    f"{self._status_hint(response.status_code, '')}"
                )
            data = self._read(response, MAX_TOKEN_RESPONSE_BYTES)
        try:
            token_response = msgspec.json.decode(data, type=_TokenResponse)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryFailed(f"The token service of {self._reference.origin} returned no token.") from error
        if not (token := token_response.token or token_response.access_token):
            raise RegistryFailed(f"The token service of {self._reference.origin} returned no token.")
        return f"Bearer {token}"

    def _check_status(self, response: httpx2.Response, *statuses: int) -> None:
        if response.status_code not in statuses:
            detail = http_client.sanitize_text(_decode_error(self._read(response, MAX_OCI_ERROR_BYTES)), 200)
            hint = self._status_hint(response.status_code, detail)
            is_temporary = response.status_code == 429 or response.status_code >= 500
            error_class = RegistryUnreachable if is_temporary else RegistryFailed
            raise error_class(f"{self._reference.origin} returned status {response.status_code}: {detail}{hint}")

    def _status_hint(self, status: int, detail: str) -> str:
        """Return what to do, or nothing."""
        host = self._reference.origin.partition("://")[2]
        if status == 400 and self._origin.scheme == "http" and "HTTPS" in detail:
            return f" The registry uses TLS: begin the reference with oci://https://{host}/"
        if status not in (401, 403):
            return ""
        if self._credentials is None:
            return f" Log in with: docker login {host}, or set SVC_OCI_USER and SVC_OCI_PASSWORD."
        return " The registry refuses these credentials: check SVC_OCI_USER, or log in again with docker login."


def manifest_annotations(entry: BundleEntry) -> dict[str, str]:
    """Return the manifest annotations that describe a bundle."""
    fields = {"model_id": entry.model_id, "version": entry.version, "platform": entry.target}
    if entry.signatures:
        fields["signatures"] = " ".join(f"{signature.key}:{signature.value}" for signature in entry.signatures)
    return {f"vnd.svc.{name}": value for name, value in fields.items()}


def entry_from_manifest(manifest: OciManifest) -> BundleEntry:
    """Return the index entry of a manifest. Raises RegistryFailed."""
    manifest_fields, layer = manifest.annotations, manifest.layers[0]
    try:
        entry = BundleEntry(
            model_id=check_name("model_id", manifest_fields["vnd.svc.model_id"]),
            version=check_name("version", manifest_fields["vnd.svc.version"]),
            target=check_name("platform", manifest_fields["vnd.svc.platform"]),
            size_bytes=layer.size,
            path="",
            sha256=layer.digest.removeprefix("sha256:"),
        )
    except (KeyError, InvalidRequest) as error:
        raise RegistryFailed("This is not a bundle: its manifest does not name the model.") from error
    if not re.fullmatch("[0-9a-f]{64}", entry.sha256 or ""):
        raise RegistryFailed("This is not a bundle: its layer has no sha256 digest.")
    pairs = [pair.partition(":") for pair in manifest_fields.get("vnd.svc.signatures", "").split()]
    return msgspec.structs.replace(entry, signatures=tuple(Signature(key, value) for key, _, value in pairs))


class OciBundleSource:
    """Downloads a bundle from an OCI registry."""

    def __init__(self, repository: OciRepository) -> None:
        self._repository = repository

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        with self._repository.open_blob(f"sha256:{entry.sha256}", start) as response:
            if response.status_code == 200 and start:
                partial_file.restart()
            try:
                partial_file.receive(response.iter_raw())
            except HTTP_ERRORS as error:
                raise ConnectionError(describe_http_error(error)) from error


def _read_chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while block := source.read(OCI_UPLOAD_CHUNK_BYTES):
            yield block


def _decode_error(body: bytes) -> str:
    """Return the messages of an error response (OCI distribution specification, "Error Codes"), or its text."""
    try:
        errors = msgspec.json.decode(body, type=_OciErrors).errors
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        errors = []
    return "; ".join(error.message or error.code for error in errors) or body.decode("utf-8", "replace")


def _oci_digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _is_under_parent_domain(host: str, registry_host: str) -> bool:
    """Return whether a host is under the registry's parent domain, as auth.docker.io for registry-1.docker.io."""
    labels = registry_host.split(".")
    domain = registry_host if len(labels) < 3 or labels[-1].isdigit() or ":" in registry_host else ".".join(labels[1:])
    return host == domain or host.endswith(f".{domain}")
