"""Cores and memory available to a process: from files in Linux's format, and for this process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from opabinia.runtime.resources import available_memory, cores, cpu_quota, peak_memory, reset_peak_memory

MEMINFO = "MemTotal: 9000000 kB\nMemFree: 10 kB\nMemAvailable: 8000000 kB\n"
AVAILABLE = 8_000_000 * 1024


def system(root: Path, group: str, **files: str) -> Path:
    """A system whose process is in ``group``; names of files have ``/`` for ``__``."""
    texts = {"proc__self__cgroup": group, "proc__meminfo": MEMINFO, **files}
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/\n")
    assert cpu_quota(root) == float("inf")
    assert available_memory(root) == AVAILABLE


def test_the_smallest_limit_of_all_parent_groups_counts(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/outer/inner\n")
    base = tmp_path / "sys/fs/cgroup"
    (base / "outer/inner").mkdir(parents=True)
    (base / "outer/inner/cpu.max").write_text("max 100000\n")
    (base / "outer/cpu.max").write_text("250000 100000\n")
    (base / "outer/memory.max").write_text(str(4 * 2**30))
    (base / "outer/memory.current").write_text(str(3 * 2**30))
    (base / "outer/memory.stat").write_text(f"anon 5\ninactive_file {2**30}\n")
    (base / "outer/inner/memory.max").write_text("max")
    assert cpu_quota(root) == 2.5
    assert available_memory(root) == 2 * 2**30, "the file cache counts as available"


def test_cgroups_v1_in_a_container_without_its_path(tmp_path: Path) -> None:
    root = system(tmp_path, "4:memory:/host/path\n1:cpu,cpuacct:/host/path\n")
    for controller in ("cpu", "memory"):
        (tmp_path / "sys/fs/cgroup" / controller).mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("1000")
    (tmp_path / "sys/fs/cgroup/memory/memory.usage_in_bytes").write_text("400")
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("300000")
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(root) == 3
    assert available_memory(root) == 600
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("-1")
    assert cpu_quota(root) == float("inf")


def test_cores_are_divided_by_the_ranks_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = cores()
    assert 1 <= alone <= (os.cpu_count() or 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores() == max(1, alone // 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert cores() == 1


def test_the_peak_memory_of_this_process_can_be_reset() -> None:
    reset_peak_memory()
    initial = peak_memory()
    array = np.ones(30_000_000)
    del array
    assert peak_memory() >= initial + 200_000_000
    assert available_memory() > 0
