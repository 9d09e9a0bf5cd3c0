"""Limits of control groups of both versions, read from folders that look like those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from svc.gateway.local_model import cgroup_limits
from svc.gateway.local_model.cgroup_limits import read_cpu_limit, read_memory_limit
from svc.gateway.local_model.supervisor import inference_thread_count

UNLIMITED_V1_BYTES = "9223372036854771712"


def _make_files(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


@pytest.fixture
def process_cgroups(tmp_path: Path) -> Path:
    return tmp_path / "process-cgroups"


def test_limits_version_2_container_are_those_of_the_root(tmp_path: Path, process_cgroups: Path) -> None:
    process_cgroups.write_text("0::/\n")
    _make_files(tmp_path, cpu__max="150000 100000", memory__max="536870912")
    assert read_cpu_limit(tmp_path, process_cgroups) == 1.5
    assert read_memory_limit(tmp_path, process_cgroups) == 536870912


def test_limits_version_2_unit_are_the_lowest_of_its_groups(tmp_path: Path, process_cgroups: Path) -> None:
    process_cgroups.write_text("0::/system.slice/svc.service\n")
    _make_files(tmp_path / "system.slice", cpu__max="200000 100000", memory__max="1073741824")
    _make_files(tmp_path / "system.slice" / "svc.service", cpu__max="max 100000", memory__max="max")
    assert read_cpu_limit(tmp_path, process_cgroups) == 2.0
    assert read_memory_limit(tmp_path, process_cgroups) == 1073741824


def test_limits_version_1_container_with_path_of_the_host_are_those_of_the_root(
    tmp_path: Path, process_cgroups: Path
) -> None:
    process_cgroups.write_text("4:memory:/docker/0123\n1:cpu,cpuacct:/docker/0123\n")
    _make_files(tmp_path / "cpu", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    _make_files(tmp_path / "memory", memory__limit_in_bytes="268435456")
    assert read_cpu_limit(tmp_path, process_cgroups) == 0.5
    assert read_memory_limit(tmp_path, process_cgroups) == 268435456


def test_limits_missing_or_unlimited_are_none(tmp_path: Path, process_cgroups: Path) -> None:
    assert read_cpu_limit(tmp_path, process_cgroups) is None
    assert read_memory_limit(tmp_path, process_cgroups) is None
    process_cgroups.write_text("4:memory:/\n1:cpu:/\n0::/\n")
    _make_files(tmp_path, cpu__max="max 100000", memory__max="max")
    _make_files(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    _make_files(tmp_path / "memory", memory__limit_in_bytes=UNLIMITED_V1_BYTES)
    assert read_cpu_limit(tmp_path, process_cgroups) is None
    assert read_memory_limit(tmp_path, process_cgroups) == int(UNLIMITED_V1_BYTES)


@pytest.mark.parametrize(("quota", "threads"), [("50000", 1), ("150000", 1), ("300000", 2), ("1000000", 8)])
def test_inference_thread_count_is_at_most_the_cpu_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int
) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    monkeypatch.setattr(cgroup_limits.read_cpu_limit, "__defaults__", (tmp_path, tmp_path / "none"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert inference_thread_count() == threads
