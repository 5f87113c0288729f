"""Damaged images and weight files, in a process that is watched. A failure names the command that repeats its case."""

import os
import signal
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from tests.faults import fuzz_images, fuzz_weights
from tests.faults.fuzz_files import Case, run_cases

FUZZERS = {"tests.faults.fuzz_images": fuzz_images.case, "tests.faults.fuzz_weights": fuzz_weights.case}


@pytest.mark.parametrize("module", FUZZERS)
def test_500_damaged_files(module: str) -> None:
    assert run_cases(module, FUZZERS[module], seed=0, first=0, count=500) == []


@pytest.mark.slow
@pytest.mark.parametrize("module", FUZZERS)
def test_20000_damaged_files(module: str) -> None:
    assert run_cases(module, FUZZERS[module], seed=1, first=0, count=20_000) == []


@pytest.mark.parametrize("name", fuzz_images.encodings())
def test_undamaged_images(name: str, tmp_path: Path) -> None:
    content = fuzz_images.encodings()[name]
    assert fuzz_images.problem_of(content, tmp_path, Random(0)) == ""
    if name in (*fuzz_images.FOREIGN, "tiff float"):
        with pytest.raises(ValueError, match="a cannot be decoded"):
            fuzz_images.decode_bytes(content, "a")
    else:
        size = (8, 8) if name == "png interlaced" else (2, 3) if name == "ppm text" else (19, 26)
        shape = fuzz_images.decode_bytes(content, "a").shape[1:]
        assert tuple(shape) == (size[::-1] if Image.open(BytesIO(content)).getexif().get(0x112, 1) > 4 else size)


@pytest.mark.parametrize("name", fuzz_weights.files())
def test_undamaged_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(fuzz_weights.files()[name])
    report = fuzz_weights.initialize(fuzz_weights.Net(), fuzz_weights.Init(weights=tmp_path / name))
    assert not report.missing and not report.other_shape


# --- the watch --------------------------------------------------------------------------------------------------------


def planted(number: int, action: Callable[[], object]) -> Case:
    """Return a case that does something else in case ``number`` of seed 7."""
    draw = Random(f"7 {number}").random()

    def case(random: Random, folder: Path) -> str:
        if random.random() == draw:
            action()
        return ""

    return case


def hang() -> None:
    while True:
        time.sleep(1)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill() -> None:
    bytearray(b"\1") * 1_300_000_000


def fail() -> None:
    raise RecursionError("deep")


@pytest.mark.parametrize(
    ("action", "problem"),
    [(hang, "no end after 0.5 s"), (crash, "the process crashed"), (fill, "memory: "), (fail, "RecursionError: deep")],
)
def test_problems_are_found_and_the_other_cases_run(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], problem: str
) -> None:
    if action is hang:
        monkeypatch.setattr("tests.faults.fuzz_files.SECONDS", 0.5)
    first, second = planted(3, action), planted(6, fail)

    def case(random: Random, folder: Path) -> str:
        state = random.getstate()
        first(random, folder)
        random.setstate(state)
        return second(random, folder)

    problems = run_cases("tests.faults.x", case, seed=7, first=0, count=8)
    assert [text.split(":")[0] for text in problems] == ["case 3", "case 6"]
    assert problem in problems[0] and "RecursionError" in problems[1]
    assert problems[0].endswith("repeat it with: python -m tests.faults.x --seed 7 --first 3 --count 1")
