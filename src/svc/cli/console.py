"""Print a link to the console of the running `svc up`. It logs in once, with all permissions, within ten minutes.

Examples:
  svc console
  svc console --open                     open the link in a browser
"""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Mapping

import msgspec

from svc import plugins
from svc.cli import _local_gateway
from svc.cli._folders import find_home
from svc.cli._output import print_json
from svc.client.http_session import HttpSession, SessionTimeouts
from svc.client.transport import run_sync
from svc.console.sessions import LinkInfo
from svc.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output options."""
    parser.add_argument("--open", action="store_true", help="open the link in a browser")
    parser.add_argument("--json", action="store_true", help="print an object with url and expires_in")


def run(args: argparse.Namespace) -> int:
    """Print the link."""
    home = find_home()
    url = _local_gateway.find_gateway(home)
    if url is None:
        raise UsageError("`svc up` is not running. Start it, or log in at /console/ of your gateway with an API key.")
    address = url.removesuffix("/v1")
    link = _create_link(address, {"authorization": f"Bearer {_local_gateway.ensure_console_key(home)}"})
    if args.json:
        print_json({"url": address + link.path, "expires_in": link.expires_in})
    else:
        print(address + link.path)
    if args.open and not webbrowser.open(address + link.path):
        raise UsageError("No browser could be started. Open the link yourself.")
    return 0


def _create_link(address: str, headers: Mapping[str, str]) -> LinkInfo:
    transport = plugins.load("client", "blocking_transport").BlockingTransport(address, direct=True)
    session = HttpSession(transport, address, headers, retries=0, timeouts=SessionTimeouts())
    try:
        _, body = run_sync(session.fetch("POST", "/console/links", b"{}"))
    finally:
        run_sync(session.close())
    return msgspec.json.decode(body, type=LinkInfo)
