"""How many cores and how much memory this process may take, and how much it has taken at most."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def processes_here() -> int:
    """Processes of the run on this machine (``LOCAL_WORLD_SIZE``; without it all of them are taken to be here)."""
    told = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"
    return max(1, int(told)) if told.isdigit() else 1


def cores() -> int:
    """Cores for this process and its workers: those that the system lets it run on, no more than its control group is
    given the time of, divided by the processes of the run on this machine; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(allowed, quota())) // processes_here())


def quota(root: Path = _ROOT) -> float:
    """Cores of which this process's control group, or one around it, is given the time; infinite without a limit."""
    limits = [float("inf")]
    for folder in _groups(root, "cpu"):
        with suppress(OSError, ValueError):  # "max" is no number
            given, period = (folder / "cpu.max").read_text().split()
            limits.append(int(given) / int(period))
        with suppress(OSError, ValueError):
            given, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            limits += [int(given) / int(period)] if int(given) > 0 else []
    return max(1.0, min(limits))


def memory_left(root: Path = _ROOT) -> int:
    """Bytes that may still be taken without swapping, and within the limits of the control groups."""
    left = [_system_memory_left(root)]
    for folder in _groups(root, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):
                left.append(int((folder / limit).read_text()) - int((folder / used).read_text()) + _cached(folder))
    return max(0, min(left))


def _system_memory_left(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux, which would tell: half of all there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cached(folder: Path) -> int:
    """Bytes of files that a control group holds and gives back when it needs them."""
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process that know ``controller``, from its own one outwards."""
    base = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            top = base / controller if names else base
            own = top / path.lstrip("/")
            # In a container the path may be that of the host: then its own group is the top.
            yield from [one for one in (own, *own.parents) if one == top or top in one.parents]


def reset_peak_memory() -> None:
    """Let :func:`peak_memory` begin anew, where the system can (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes of memory that this process held at most (resident), since :func:`reset_peak_memory` or its beginning."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
