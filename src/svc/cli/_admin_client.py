"""Administer keys and query usage: in this machine's database, or through a gateway's admin API.

Both clients use the structs of `svc.keys.lifecycle`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from svc import plugins
from svc.cli import _gateway_address
from svc.cli._folders import find_home
from svc.client.address import with_v1_suffix
from svc.client.config import normalize_api_key
from svc.client.discovery import find_gateway
from svc.client.http_session import HttpSession, SessionTimeouts
from svc.client.transport import run_sync
from svc.errors import CommandFailed, GatewayFailed, InvalidRequest, NotFound, UsageError
from svc.gateway.accounting.ingest import ingest_orphans
from svc.gateway.observability.explanation import RequestExplanation
from svc.gateway.observability.explanation_facts import read_entry_explanation, read_refused_explanation
from svc.gateway.observability.refusals import REFUSALS_FOLDER, find_refused
from svc.keys import lifecycle
from svc.keys.lifecycle import Change, MadeKey, NewKey, Rotation, ShownKey
from svc.keys.limit_usage import KeyLimitUsage
from svc.keys.usage_query import parse_usage_query
from svc.stores.database.base import Database
from svc.stores.database.factory import open_state_database

T = TypeVar("T")
_OPTION_NAMES = {"scopes": "scope", "tags": "tag"}
"""Fields whose option has a different name."""


class AdminClient(Protocol):
    """Operations on keys and usage.

    All raise SvcError. The local client raises InvalidRequest, NotFound and StoreUnavailable. The HTTP client raises
    the gateway's errors.
    """

    def create_key(self, new_key: NewKey) -> MadeKey: ...

    def list_keys(self) -> Iterator[ShownKey]: ...

    def get_key(self, id: str) -> ShownKey: ...

    def change_key(self, id: str, changes: Change) -> ShownKey: ...

    def rotate_key(self, id: str, rotation: Rotation) -> MadeKey: ...

    def revoke_key(self, id: str) -> ShownKey: ...

    def list_key_usage(self, id: str | None) -> Iterator[KeyLimitUsage]:
        """Return the current limit usage of all keys, or of one. The local client raises UsageError."""

    def query_usage(self, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        """Query the ledger. `parameters` are those of the API: `by`, `since` and so on."""

    def explain_request(self, id: str) -> RequestExplanation | None:
        """Return why a request ended as it did, or None if it is not known."""


def add_gateway_option(parser: argparse.ArgumentParser) -> None:
    """Add `--gateway`."""
    parser.add_argument(
        "--gateway",
        "--url",
        metavar="URL",
        help="address of a gateway; needs a key with the scope admin in SVC_API_KEY; default: this machine's database",
    )


@contextlib.contextmanager
def open_admin_client(args: argparse.Namespace) -> Iterator[AdminClient]:
    """Open the client that the options select. An invalid request becomes a UsageError."""
    try:
        with _open_http_client(args.gateway) if args.gateway is not None else _open_database_client() as admin:
            yield admin
    except InvalidRequest as error:
        raise UsageError(_rewrite_field_as_option(error.message, error.param)) from error
    except NotFound as error:
        if error.param != "id":  # a 404 for the URL, not for the key
            raise
        raise CommandFailed(f"{error.message} See: svc keys ls") from error


def _rewrite_field_as_option(message: str, field: str | None) -> str:
    """Replace the field name at the beginning of a message with its option."""
    if field is not None and re.match(rf"{re.escape(field)}\b", message):
        message = f"--{_OPTION_NAMES.get(field, field.replace('_', '-'))}{message[len(field) :]}"
    return re.sub(r"(?<!-)\bbudget_(\w+)", r"--budget-\1", message)


@contextlib.contextmanager
def _open_database_client() -> Iterator[AdminClient]:
    database = open_state_database(os.environ, find_home())
    try:
        database.migrate()
        yield DatabaseAdminClient(database)
    finally:
        database.close()


@contextlib.contextmanager
def _open_http_client(url: str) -> Iterator[AdminClient]:
    key = normalize_api_key(os.environ.get("SVC_API_KEY"))
    if key is None:
        raise UsageError("--gateway needs a key with the scope admin in SVC_API_KEY.")
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    base_url = with_v1_suffix(url, "--gateway")
    transport = plugins.load("client", "blocking_transport").BlockingTransport(
        base_url, direct=_gateway_address.is_local_gateway(base_url)
    )
    session = HttpSession(transport, base_url, headers, retries=0, timeouts=SessionTimeouts())
    try:
        yield HttpAdminClient(session)
    finally:
        run_sync(session.close())


class DatabaseAdminClient:
    """Administers this machine's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_key(self, new_key: NewKey) -> MadeKey:
        return lifecycle.create_key(self._database, new_key)

    def list_keys(self) -> Iterator[ShownKey]:
        after = ""
        while keys := lifecycle.list_keys(self._database, after=after):
            yield from keys
            after = keys[-1].id

    def get_key(self, id: str) -> ShownKey:
        return lifecycle.get_key(self._database, id)

    def change_key(self, id: str, changes: Change) -> ShownKey:
        return lifecycle.update_key(self._database, id, changes)

    def rotate_key(self, id: str, rotation: Rotation) -> MadeKey:
        return lifecycle.rotate_key(self._database, id, rotation)

    def revoke_key(self, id: str) -> ShownKey:
        return lifecycle.revoke_key(self._database, id)

    def list_key_usage(self, id: str | None) -> Iterator[KeyLimitUsage]:
        url = find_gateway(find_home()) or "http://127.0.0.1:3000"
        raise UsageError(f"Only a running gateway has this information: use --gateway {url}")

    def query_usage(self, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        usage_query = parse_usage_query(parameters)
        ingest_orphans(find_home() / "journal", self._database)
        return usage_query.execute(self._database)

    def explain_request(self, id: str) -> RequestExplanation | None:
        ingest_orphans(find_home() / "journal", self._database)
        entry = self._database.get_entry(id)
        if entry is not None:
            return read_entry_explanation(self._database, entry)
        folder = find_home() / REFUSALS_FOLDER
        refused = find_refused(folder, id)
        return None if refused is None else read_refused_explanation(self._database, folder, refused)


class _KeyPage(msgspec.Struct):
    data: list[ShownKey]
    has_more: bool


class _KeyUsagePage(msgspec.Struct):
    data: list[KeyLimitUsage]
    has_more: bool


class _UsageResponse(msgspec.Struct):
    data: list[dict[str, Any]]


class HttpAdminClient:
    """Administers a gateway through its admin API. Requests are never retried: a retry could create a key twice."""

    def __init__(self, session: HttpSession) -> None:
        self._session = session

    def create_key(self, new_key: NewKey) -> MadeKey:
        return self._request(MadeKey, "POST", "/admin/keys", new_key)

    def list_keys(self) -> Iterator[ShownKey]:
        has_more, after = True, ""
        while has_more:
            page = self._request(
                _KeyPage, "GET", f"/admin/keys?{urlencode({'after': after, 'limit': lifecycle.MAX_KEYS_PER_PAGE})}"
            )
            yield from page.data
            has_more = page.has_more and bool(page.data)
            after = page.data[-1].id if page.data else ""

    def get_key(self, id: str) -> ShownKey:
        return self._request(ShownKey, "GET", f"/admin/keys/{_quote_path_segment(id)}")

    def change_key(self, id: str, changes: Change) -> ShownKey:
        return self._request(ShownKey, "PATCH", f"/admin/keys/{_quote_path_segment(id)}", changes)

    def rotate_key(self, id: str, rotation: Rotation) -> MadeKey:
        return self._request(MadeKey, "POST", f"/admin/keys/{_quote_path_segment(id)}/rotate", rotation)

    def revoke_key(self, id: str) -> ShownKey:
        return self._request(ShownKey, "POST", f"/admin/keys/{_quote_path_segment(id)}/revoke")

    def list_key_usage(self, id: str | None) -> Iterator[KeyLimitUsage]:
        has_more, parameters = True, {"limit": str(lifecycle.MAX_KEYS_PER_PAGE)} if id is None else {"key": id}
        while has_more:
            page = self._request(_KeyUsagePage, "GET", f"/admin/limits?{urlencode(parameters)}")
            yield from page.data
            has_more = page.has_more and bool(page.data)
            parameters |= {"after": page.data[-1].id} if page.data else {}

    def query_usage(self, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        return self._request(_UsageResponse, "GET", f"/admin/usage?{urlencode(parameters)}").data

    def explain_request(self, id: str) -> RequestExplanation | None:
        try:
            return self._request(RequestExplanation, "GET", f"/requests/{_quote_path_segment(id)}/explanation")
        except NotFound:
            return None

    def _request(self, response_type: type[T], method: str, path: str, body: msgspec.Struct | None = None) -> T:
        request_body = b"" if body is None else msgspec.json.encode(body)
        _, response_body = run_sync(self._session.fetch(method, path, request_body))
        try:
            return msgspec.json.decode(response_body, type=response_type)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise GatewayFailed(
                "The response is not from an admin API. Check that the URL is the address of a gateway."
            ) from error


def _quote_path_segment(id: str) -> str:
    return quote(id, safe="")
