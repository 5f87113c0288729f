"""Every mutant of an annotation file gives samples, or one error that names a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from opabinia.contracts import Source
from opabinia.runtime.log import log
from tests.faults.fuzz_annotations import Fuzzer, not_finite


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int, cases: int) -> list[str]:
    monkeypatch.setattr(log, "disabled", True)
    fuzzer = Fuzzer(folder, seed)
    return [text for case in range(cases) if (text := fuzzer.run(case))]


def test_mutants_of_annotation_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run(tmp_path, monkeypatch, 0, 500)


@pytest.mark.slow
def test_many_mutants_of_annotation_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run(tmp_path, monkeypatch, 1, 20_000)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (OverflowError("too large"), "OverflowError: source: source coco: OverflowError: too large"),
        (ValueError("something is wrong"), "names no file: source: something is wrong"),
        (MemoryError(), "MemoryError"),
    ],
    ids=["type", "file", "memory"],
)
def test_the_fuzzer_finds_what_it_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Exception, expected: str
) -> None:
    fuzzer = Fuzzer(tmp_path, 0)
    fuzzer.run(0)  # makes the dataset

    def fail(root: Path) -> Source:
        raise outcome

    fuzzer.formats[0] = replace(fuzzer.formats[0], build=fail)
    text = fuzzer.run(0)
    assert expected in text and "python -m tests.faults.fuzz_annotations --seed 0 --case 0" in text


def test_numbers_that_are_not_finite_or_huge_are_found() -> None:
    for value in (float("nan"), float("inf"), 1e300):
        assert not_finite({"a": {"boxes": np.array([0.0, value])}}) == f".a.boxes: [0.0, {value}]"
    assert not_finite({"a": torch.ones(2), "b": "nan"}) == ""
