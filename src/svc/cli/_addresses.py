"""Which gateway `svc chat` and `svc transcribe` talk to, and with which key. No verb.

--gateway > SVC_GATEWAY_URL > SVC_PLATFORM_URL > the gateway of `svc up` with the same SVC_HOME > a default
"""

from __future__ import annotations

import argparse
import os
import sys

from svc.cli import _running, base
from svc.client.address import resolve
from svc.client.config import check_key
from svc.errors import InvalidRequest, UsageError


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """`--gateway`, which every command has that calls one; `--url` is its old name."""
    parser.add_argument(
        "--gateway",
        "--url",
        metavar="URL",
        help="address of the gateway, with or without /v1; default: $SVC_GATEWAY_URL, else the running svc up",
    )


def gateway_of(option: str | None, key: str | None, default: str) -> tuple[str, str | None]:
    """Return the address, with `/v1`, and the key. The key of `svc up` is sent nowhere but there.

    Raises UsageError for what is no address or no key.
    """
    here = _running.find(base.home())
    try:
        url = resolve(option, None, os.environ, _warn, default=here or default)
        known = check_key(key) or check_key(os.environ.get("SVC_API_KEY"))
    except InvalidRequest as error:
        raise UsageError(error.message.replace("gateway_url is", "--gateway is")) from None
    return url, known or (_running.read_key(base.home()) if url == here else None)


def _warn(message: str) -> None:
    print(f"svc: {message}", file=sys.stderr)
