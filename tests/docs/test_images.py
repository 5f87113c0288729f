"""README's pictures are those that scripts/pictures.py makes."""

from collections.abc import Callable
from pathlib import Path

import pytest

import opabinia
from scripts import pictures


def test_the_animal_is_the_one_that_is_drawn() -> None:
    assert (pictures.OUT / "opabinia.svg").read_text(encoding="utf-8") == pictures.animal()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "selfsup"])
def test_a_picture_can_be_made_again(task: str, place: Callable[..., Path]) -> None:
    run = {"classification": "runs/classification/digits/default", "selfsup": "runs/selfsup/digits_vicreg/default"}[
        task
    ]
    place(run)
    drawn = pictures.TASKS[task](opabinia.load(run))
    assert drawn.width <= 400 and len(set(drawn.convert("L").get_flattened_data())) > 10
