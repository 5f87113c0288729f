"""The profile of a dataset in the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.data.profile import profile_dataset
from opabinia.data.sources import Digits, DigitScenes
from opabinia.visualization.report.blocks import Table
from opabinia.visualization.report.dataset_profile import FILE, profile_blocks
from opabinia.visualization.report.page import page_of

Make = Callable[..., Path]


def test_the_profile_of_a_run_folder_is_shown(make: Make) -> None:
    folder = make()
    profile = profile_dataset(Digits(), Digits(split="val"), task="classification", limit=10)
    (folder / FILE).write_text(profile.to_json())
    page = page_of([folder])
    for text in ("Profile of the dataset", "Sizes in the dataset", "Classes of the training data", "1,437", "shorter"):
        assert text in page


def test_all_fields_are_shown_or_left_to_other_tables() -> None:
    profile = profile_dataset(DigitScenes(split="val"), None, task="detection", limit=10)
    tables = {block.title: block for block in profile_blocks(json.loads(profile.to_json())) if isinstance(block, Table)}
    assert tables["Classes of the training data"].columns[1] == "objects"
    assert ("training samples", "400") in tables["Profile of the dataset"].rows
    assert len(tables["Sizes in the dataset"].rows) == 6


@pytest.mark.parametrize(
    "profile",
    [
        {},
        {"samples": "many", "short_sides": [1, 2], "classes": ["a"], "per_class": [1, 2]},
        {"short_sides": [None, "x", 3, 4, 5], "unreadable": [3, "<b>"], "classes": 5, "per_class": {"a": 1}},
    ],
)
def test_damaged_profiles_do_not_fail(profile: dict[str, Any], make: Make) -> None:
    assert all(isinstance(block, Table) for block in profile_blocks(profile))
    (make() / FILE).write_text("[1")
