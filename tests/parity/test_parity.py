"""docs/parity.md is what scripts/parity.py writes, and what it says holds; slow comparisons are marked slow."""

import math
from collections.abc import Iterator

import pytest
import torch

from scripts import parity
from tests.parity.comparisons import (
    COMPARISONS,
    PAGE,
    Comparison,
    difference_in,
    generated_part,
    largest,
    measure,
    relative,
    row_of,
    rows_of,
    table,
)

assert parity.MODULES  # they register the comparisons
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
PUBLISHED = {row.name.strip("`"): row for row in rows_of(generated_part(PAGE.read_text(encoding="utf-8")))}
AVAILABLE = [
    pytest.param(name, marks=pytest.mark.slow if comparison.slow else ())
    for name, comparison in COMPARISONS.items()
    if not comparison.missing
]


def test_the_page_has_a_row_for_every_comparison_and_no_other() -> None:
    assert list(PUBLISHED) == list(COMPARISONS), "python scripts/parity.py --write"
    assert table(PUBLISHED.values()) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_column_of_the_page_but_numbers_is_that_of_the_comparison(name: str) -> None:
    row, comparison = PUBLISHED[name], COMPARISONS[name]
    assert row == row_of(comparison, int(row.cases.replace(",", "")), difference_in(row))
    assert difference_in(row) <= comparison.tolerance
    if comparison.tolerance == 0:
        assert row.difference == "0"


@pytest.mark.parametrize("name", AVAILABLE)
def test_the_comparison_has_the_published_cases_and_agrees(name: str) -> None:
    row = measure(COMPARISONS[name])
    assert row.cases == PUBLISHED[name].cases
    assert difference_in(row) <= COMPARISONS[name].tolerance


def test_differences() -> None:
    assert largest([1, {"a": torch.tensor([2.0, 5.0])}], [1.5, {"a": [2.0, 4.0]}]) == 1
    assert largest(0.1, 0.1 + 1e-12) == pytest.approx(1e-12, rel=1e-3), "numbers are not rounded to float32"
    assert largest(math.inf, math.inf) == 0
    for actual, expected in (({}, {"a": 1}), ([1], [1, 2]), (math.nan, 1), (None, 1), ("a", "b"), ([1.0, 2.0], 3.0)):
        assert largest(actual, expected) == math.inf
    assert relative(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 4.0])) == 0.25


def difference(cases: Iterator[float], tolerance: float) -> Comparison:
    return Comparison("ours", "Losses", "theirs", "a loss", lambda: cases, tolerance, "px", "library", (), False)


def test_a_row_has_the_number_of_cases_and_the_largest_difference() -> None:
    row = measure(difference(iter([0.0, 2e-7, 1e-8]), 1e-5))
    assert (row.cases, row.difference, row.tolerance) == ("3", "2.0e-7 px", "1e-5 px")
    assert rows_of("| a | b |\n" + "\n".join([f"| {' | '.join(row)} |"])) == [row]


def test_unknown_names_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parity.main(["coco_pycocotool"])
    assert caught.value.code == 2
    assert "there is no comparison coco_pycocotool; there are: coco_pycocotools, " in capsys.readouterr().err


def test_the_page_is_only_written_with_all_comparisons(capsys: pytest.CaptureFixture[str]) -> None:
    before = PAGE.read_bytes()
    with pytest.raises(SystemExit):
        parity.main(["ema", "--write"])
    assert "so it takes no names" in capsys.readouterr().err and PAGE.read_bytes() == before
