"""Select the gateway and the key of `svc chat` and `svc transcribe`.

Precedence: --gateway > SVC_GATEWAY_URL > SVC_PLATFORM_URL > the gateway of `svc up` with the same SVC_HOME > a default.
"""

from __future__ import annotations

import argparse
import os
import sys

from svc.cli import _local_gateway
from svc.cli._folders import find_home
from svc.client.address import resolve_gateway_url
from svc.client.config import normalize_api_key
from svc.errors import InvalidRequest, UsageError


def add_gateway_option(parser: argparse.ArgumentParser) -> None:
    """Add `--gateway`. `--url` is its deprecated name."""
    parser.add_argument(
        "--gateway",
        "--url",
        metavar="URL",
        help="address of the gateway, with or without /v1; default: $SVC_GATEWAY_URL, else the running svc up",
    )


def resolve_gateway(option: str | None, key: str | None, default: str) -> tuple[str, str | None]:
    """Return the base URL, which ends in `/v1`, and the key. The key of `svc up` is sent only to that gateway.

    Raises UsageError for an invalid URL or key.
    """
    local_url = _local_gateway.find_gateway(find_home())
    try:
        url = resolve_gateway_url(option, None, os.environ, _print_warning, default=local_url or default)
        chosen_key = normalize_api_key(key) or normalize_api_key(os.environ.get("SVC_API_KEY"))
    except InvalidRequest as error:
        raise UsageError(error.message.replace("gateway_url is", "--gateway is")) from None
    return url, chosen_key or (_local_gateway.read_local_api_key(find_home()) if url == local_url else None)


def is_local_gateway(url: str) -> bool:
    """Return whether `svc up` on this machine serves the URL. Then no proxy is used, because none can reach it."""
    return url == _local_gateway.find_gateway(find_home())


def _print_warning(message: str) -> None:
    print(f"svc: {message}", file=sys.stderr)
