"""Detect the platform of this machine, and the bundle platforms that it can run."""

from __future__ import annotations

import platform
import sys

ANY_PLATFORM = "any"
BUNDLE_PLATFORMS = (
    "macos-arm64",
    "macos-x86_64",
    "ios-arm64",
    "android-arm64",
    "linux-x86_64",
    "linux-arm64",
    "windows-x86_64",
    ANY_PLATFORM,
)
_SYSTEM_NAMES = {"darwin": "macos", "linux": "linux", "win32": "windows", "ios": "ios", "android": "android"}
_MACHINE_NAMES = {"amd64": "x86_64", "x86-64": "x86_64", "aarch64": "arm64", "arm64e": "arm64"}


def detect_platform(system: str | None = None, machine: str | None = None) -> str:
    """Return `<system>-<machine>` of this machine, even if no bundles exist for it."""
    system = sys.platform if system is None else system
    machine = (platform.machine() if machine is None else machine).lower()
    if system == "linux" and hasattr(sys, "getandroidapilevel"):
        system = "android"
    return f"{_SYSTEM_NAMES.get(system, system)}-{_MACHINE_NAMES.get(machine, machine)}"


def compatible_platforms(current: str | None = None) -> tuple[str, ...]:
    """Return the platforms whose bundles run on `current` (default: this machine), best first."""
    current = current or detect_platform()
    return (current,) if current == ANY_PLATFORM else (current, ANY_PLATFORM)
