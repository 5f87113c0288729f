"""Measure the numerical agreement with other systems: ``python scripts/parity.py [--write] [NAME ...]``.

Prints the tables of all comparisons in tests/parity, or of those named. ``--write`` writes them into docs/parity.md; it
needs every package and ../shared/golden.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version

import torch

from tests.parity import evaluation, losses, networks, optimization
from tests.parity.comparisons import BEGIN, COMPARISONS, END, PAGE, Row, difference_in, measure, table

MODULES = (evaluation, losses, networks, optimization)
"""They register the comparisons."""
PACKAGES = (
    *("torch", "torchvision", "timm", "transformers", "pycocotools", "faster-coco-eval", "scikit-learn", "fvcore"),
    *("pytorch-metric-learning", "lightly", "trackeval", "trackers"),
)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="comparisons, by the last column of docs/parity.md")
    parser.add_argument("--write", action="store_true", help="write docs/parity.md")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in COMPARISONS]
    if unknown:
        parser.error(f"there is no comparison {', '.join(unknown)}; there are: {', '.join(COMPARISONS)}")
    names = options.names or list(COMPARISONS)
    missing = {name: COMPARISONS[name].missing for name in names if COMPARISONS[name].missing}
    for name, what in missing.items():
        print(f"{name}: not measured, {what} is not there", file=sys.stderr)
    if options.write and (missing or options.names):
        parser.error("--write writes all comparisons, so it takes no names and needs all packages and ../shared/golden")
    torch.set_num_threads(1)
    rows = measure_all([name for name in names if name not in missing])
    print(table(rows))
    if options.write:
        write(rows)
    return int(any(difference_in(row) > COMPARISONS[row.name.strip("`")].tolerance for row in rows))


def measure_all(names: Sequence[str]) -> list[Row]:
    """Measure these comparisons; report each as it ends."""
    rows = []
    for name in names:
        start = time.process_time()
        rows.append(measure(COMPARISONS[name]))
        print(f"{name}: {rows[-1].difference}, {time.process_time() - start:.1f} s", file=sys.stderr)
    return rows


def write(rows: Sequence[Row]) -> None:
    """Replace the part of the page between its markers."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    python = ".".join(map(str, sys.version_info[:3]))
    measured = f"Measured on {datetime.date.today()}, on a CPU, with Python {python}, {versions}."
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{measured}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
