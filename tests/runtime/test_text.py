from __future__ import annotations

import csv

from opabinia.runtime.text import csv_text, first_of


def test_the_first_names_and_how_many_there_are_more() -> None:
    assert first_of([]) == "" and first_of(["a"]) == "a" and first_of(["a", "b"], 2) == "a, b"
    assert first_of(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_a_csv_file_gives_its_cells_back() -> None:
    rows = [["id", "note"], ["1", 'with "quotes", commas'], ["2", "and\nlines"], ["3", ""]]
    assert [*csv.reader(csv_text(rows).splitlines(keepends=True))] == rows
    assert csv_text(iter([{"a": 1}, {"b": None}.values()])) == 'a\n""\n'
