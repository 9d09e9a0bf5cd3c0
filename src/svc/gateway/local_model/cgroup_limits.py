"""The CPU and memory limits of this process's control groups, such as those of a container or a systemd unit.

https://docs.kernel.org/admin-guide/cgroup-v2.html, and https://docs.kernel.org/admin-guide/cgroup-v1/ for older hosts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROCESS_CGROUPS = Path("/proc/self/cgroup")


def read_cpu_limit(root: Path = CGROUP_ROOT, process_cgroups: Path = PROCESS_CGROUPS) -> float | None:
    """Return the CPU quota in cores, or None if there is no limit."""
    quotas = []
    for folder in _iter_folders("", root, process_cgroups):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(float(quota) / float(period))  # "max" is no number
    for folder in _iter_folders("cpu", root, process_cgroups):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            quotas.append(float(quota) / float(period))
    return min((quota for quota in quotas if quota > 0), default=None)  # version 1 has -1 without a limit


def read_memory_limit(root: Path = CGROUP_ROOT, process_cgroups: Path = PROCESS_CGROUPS) -> int | None:
    """Return the memory limit in bytes, or None. Without a limit, version 1 has a number near 2 to the power of 63."""
    limits = []
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in _iter_folders(controller, root, process_cgroups):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def _iter_folders(controller: str, root: Path, process_cgroups: Path) -> Iterator[Path]:
    """Yield the folder of a controller's root, and of each group on the way to that of this process.

    Version 2 has one hierarchy, whose controller is "". In a container, the path can be that on the host, which does
    not exist there. The root then has the limits of the container.
    """
    base = root / controller
    yield base
    try:
        lines = process_cgroups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = PurePosixPath(path.lstrip("/"))
            for name in (group, *group.parents):
                if name.parts:
                    yield base / name
