"""Build the environment of child processes that parse untrusted input from an allow-list, so that it has no secrets."""

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
"""Paths of programs and libraries, the locale, and thread counts of libraries. No variable that may hold a secret."""


def build_subprocess_env(**extra: str) -> dict[str, str]:
    """Return the allowed variables of this process's environment, and `extra`."""
    return {**{name: value for name, value in os.environ.items() if _ALLOWED_VARIABLES.fullmatch(name)}, **extra}
