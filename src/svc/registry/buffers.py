"""How large the kernel's buffer of a connection to a fast reader may be made here, and whether that helps."""

from __future__ import annotations

from pathlib import Path

WIDE = 4 << 20
NARROW = 1 << 20
"""What a reader that was fast and is slow now may keep of the kernel's memory; the kernel doubles both."""

_NET = Path("/proc/sys/net")


def wide_buffer(net: Path = _NET) -> int:
    """What to ask for; 0 where the kernel's own choice, up to `tcp_wmem`, gets larger than what it lets us ask for."""
    try:
        most = int((net / "core/wmem_max").read_text())
        own = int((net / "ipv4/tcp_wmem").read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return 0
    asked = min(WIDE, most)
    return asked if 2 * asked > own else 0
