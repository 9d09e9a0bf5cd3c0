"""Settings that the SDK, the registry client and the commands share for their requests with httpx2.

httpx2 takes proxies from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, and certificate authorities from
`SSL_CERT_FILE` and `SSL_CERT_DIR`. This module imports httpx2, which takes 90 ms: the servers do not import it.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from svc.errors import UsageError
from svc.tls_context import without_strict_checks

HTTP_ERRORS = (httpx2.RequestError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError)
"""Exceptions of a request and of reading its response. UnicodeError is raised for an invalid host name."""
_ERRNO_PREFIX = re.compile(r"^\[Errno -?\d+\] ")


def describe_http_error(error: BaseException) -> str:
    """Return a short reason for a failure."""
    reason = _ERRNO_PREFIX.sub("", str(error)).rstrip(".") or type(error).__name__
    return f"the proxy refused the connection: {reason}" if isinstance(error, httpx2.ProxyError) else reason


def create_tls_context(*, trust_env: bool = True) -> ssl.SSLContext:
    """Return the `verify` argument of an httpx2 client, with the certificate authorities that httpx2 chooses.

    With `trust_env`, `SSL_CERT_FILE` and `SSL_CERT_DIR` replace them. Raises OSError for an invalid file.
    """
    return without_strict_checks(httpx2.create_ssl_context(trust_env=trust_env))


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
