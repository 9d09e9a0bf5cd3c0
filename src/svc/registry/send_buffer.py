"""How large the kernel's buffer of a connection to a fast reader may be made here, and whether that helps."""

from __future__ import annotations

from pathlib import Path

MAX_SEND_BUFFER_BYTES = 4 << 20
SLOW_CLIENT_SEND_BUFFER_BYTES = 1 << 20
"""What a reader that was fast and is slow now may keep of the kernel's memory; the kernel doubles both."""

_SYSCTL_NET = Path("/proc/sys/net")


def fast_send_buffer_size(sysctl_net: Path = _SYSCTL_NET) -> int:
    """What to ask for; 0 where the kernel's own choice, up to `tcp_wmem`, gets larger than what it lets us ask for."""
    try:
        max_allowed = int((sysctl_net / "core/wmem_max").read_text())
        autotuned_max = int((sysctl_net / "ipv4/tcp_wmem").read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return 0
    requested = min(MAX_SEND_BUFFER_BYTES, max_allowed)
    return requested if 2 * requested > autotuned_max else 0
