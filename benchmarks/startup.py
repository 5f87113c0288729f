"""Claim: ``opabinia --help`` and a warm check of the largest recipe answer in half a second, without importing torch.

They are compared with ``python -c pass``, the minimum of any Python program. Run: ``python benchmarks/startup.py``.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from time import perf_counter

from opabinia.config import catalog, check, compose, flatten
from opabinia.config.compose import packaged_names

RUNS = 7
PYTHON = [sys.executable]
OPABINIA = [*PYTHON, "-m", "opabinia"]


def largest_recipe() -> tuple[str, int]:
    """Return the recipe with the most values, and their number."""
    sizes = {name: len(flatten(check(compose(name), catalog()).config)) for name in packaged_names()}
    return max(sizes.items(), key=lambda item: item[1])


def seconds(program: list[str]) -> list[float]:
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        subprocess.run(program, check=True, capture_output=True)
        times.append(perf_counter() - start)
    return times


def imports_torch(program: list[str]) -> bool:
    command = [program[0], "-X", "importtime", *program[1:]]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return re.search(r"\| +torch$", result.stderr, re.MULTILINE) is not None


def main() -> None:
    recipe, values = largest_recipe()
    programs = {
        "python -c pass": [*PYTHON, "-c", "pass"],
        "opabinia --help": [*OPABINIA, "--help"],
        f"opabinia config check {recipe}": [*OPABINIA, "config", "check", recipe],
    }
    for program in programs.values():
        subprocess.run(program, check=True, capture_output=True)  # warm up: caches of files and of signatures
    least = 0.0
    print(f"wall time of a whole process, median of {RUNS} (fastest to slowest); the recipe has {values} values")
    for name, program in programs.items():
        times = seconds(program)
        median = statistics.median(times)
        least = least or median
        spread = f"({min(times):.3f} to {max(times):.3f})"
        torch = "imports torch" if imports_torch(program) else "no torch"
        print(f"  {name:<52} {median:.3f} s {spread}  {median / least:5.1f} x  {torch}")


if __name__ == "__main__":
    main()
