"""How this process uses memory: what the allocator keeps for the next long body, and blocks that nobody clears."""

from __future__ import annotations

import ctypes
import gc

TRIM_THRESHOLD_BYTES = 16 * 1024 * 1024
"""Bytes at the heap's end that are kept when they are free. A page that is given back costs a fault when it is needed
again: a third of what a megabyte costs that passes through."""
MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024
"""Blocks of more bytes are the kernel's, and go back to it as soon as they are free."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h."""

_NewBytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytes = _NewBytes(("PyBytes_FromStringAndSize", ctypes.pythonapi))


def freeze_gc() -> None:
    """To be called once everything is there that lives as long as the process: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; others do as they do
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def allocate_uninitialized(size: int) -> bytes:
    """A block whose bytes are whatever lay there before: every one is to be written before any is read."""
    block: bytes = _new_bytes(None, size)
    return block
