"""Keys and usage for the commands: from this machine's database, or from a gateway elsewhere through its admin API.

Both do the same with the same structs (`svc.keys.issuing`); only where the work is done differs. No verb.
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

from svc.cli import base
from svc.client.address import with_version
from svc.client.config import check_key
from svc.client.session import Session, Times
from svc.client.wires import BlockingNet, run
from svc.errors import CommandFailed, GatewayFailed, InvalidRequest, NotFound, UsageError
from svc.gateway.intake import take_left_behind
from svc.keys import issuing
from svc.keys.issuing import Change, MadeKey, NewKey, Rotation, ShownKey
from svc.keys.spending import query
from svc.keys.using import KeyUse
from svc.stores.base import Database
from svc.stores.opening import open_state

T = TypeVar("T")
_OPTIONS = {"scopes": "scope", "tags": "tag"}
"""Fields whose option has another name."""


class Desk(Protocol):
    """Raises SvcError: InvalidRequest, NotFound, StoreDown here, and what a gateway answers there."""

    def create(self, wanted: NewKey) -> MadeKey: ...

    def every(self) -> Iterator[ShownKey]: ...

    def one(self, id: str) -> ShownKey: ...

    def change(self, id: str, wanted: Change) -> ShownKey: ...

    def rotate(self, id: str, wanted: Rotation) -> MadeKey: ...

    def revoke(self, id: str) -> ShownKey: ...

    def uses(self, id: str | None) -> Iterator[KeyUse]:
        """What keys, or one, use of their limits now; UsageError here, since only a running gateway knows."""

    def usage(self, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        """`asked`: `by`, `since` and so on, as the API takes them."""


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """`--gateway`."""
    parser.add_argument(
        "--gateway",
        "--url",
        metavar="URL",
        help="ask the gateway there, with the key in SVC_API_KEY (scope admin); default: this machine's database",
    )


@contextlib.contextmanager
def opened(args: argparse.Namespace) -> Iterator[Desk]:
    """The desk that is meant. What is asked for wrongly is a UsageError."""
    try:
        with _far(args.gateway) if args.gateway is not None else _near() as desk:
            yield desk
    except InvalidRequest as error:
        raise UsageError(_of_options(error.message, error.param)) from error
    except NotFound as error:
        if error.param != "id":  # an address, not a key
            raise
        raise CommandFailed(f"{error.message} See: svc keys ls") from error


def _of_options(message: str, field: str | None) -> str:
    """What is said of a field, which begins with its name, said of the option that it comes from."""
    if field is not None and re.match(rf"{re.escape(field)}\b", message):
        message = f"--{_OPTIONS.get(field, field.replace('_', '-'))}{message[len(field) :]}"
    return re.sub(r"(?<!-)\bbudget_(\w+)", r"--budget-\1", message)


@contextlib.contextmanager
def _near() -> Iterator[Desk]:
    database = open_state(os.environ, base.home())
    try:
        database.migrate()
        yield Near(database)
    finally:
        database.close()


@contextlib.contextmanager
def _far(url: str) -> Iterator[Desk]:
    key = check_key(os.environ.get("SVC_API_KEY"))
    if key is None:
        raise UsageError("--gateway needs a key with the scope admin in SVC_API_KEY.")
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    session = Session(BlockingNet(), with_version(url, "--gateway"), headers, retries=0, times=Times())
    try:
        yield Far(session)
    finally:
        session.close()


class Near:
    """This machine's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, wanted: NewKey) -> MadeKey:
        return issuing.create(self._database, wanted)

    def every(self) -> Iterator[ShownKey]:
        after = ""
        while found := issuing.page(self._database, after=after):
            yield from found
            after = found[-1].id

    def one(self, id: str) -> ShownKey:
        return issuing.one(self._database, id)

    def change(self, id: str, wanted: Change) -> ShownKey:
        return issuing.change(self._database, id, wanted)

    def rotate(self, id: str, wanted: Rotation) -> MadeKey:
        return issuing.rotate(self._database, id, wanted)

    def revoke(self, id: str) -> ShownKey:
        return issuing.revoke(self._database, id)

    def uses(self, id: str | None) -> Iterator[KeyUse]:
        raise UsageError("Only a running gateway knows that: name it with --gateway http://127.0.0.1:3000.")

    def usage(self, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        question = query(asked)
        take_left_behind(base.home() / "journal", self._database)
        return question.answer(self._database)


class _Page(msgspec.Struct):
    data: list[ShownKey]
    has_more: bool


class _Uses(msgspec.Struct):
    data: list[KeyUse]
    has_more: bool


class _Usage(msgspec.Struct):
    data: list[dict[str, Any]]


class Far:
    """A gateway's admin API. Nothing is tried twice: a key must not be made twice."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create(self, wanted: NewKey) -> MadeKey:
        return self._ask(MadeKey, "POST", "/admin/keys", wanted)

    def every(self) -> Iterator[ShownKey]:
        more, after = True, ""
        while more:
            page = self._ask(_Page, "GET", f"/admin/keys?{urlencode({'after': after, 'limit': issuing.MAX_PAGE})}")
            yield from page.data
            more = page.has_more and bool(page.data)
            after = page.data[-1].id if page.data else ""

    def one(self, id: str) -> ShownKey:
        return self._ask(ShownKey, "GET", f"/admin/keys/{_part(id)}")

    def change(self, id: str, wanted: Change) -> ShownKey:
        return self._ask(ShownKey, "PATCH", f"/admin/keys/{_part(id)}", wanted)

    def rotate(self, id: str, wanted: Rotation) -> MadeKey:
        return self._ask(MadeKey, "POST", f"/admin/keys/{_part(id)}/rotate", wanted)

    def revoke(self, id: str) -> ShownKey:
        return self._ask(ShownKey, "POST", f"/admin/keys/{_part(id)}/revoke")

    def uses(self, id: str | None) -> Iterator[KeyUse]:
        more, asked = True, {"limit": str(issuing.MAX_PAGE)} if id is None else {"key": id}
        while more:
            page = self._ask(_Uses, "GET", f"/admin/limits?{urlencode(asked)}")
            yield from page.data
            more = page.has_more and bool(page.data)
            asked |= {"after": page.data[-1].id} if page.data else {}

    def usage(self, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        return self._ask(_Usage, "GET", f"/admin/usage?{urlencode(asked)}").data

    def _ask(self, kind: type[T], method: str, path: str, body: msgspec.Struct | None = None) -> T:
        data = b"" if body is None else msgspec.json.encode(body)
        _, answer = run(self._session.fetch(method, path, data))
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise GatewayFailed("The answer is not that of an admin API; is the address that of a gateway?") from error


def _part(id: str) -> str:
    return quote(id, safe="")
