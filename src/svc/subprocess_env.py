"""The environment for child processes that parse untrusted input: an allow-list of names, so that no secret gets in."""

from __future__ import annotations

import os
import re

_ALLOWED_VARIABLES = re.compile(
    r"PATH|HOME|TMPDIR|TZ|LANG|LANGUAGE|LC_[A-Z]+|VIRTUAL_ENV"
    r"|PYTHON(PATH|HOME|USERBASE|NOUSERSITE|SAFEPATH|UTF8|IOENCODING|UNBUFFERED|HASHSEED|FAULTHANDLER|WARNINGS"
    r"|DONTWRITEBYTECODE|PYCACHEPREFIX|MALLOC)"
    r"|(LD|DYLD)_(LIBRARY_PATH|PRELOAD|INSERT_LIBRARIES|FALLBACK_LIBRARY_PATH)|MALLOC_[A-Z_]+"
    r"|(CUDA|NVIDIA|HIP|ROCR)_(VISIBLE_DEVICES|DRIVER_CAPABILITIES)"
    r"|(OMP|GOMP|KMP|MKL|OPENBLAS|GGML|CT2)_[A-Z_]+"
)
"""Where programs and libraries are, the locale, and how libraries compute. No name that may hold a secret."""


def build_subprocess_env(**extra: str) -> dict[str, str]:
    """Return the names of this process's environment that are passed to a child which parses input, and `more`."""
    return {**{name: value for name, value in os.environ.items() if _ALLOWED_VARIABLES.fullmatch(name)}, **extra}
