"""`/v1/admin/bundles`: the bundles of this gateway's registry folder or bucket.

A registry of its own may serve the same folder at the same time. A `PUT` publishes a bundle of at most
`gateway.max_body`. `uploads.py` has the routes for larger ones.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from svc.errors import BundleNotFound, InvalidRequest
from svc.gateway.endpoints.asgi_responses import json_response
from svc.gateway.endpoints.bundle_access import BundleAccess, bundle_route, published_response
from svc.gateway.endpoints.bundle_views import BundleState
from svc.gateway.proxy.context import GatewayContext
from svc.stores.bundles.base import BundleDraft, BundleStore, is_served
from svc.wire.bundle import SIGNATURE_HEADER, BundleEntry, Signature, parse_signature_headers
from svc.wire.key import ApiKey

MAX_BUNDLES_PER_PAGE: Final = 1000


class BundlePage(msgspec.Struct, frozen=True, kw_only=True):
    """Bundles, in the order of their keys."""

    object: str = "list"
    """Always `list`."""
    data: list[BundleState]
    """The bundles of the page."""
    has_more: bool
    """Whether there is another page, after the last key of this one."""
    trusted_keys: int
    """The number of public keys in SVC_TRUSTED_KEYS."""


class BundleApi:
    """The handlers. They raise SvcError, which the application converts to a response."""

    def __init__(self, context: GatewayContext, access: BundleAccess) -> None:
        self._context = context
        self._access = access

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        bundle = "/v1/admin/bundles/{model_id}/{version}/{platform}"
        route = functools.partial(bundle_route, self._context)
        return [
            route("/v1/admin/bundles", GET=self._list),
            route(bundle, GET=self._get, PUT=self._put),
            route(f"{bundle}/yank", POST=functools.partial(self._set_yanked, yanked=True)),
            route(f"{bundle}/unyank", POST=functools.partial(self._set_yanked, yanked=False)),
        ]

    async def _list(self, request: Request, key: ApiKey) -> Response:
        after, limit = request.query_params.get("after", ""), _parse_limit(request.query_params.get("limit", "100"))
        model_id = request.query_params.get("model")

        def select(store: BundleStore) -> tuple[list[BundleState], list[BundleEntry], bool]:
            store.refresh()
            found = [entry for entry in store.entries(model_id) if entry.key > after and is_served(entry)]
            page, views = found[:limit], self._access.views
            states = views.list_states(page)
            return states, [entry for entry in page if not views.has_summary(entry)], len(found) > limit

        data, unread, has_more = await self._access.run(select)
        self._access.load_summaries(unread)
        return json_response(BundlePage(data=data, has_more=has_more, trusted_keys=self._access.trusted_key_count))

    async def _get(self, request: Request, key: ApiKey) -> Response:
        draft = _parse_draft(request)

        def describe(store: BundleStore) -> Any:
            return self._access.views.describe(store.ensure_hash(_find(store, draft.key)))

        return json_response(await self._access.run(describe))

    async def _put(self, request: Request, key: ApiKey) -> Response:
        draft = _parse_draft(request, parse_signature_headers(request.headers.getlist(SIGNATURE_HEADER)))
        body = await request.body()
        if not body:
            raise InvalidRequest("The body must be a bundle.")

        def publish(store: BundleStore) -> tuple[BundleEntry, bool]:
            upload = store.create_upload(len(body))
            try:
                upload.write(body)
                return store.publish(upload, draft)
            finally:
                upload.close()

        return await published_response(self._access, *await self._access.run(publish))

    async def _set_yanked(self, request: Request, key: ApiKey, *, yanked: bool) -> Response:
        draft = _parse_draft(request)

        def change(store: BundleStore) -> BundleState:
            _find(store, draft.key)
            return self._access.views.list_states([store.set_yanked(draft.key, yanked)])[0]

        return json_response(await self._access.run(change))


def _parse_draft(request: Request, signatures: tuple[Signature, ...] = ()) -> BundleDraft:
    path = request.path_params
    draft = BundleDraft(path["model_id"], path["version"], path["platform"], signatures)
    draft.validate()
    return draft


def _parse_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_BUNDLES_PER_PAGE:
        raise InvalidRequest(f"limit must be a number from 1 to {MAX_BUNDLES_PER_PAGE}.", param="limit")
    return int(text)


def _find(store: BundleStore, key: str) -> BundleEntry:
    entry = store.find(key)
    if entry is None or not is_served(entry):
        raise BundleNotFound(f"There is no bundle {key} here.")
    return entry
