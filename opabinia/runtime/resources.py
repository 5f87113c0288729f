"""CPU cores and memory that this process may use, and its peak memory."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path("/")


def processes_per_machine() -> int:
    """Return the number of ranks on this machine (``LOCAL_WORLD_SIZE``; without it all ranks are assumed to be)."""
    text = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"
    return max(1, int(text)) if text.isdigit() else 1


def cores() -> int:
    """Return the number of cores for this rank and its workers, at least 1: those of its CPU affinity, limited by the
    CPU quota of its control group, divided by the ranks on this machine."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(allowed, cpu_quota())) // processes_per_machine())


def cpu_quota() -> float:
    """Return the CPU quota, in cores, of this process's control group and those around it; infinite without a limit."""
    limits = [float("inf")]
    for folder in _groups("cpu"):
        with suppress(OSError, ValueError):  # ValueError: "max" instead of a number
            quota, period = (folder / "cpu.max").read_text().split()
            limits.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            limits += [int(quota) / int(period)] if int(quota) > 0 else []
    return max(1.0, min(limits))


def available_memory() -> int:
    """Return the bytes that are available without swapping and within the limits of the control groups."""
    return max(0, min(available for available, _ in memory_limits()))


def memory_limits(reclaimable: Collection[str] = ("inactive_file",)) -> Iterator[tuple[int, int]]:
    """Yield the available and the total bytes of this machine, then of each control group that limits this process.

    ``reclaimable`` names the kinds of cached files (in ``memory.stat``) that a group frees when it needs memory.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = total // 2  # if this is not Linux
    with suppress(OSError, KeyError):
        available = 1024 * _read_numbers(ROOT / "proc/meminfo")["MemAvailable:"]
    yield available, total
    for folder in _groups("memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):
                total, in_use = int((folder / limit).read_text()), int((folder / used).read_text())
                kinds = _read_numbers(folder / "memory.stat")
                yield total - in_use + sum(kinds.get(kind, 0) for kind in reclaimable), total


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt, from glibc's malloc.h


def keep_freed_memory() -> None:
    """Let glibc's malloc keep what is freed, for the rest of the process; other C libraries are left as they are.

    By default it returns freed blocks of over 32 MB to the system at once, and those that end up on top of the heap. A
    training step then asks for the same pages again, which the system fills with zeros: with glibc 2.36 on two cores,
    training took 1.3 to 1.4 times as long (docs/log.md, 2026-11-28). The peak memory grows by 7 to 14 %.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, -1)  # never
        mallopt(_MMAP_MAX, 0)


def return_freed_memory() -> None:
    """Return memory to the system that glibc's malloc has kept, between phases that need as much again. Processes that
    are forked later would otherwise hold another copy of it."""
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _of_glibc(name: str) -> Any:
    """Return a function of glibc; None with other C libraries."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def _read_numbers(path: Path) -> dict[str, int]:
    """Read lines of a name, a number and possibly a unit; none if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else ()
    return {words[0]: int(words[1]) for words in map(str.split, lines)}


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process that have ``controller``, from the innermost outwards."""
    base = ROOT / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            top = base / controller if names else base
            group = top / path.lstrip("/")
            # In a container the path may be that of the host: then its own group is the top.
            yield from [folder for folder in (group, *group.parents) if folder == top or top in folder.parents]


def reset_peak_memory() -> None:
    """Reset :func:`peak_memory`, if the system supports it (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes, since :func:`reset_peak_memory` or its start."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
    return peak if sys.platform == "darwin" else peak * 1024
