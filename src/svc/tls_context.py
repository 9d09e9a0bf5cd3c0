"""TLS contexts of connections that svc opens, without the stricter checks of certificates in newer Pythons."""

from __future__ import annotations

import ssl


def create_client_context(cafile: str | None = None, capath: str | None = None) -> ssl.SSLContext:
    """Create a context that verifies certificates and host names.

    Arguments and errors are those of `ssl.create_default_context`.
    """
    return disable_strict_checks(ssl.create_default_context(cafile=cafile, capath=capath))


def disable_strict_checks(context: ssl.SSLContext) -> ssl.SSLContext:
    """Disable the checks of extensions (RFC 5280) that Python 3.13 adds to each default context. Return the context.

    Signatures, host names, dates and the rights of each authority are still verified, as in Python 3.11 and 3.12.
    OpenSSL, curl and browsers omit the other checks by default. Many private authorities and proxies that inspect TLS
    issue certificates that fail them, for example without an authority key identifier.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
