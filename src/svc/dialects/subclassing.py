"""Let classes of other packages inherit from a compiled class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    # mypyc recognises the decorator by its full name. It is not needed at run time, and neither is its package.
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    T = TypeVar("T", bound=type)

    def mypyc_attr(**_options: bool) -> Callable[[T], T]:
        """Return a decorator that changes nothing: every class of a source file can be inherited from."""
        return lambda base: base
