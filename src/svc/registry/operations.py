"""Names what a request does at the registry, for metrics and spans. No I/O."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

RegistryOperation = Literal["download", "head", "publish", "resolve", "yank", "other"]
REGISTRY_OPERATIONS: Final = ("download", "head", "publish", "resolve", "yank", "other")
_NAME: Final = r"[^/?]{1,128}"
_BUNDLE: Final = re.compile(rf"/bundles/({_NAME})/({_NAME})/({_NAME})/({_NAME})")
_INDEX: Final = re.compile(rf"/index(?:/({_NAME}))?")
_BUNDLE_ROUTE: Final = "/bundles/{model_id}/{version}/{platform}"


class DescribedRequest(NamedTuple):
    """A request of the registry."""

    operation: RegistryOperation
    route: str
    """The path with placeholders, or empty for an unknown path."""
    bundle: str = ""
    """The bundle as `id@version`, or the id alone, if the path names one."""
    platform: str = ""


def describe_request(method: str, path: str) -> DescribedRequest:
    """Return what a request does. `path` has no query."""
    if match := _BUNDLE.fullmatch(path):
        bundle, platform, last = f"{match[1]}@{match[2]}", match[3], match[4]
        if method == "POST" and last in ("yank", "unyank"):
            return DescribedRequest("yank", f"{_BUNDLE_ROUTE}/{last}", bundle, platform)
        operations: dict[str, RegistryOperation] = {"GET": "download", "HEAD": "head", "PUT": "publish"}
        return DescribedRequest(operations.get(method, "other"), f"{_BUNDLE_ROUTE}/{{file}}", bundle, platform)
    if match := _INDEX.fullmatch(path):
        route = "/index/{model_id}" if match[1] else "/index"
        return DescribedRequest("resolve" if method in ("GET", "HEAD") else "other", route, match[1] or "")
    return DescribedRequest("other", path if path in ("/health", "/metrics") else "")
