"""Compile and load ``hooks.cpp``, which keeps the autograd engine from asking an absent driver."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("hooks.cpp")
BUILD = Path(__file__).resolve().parents[2] / "build"
"""Ignored by git and removed by ``make clean``."""


def compiler() -> str | None:
    """Return the path of the C++ compiler; None without."""
    return shutil.which("g++")


def build() -> Path:
    """Return the library for this torch; compile it unless an earlier call has.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = BUILD / f"pretended_cuda_{torch.__version__}_{key}.so"
    if library.exists():
        return library
    if (program := compiler()) is None:
        raise RuntimeError("the pretended CUDA device needs g++, which was not found")
    BUILD.mkdir(exist_ok=True)
    root = Path(torch.__file__).parent
    temporary = library.with_suffix(f".{os.getpid()}")  # other processes may build it, too
    command = [program, "-std=c++20", "-fPIC", "-shared", str(SOURCE), "-o", str(temporary), f"-I{root}/include"]
    done = subprocess.run([*command, f"-L{root}/lib", "-lc10", "-ltorch_cpu"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"g++ cannot compile {SOURCE.name}: {done.stderr}")
    temporary.replace(library)
    return library


def install() -> None:
    """Load the library and replace the function, for the rest of this process."""
    ctypes.CDLL(str(build())).answer_that_no_device_has_a_context()
