"""Comparisons with other systems: their list, their differences, and the table of docs/parity.md.

A comparison is a generator that yields the largest difference of each case. ``scripts/parity.py`` measures them all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "parity.md"
SHARED = ROOT.parent / "shared" / "golden"
BEGIN, END = "<!-- parity: begin -->", "<!-- parity: end -->"

Against = Literal["library", "recorded", "outside", "rule"]
AGAINST: dict[Against, str] = {
    "library": "the library",
    "recorded": "numbers of the original system",
    "outside": "numbers of the original system, kept outside of the repository",
    "rule": "its rule, written again",
}


@dataclass(frozen=True)
class Comparison:
    """One row of the table.

    Args:
        name: of the function, by which ``scripts/parity.py`` repeats it.
        section: heading of its table, by the module.
        system: the other system.
        what: what is compared.
        cases: yields the largest difference of each case.
        tolerance: largest difference that is allowed.
        unit: of the differences.
        against: what the system's numbers come from.
        needs: packages that are imported.
        slow: takes more than a second.
    """

    name: str
    section: str
    system: str
    what: str
    cases: Callable[[], Iterator[float]]
    tolerance: float
    unit: str
    against: Against
    needs: tuple[str, ...]
    slow: bool

    @property
    def missing(self) -> str:
        """The packages and files that are not there, or ""."""
        packages = [package for package in self.needs if find_spec(package) is None]
        return ", ".join(packages + ["../shared/golden"] * (self.against == "outside" and not SHARED.is_dir()))


class Row(NamedTuple):
    """A row of the table as text."""

    system: str
    what: str
    against: str
    cases: str
    difference: str
    tolerance: str
    name: str


HEADER = Row(
    "system", "what is compared", "with", "cases", "largest difference", "tolerance", "`python scripts/parity.py`"
)
COMPARISONS: dict[str, Comparison] = {}


def compare(
    system: str,
    what: str,
    *,
    tolerance: float,
    unit: str = "",
    against: Against = "library",
    needs: Iterable[str] = (),
    slow: bool = False,
) -> Callable[[Callable[[], Iterator[float]]], Callable[[], Iterator[float]]]:
    """Add the decorated generator to the table; its module's docstring, up to the colon, is the section."""

    def register(cases: Callable[[], Iterator[float]]) -> Callable[[], Iterator[float]]:
        section = (sys.modules[cases.__module__].__doc__ or "").partition(":")[0]
        name = cases.__name__
        if name in COMPARISONS and COMPARISONS[name].section != section:
            raise ValueError(f"two comparisons are called {name}: in {COMPARISONS[name].section} and in {section}")
        COMPARISONS[name] = Comparison(name, section, system, what, cases, tolerance, unit, against, tuple(needs), slow)
        return cases

    return register


# --- differences ------------------------------------------------------------------------------------------------------


def largest(actual: Any, expected: Any) -> float:
    """Return the largest absolute difference between numbers, tensors, and lists and mappings of them.

    It is infinite where keys, lengths, shapes or texts differ, or one is not a number.
    """
    if isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            return math.inf
        return max((largest(actual[name], value) for name, value in expected.items()), default=0.0)
    if isinstance(expected, str) or expected is None or actual is None:
        return 0.0 if actual == expected else math.inf
    if is_list(actual) and is_list(expected):
        pairs = zip(actual, expected, strict=False)
        return math.inf if len(actual) != len(expected) else max((largest(*pair) for pair in pairs), default=0.0)
    first, second = (torch.as_tensor(values, dtype=torch.float64).detach() for values in (actual, expected))
    if first.shape != second.shape:
        return math.inf
    differences = torch.where(first == second, 0.0, first - second).abs()  # infinities that agree do not differ
    return float(differences.nan_to_num(nan=math.inf, posinf=math.inf).max()) if differences.numel() else 0.0


def is_list(values: Any) -> bool:
    return isinstance(values, list | tuple)


def relative(actual: Any, expected: Any) -> float:
    """Return the largest difference between two tensors or numbers, divided by the largest expected value."""
    return largest(actual, expected) / largest(expected, torch.zeros_like(torch.as_tensor(expected)))


# --- the table --------------------------------------------------------------------------------------------------------


def measure(comparison: Comparison) -> Row:
    """Run a comparison."""
    differences = list(comparison.cases())
    return row_of(comparison, len(differences), max(differences))


def row_of(comparison: Comparison, cases: int, difference: float) -> Row:
    shown, tolerance = shortened(difference, 1, comparison.unit), shortened(comparison.tolerance, 0, comparison.unit)
    columns = comparison.system, comparison.what, AGAINST[comparison.against]
    return Row(*columns, f"{cases:,}", shown, tolerance, f"`{comparison.name}`")


def shortened(number: float, digits: int, unit: str) -> str:
    """Return a number like ``1.3e-7 px``; whole numbers, and with them 0, as they are."""
    if number == round(number, 0):
        return f"{number:.0f} {unit}".strip() if number else "0"
    return f"{number:.{digits}e} {unit}".strip().replace("e-0", "e-")


def difference_in(row: Row) -> float:
    """Return the number of the column."""
    return float(row.difference.split()[0])


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(rows: Iterable[Row]) -> str:
    """Return the tables of all sections in Markdown."""
    by_name = {row.name.strip("`"): row for row in rows}
    sections = dict.fromkeys(comparison.section for comparison in COMPARISONS.values())
    blocks = []
    for section in sections:
        chosen = [by_name[name] for name, each in COMPARISONS.items() if each.section == section and name in by_name]
        if chosen:
            lines = [line(HEADER), line(["---"] * len(HEADER)), *map(line, chosen)]
            blocks.append(f"### {section}\n\n" + "\n".join(lines))
    return "\n\n".join(blocks)


def rows_of(text: str) -> list[Row]:
    """Return the rows of the tables in a text."""
    lines = (text_line.strip("| ").split(" | ") for text_line in text.splitlines() if text_line.startswith("| "))
    return [Row(*cells) for cells in lines if len(cells) == len(HEADER) and cells[-1] not in (HEADER[-1], "---")]


def generated_part(page: str) -> str:
    """Return the text between the markers."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()
