"""TLS contexts of connections that svc opens. They verify certificates alike in each version of Python."""

from __future__ import annotations

import ssl


def create_client_context(cafile: str | None = None, capath: str | None = None) -> ssl.SSLContext:
    """Create a context that verifies certificates and host names.

    Arguments and errors are those of `ssl.create_default_context`.
    """
    return without_strict_checks(ssl.create_default_context(cafile=cafile, capath=capath))


def without_strict_checks(context: ssl.SSLContext) -> ssl.SSLContext:
    """Disable the checks of extensions (RFC 5280) that Python 3.13 adds to each default context. Return the context.

    OpenSSL, curl and browsers omit them. Many private certificate authorities and proxies that inspect TLS issue
    certificates that fail them, for example without an authority key identifier.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
