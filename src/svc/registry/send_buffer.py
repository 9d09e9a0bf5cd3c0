"""Choose the size of the kernel's send buffer for fast clients."""

from __future__ import annotations

from pathlib import Path

MAX_SEND_BUFFER_BYTES = 4 << 20
SLOW_CLIENT_SEND_BUFFER_BYTES = 1 << 20
"""Send buffer of a client that has become slow. The kernel doubles both sizes."""

_SYSCTL_NET = Path("/proc/sys/net")


def fast_send_buffer_size(sysctl_net: Path = _SYSCTL_NET) -> int:
    """Return the size to set, or 0 if automatic tuning up to `tcp_wmem` exceeds the maximum of SO_SNDBUF."""
    try:
        max_allowed = int((sysctl_net / "core/wmem_max").read_text())
        autotuned_max = int((sysctl_net / "ipv4/tcp_wmem").read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return 0
    requested = min(MAX_SEND_BUFFER_BYTES, max_allowed)
    return requested if 2 * requested > autotuned_max else 0
