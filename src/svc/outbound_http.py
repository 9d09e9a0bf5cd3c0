"""Settings that the SDK, the registry client and the commands share for their requests with httpx2.

httpx2 takes proxies from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, and certificate authorities from
`SSL_CERT_FILE` and `SSL_CERT_DIR`. This module imports httpx2, which takes 90 ms: the servers do not import it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from svc.errors import UsageError
from svc.tls_context import disable_strict_checks

HTTP_ERRORS = (httpx2.RequestError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError)
"""Exceptions of a request and of reading its response. UnicodeError is raised for an invalid host name."""
_ERRNO_PREFIX = re.compile(r"^\[Errno -?\d+\] ")
_ASYNCIO_CONNECT_FAILURE = re.compile(r"\[Errno (\d+)\] Connect call failed ")
"""The error of asyncio has the address as a tuple, and for a name with several addresses all of them."""
_CERTIFICATE_TIME = re.compile("certificate (?:is not yet valid|has expired)")


def describe_http_error(error: BaseException, proxy: str | None = None) -> str:
    """Return a short reason for a failure. `proxy` is the URL of the proxy, if the request uses one."""
    text = str(error)
    if refused := _ASYNCIO_CONNECT_FAILURE.search(text):
        reason = os.strerror(int(refused[1]))
    else:
        reason = _ERRNO_PREFIX.sub("", text).rstrip(".") or type(error).__name__
    if isinstance(error, httpx2.ProxyError):
        return f"the proxy refused the connection: {reason}"
    is_unreachable = refused or isinstance(error, (httpx2.ConnectError, ConnectionRefusedError, socket.gaierror))
    if _CERTIFICATE_TIME.search(reason):
        reason = f"{reason}; the clock of this machine says {datetime.now(UTC):%Y-%m-%d}"
    if proxy is not None and is_unreachable and not is_tls_error(error):
        return f"the proxy at {urlsplit(proxy).netloc.rpartition('@')[2]} cannot be reached: {reason}"
    return reason


def is_tls_error(error: BaseException | None) -> bool:
    """Return whether TLS failed, which may be that of the server behind the proxy."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


def create_tls_context(*, trust_env: bool = True) -> ssl.SSLContext:
    """Return the `verify` argument of an httpx2 client, with the certificate authorities that httpx2 chooses.

    With `trust_env`, `SSL_CERT_FILE` and `SSL_CERT_DIR` replace them. Raises OSError for an invalid file.
    """
    return disable_strict_checks(httpx2.create_ssl_context(trust_env=trust_env))


def select_tls_context(url: str, *, trust_env: bool = True) -> ssl.SSLContext:
    """Return the `verify` argument of an httpx2 client that sends requests to one server only.

    Without TLS the context trusts nobody, because loading the certificate authorities takes 20 ms.
    """
    if url.startswith("https:"):
        return create_tls_context(trust_env=trust_env)
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def supports_http2() -> bool:
    """Return whether the package `h2`, which HTTP/2 needs, is installed."""
    return find_spec("h2") is not None


def find_environment_proxy(url: str) -> str | None:
    """Return the proxy of the environment for a URL, as httpx2 chooses it."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@contextlib.contextmanager
def checked_environment() -> Iterator[None]:
    """Raise UsageError if httpx2 rejects a proxy or a certificate file of the environment."""
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"SSL_CERT_FILE or SSL_CERT_DIR cannot be used: {describe_http_error(error)}.") from error
    except ImportError as error:
        raise UsageError(
            "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY is a SOCKS proxy, which needs the package socksio. "
            "Install that, or set an HTTP proxy."
        ) from error
    except (ValueError, httpx2.InvalidURL) as error:
        # The message of the error may contain the password of the proxy.
        raise UsageError(
            "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY is not the URL of a proxy, such as http://proxy.example:3128."
        ) from error
