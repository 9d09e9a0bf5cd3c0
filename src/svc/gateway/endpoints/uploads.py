"""`/v1/admin/uploads`: publishes a bundle in chunks.

A client announces the bundle, sends chunks that any worker of this machine accepts, and commits it.
"""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from svc.errors import InvalidRequest, NotFound, TooLarge
from svc.gateway.endpoints.asgi_responses import json_response, read_body
from svc.gateway.endpoints.bundle_access import BundleAccess, bundle_route, published_response
from svc.gateway.proxy.context import GatewayContext
from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.resumable_upload import AnnouncedUpload, PendingUpload
from svc.wire.bundle import MAX_SIGNATURES, Sha256Hex, Signature
from svc.wire.form import parse_form
from svc.wire.key import ApiKey

MAX_CHUNK_BYTES: Final = 8 << 20
"""Maximum bytes of a chunk."""
SUGGESTED_CHUNK_BYTES: Final = 1 << 20
"""Larger chunks would occupy the event loop for longer."""
OFFSET_HEADER: Final = "upload-offset"


class NewUpload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bundle that will be sent in chunks."""

    model_id: str
    """The name of the model."""
    version: str
    """The version."""
    platform: str = "any"
    """The platform."""
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    """Bytes of the bundle."""
    sha256: Sha256Hex | None = None
    """The SHA-256 of the bundle in hex, which the commit compares. Null means that it is not compared."""
    signatures: Annotated[tuple[Signature, ...], msgspec.Meta(max_length=MAX_SIGNATURES)] = ()
    """Ed25519 signatures: `key` and `value`, both in base64."""


class UploadState(msgspec.Struct, frozen=True, kw_only=True):
    """An upload in progress."""

    id: str
    """The id of the upload."""
    object: str = "upload"
    """Always `upload`."""
    key: str
    """`<model_id>/<version>/<platform>`."""
    size_bytes: int
    """Bytes of the bundle."""
    offset: int
    """Bytes received so far: the offset of the next chunk."""
    chunk_bytes: int
    """The suggested bytes of a chunk."""
    max_chunk_bytes: int
    """Maximum bytes of a chunk."""
    expires: str
    """When the upload is removed unless a chunk arrives: ISO 8601, UTC."""


class DeletedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """The confirmation that an upload is removed."""

    id: str
    """The id of the upload."""
    object: str = "upload"
    """Always `upload`."""
    deleted: bool = True
    """Always true."""


class UploadApi:
    """The handlers. They raise SvcError, which the application converts to a response."""

    def __init__(self, context: GatewayContext, access: BundleAccess) -> None:
        self._context = context
        self._access = access

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        upload = "/v1/admin/uploads/{id}"
        route = functools.partial(bundle_route, self._context)
        return [
            route("/v1/admin/uploads", POST=self._create_upload),
            route(upload, GET=self._get_upload, PATCH=self._append, DELETE=self._delete_upload),
            route(f"{upload}/commit", POST=self._commit),
        ]

    async def _create_upload(self, request: Request, key: ApiKey) -> Response:
        new_upload = parse_form(NewUpload, await read_body(request))
        draft = BundleDraft(new_upload.model_id, new_upload.version, new_upload.platform, new_upload.signatures)
        if any(len(signature.key) + len(signature.value) > 200 for signature in new_upload.signatures):
            raise InvalidRequest("signatures: each must have a key and a value in base64.", param="signatures")
        announced = AnnouncedUpload(
            owner=key.owner_id, draft=draft, size=new_upload.size_bytes, sha256=new_upload.sha256
        )
        return self._upload_response(await self._access.run(lambda _: self._access.uploads.create(announced)), 201)

    async def _get_upload(self, request: Request, key: ApiKey) -> Response:
        return self._upload_response(await self._find_upload(request, key))

    async def _append(self, request: Request, key: ApiKey) -> Response:
        offset = request.headers.get(OFFSET_HEADER, "")
        if not (offset.isascii() and offset.isdigit() and len(offset) < 20):
            raise InvalidRequest(f"The request needs the header {OFFSET_HEADER}, a number.", param=OFFSET_HEADER)
        chunk = await request.body()
        if len(chunk) > MAX_CHUNK_BYTES:
            raise TooLarge(f"A chunk may have at most {MAX_CHUNK_BYTES} bytes.")
        if not chunk:
            raise InvalidRequest("The body must be a chunk of the bundle.")
        upload_id = (await self._find_upload(request, key)).id
        append = self._access.uploads.append
        return self._upload_response(await self._access.run(lambda _: append(upload_id, int(offset), chunk)))

    async def _commit(self, request: Request, key: ApiKey) -> Response:
        upload_id = (await self._find_upload(request, key)).id
        commit = self._access.uploads.commit
        published = await self._access.run(lambda _: commit(upload_id))
        return await published_response(self._access, *published)

    async def _delete_upload(self, request: Request, key: ApiKey) -> Response:
        upload_id = (await self._find_upload(request, key)).id
        await self._access.run(lambda _: self._access.uploads.remove(upload_id))
        return json_response(DeletedUpload(id=upload_id))

    async def _find_upload(self, request: Request, key: ApiKey) -> PendingUpload:
        """Return the upload of the path. Raises NotFound if another key announced it."""
        upload_id = request.path_params["id"]
        upload = await self._access.run(lambda _: self._access.uploads.get(upload_id))
        if upload.announced.owner != key.owner_id and "admin" not in key.scopes:
            raise NotFound(f"There is no upload {upload_id[:48]!r} of this key.", param="id")
        return upload

    def _upload_response(self, upload: PendingUpload, status: int = 200) -> Response:
        max_body_bytes = self._context.config.current.policy.max_body_bytes
        state = UploadState(
            id=upload.id,
            key=upload.announced.draft.key,
            size_bytes=upload.announced.size,
            offset=upload.offset,
            chunk_bytes=min(SUGGESTED_CHUNK_BYTES, max_body_bytes),
            max_chunk_bytes=min(MAX_CHUNK_BYTES, max_body_bytes),
            expires=datetime.fromtimestamp(math.floor(upload.expires), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        return json_response(state, status)
