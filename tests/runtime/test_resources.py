"""Cores and memory available to a process: from files in Linux's format, and for this process."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from opabinia.runtime import resources
from opabinia.runtime.resources import available_memory, cores, cpu_quota
from tests.faults.programs import Server

SYSTEM = {"proc/meminfo": "MemTotal: 9000000 kB\nMemFree: 10 kB\nMemAvailable: 8000000 kB\n"}
OUTER, INNER, V1 = "sys/fs/cgroup/outer", "sys/fs/cgroup/outer/inner", "sys/fs/cgroup"
GROUPS = {
    "without limits": ({"proc/self/cgroup": "0::/\n"}, float("inf"), 8_000_000 * 1024),
    "the smallest of all parents": (
        {
            **{"proc/self/cgroup": "0::/outer/inner\n", f"{INNER}/cpu.max": "max 100000", f"{INNER}/memory.max": "max"},
            **{f"{OUTER}/cpu.max": "250000 100000", f"{OUTER}/memory.max": f"{4 * 2**30}"},
            # the file cache counts as available
            f"{OUTER}/memory.current": f"{3 * 2**30}",
            f"{OUTER}/memory.stat": f"anon 5\ninactive_file {2**30}",
        },
        *(2.5, 2 * 2**30),
    ),
    "version 1, in a container without its path": (
        {
            "proc/self/cgroup": "4:memory:/host/path\n1:cpu,cpuacct:/host/path\n",
            **{f"{V1}/memory/memory.limit_in_bytes": "1000", f"{V1}/memory/memory.usage_in_bytes": "400"},
            **{f"{V1}/cpu/cpu.cfs_quota_us": "300000", f"{V1}/cpu/cpu.cfs_period_us": "100000"},
        },
        *(3, 600),
    ),
    "version 1, without a quota": (
        {
            "proc/self/cgroup": "1:cpu,cpuacct:/host/path\n",
            **{f"{V1}/cpu/cpu.cfs_quota_us": "-1", f"{V1}/cpu/cpu.cfs_period_us": "100000"},
        },
        *(float("inf"), 8_000_000 * 1024),
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_limits_of_control_groups(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, quota, memory = GROUPS[name]
    for file, text in {**SYSTEM, **files}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(resources, "ROOT", tmp_path)
    assert (cpu_quota(), available_memory()) == (quota, memory)


def test_cores_are_divided_by_the_ranks_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = cores()
    assert 1 <= alone <= (os.cpu_count() or 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores() == max(1, alone // 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert cores() == 1


def test_the_peak_memory_of_this_process_can_be_reset(warm_server: Server) -> None:
    lines = """
import numpy as np
from opabinia.runtime.resources import peak_memory, reset_peak_memory
np.ones(60_000_000)
reset_peak_memory()
before = peak_memory()
np.ones(30_000_000)
print(200_000_000 <= peak_memory() - before < 300_000_000)
"""
    assert warm_server.run(code=lines).out == "True\n"
    assert available_memory() > 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc")
def test_freed_memory_is_kept(warm_server: Server) -> None:
    lines = """
import resource, torch
from opabinia.runtime.resources import keep_freed_memory
if {keeps}:
    keep_freed_memory()
def work():
    kept = [torch.ones(10_000_000) for _ in range(3)]  # of 40 MB
for _ in range(5):  # alignment leaves gaps at first
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = [int(warm_server.run(code=lines.format(keeps=keeps)).out) for keeps in (False, True)]
    assert faults[False] > 5 * faults[True]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_kept_memory_can_be_returned(warm_server: Server) -> None:
    lines = """
import torch
from opabinia.runtime.resources import keep_freed_memory, return_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
keep_freed_memory()
before = resident()
kept = [torch.ones(10_000_000) for _ in range(10)]  # of 40 MB
last = torch.ones(1)  # above them in the heap
del kept
freed = resident()
return_freed_memory()
print(freed - before, resident() - before)
"""
    freed, returned = map(int, warm_server.run(code=lines).out.split())
    assert freed > 300_000_000 and returned < 100_000_000
