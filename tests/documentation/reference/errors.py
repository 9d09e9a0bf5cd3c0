"""The error codes, from `svc/errors.py`: the docstring of a class says when, and after "To fix:" what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from svc import errors
from svc.errors import SvcError
from svc.stores.database.base import StoreUnavailable
from tests.documentation.reference.markdown import table

COMMAND_LINE = (errors.CommandFailed, errors.UsageError, errors.PipelineFailed)
IN_THE_CLIENT = (errors.GatewayFailed,)


def http_errors() -> str:
    """Errors that a server answers with, by HTTP status and code."""
    found = sorted((*_classes(), StoreUnavailable), key=lambda each: (each.status, each.code))
    head = ("HTTP status", "Code", "`type`", "Exception", "When", "To fix")
    return table(head, ((str(each.status), *_row(each)) for each in found))


def local_errors() -> str:
    """Errors of commands and of the SDK, which no server sends."""
    head = ("Code", "`type`", "Exception", "When", "To fix")
    return table(head, (_row(each) for each in (*IN_THE_CLIENT, *COMMAND_LINE)))


def _classes() -> list[type[SvcError]]:
    every = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SvcError)]
    return [each for each in every if each not in (SvcError, *COMMAND_LINE, *IN_THE_CLIENT)]


def _row(error: type[SvcError]) -> tuple[str, ...]:
    when, _, remedy = (inspect.getdoc(error) or "").partition("\n\nTo fix: ")
    if not remedy:
        raise LookupError(f"the docstring of {error.__name__} has no paragraph 'To fix: …'")
    return f"`{error.code}`", f"`{error.type}`", f"`{error.__name__}`", when, remedy.partition("\n\n")[0]


REGIONS: dict[str, Callable[[], str]] = {"errors.http": http_errors, "errors.local": local_errors}
