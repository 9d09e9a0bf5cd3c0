"""Configures the garbage collector and malloc, and allocates uninitialized memory."""

from __future__ import annotations

import ctypes
import gc

TRIM_THRESHOLD_BYTES = 16 * 1024 * 1024
"""Free bytes at the end of the heap that malloc keeps. Long bodies reuse them without page faults (mallopt(3))."""
MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024
"""Larger blocks are allocated with mmap, and returned to the kernel as soon as they are freed."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's malloc.h."""

_NewBytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytes = _NewBytes(("PyBytes_FromStringAndSize", ctypes.pythonapi))


def freeze_gc() -> None:
    """Exclude all existing objects from garbage collection, and set the thresholds of the collector and of malloc.

    Call it at the end of the start, when the objects that live as long as the process exist.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def allocate_uninitialized(size: int) -> bytes:
    """Return a block of `size` arbitrary bytes. The caller must write all of them before any is read."""
    block: bytes = _new_bytes(None, size)
    return block
