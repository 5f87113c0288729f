"""The environment of a run: library versions, machine, git state."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

LIBRARIES = ("opabinia", "torch", "torchvision", "timm", "numpy", "safetensors", "pydantic")


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect results."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe_environment(device: torch.device, threads: int) -> str:
    """Return versions, machine, device and git state of the working folder, one per line."""
    lines = {**library_versions(), "platform": platform.platform(), "cpus": str(os.cpu_count())}
    lines["threads"] = str(threads)
    lines["device"] = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    commit = _git("rev-parse", "HEAD")
    if commit:
        lines["git"] = commit + (" with uncommitted changes" if _git("status", "--porcelain") else "")
    lines["command"] = " ".join(sys.argv)
    return "\n".join(f"  {name:<12} {value}" for name, value in lines.items())
