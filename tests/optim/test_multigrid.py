"""Multigrid rules on hand-computed examples, and rejected grids (the original: ``tests/golden/test_multigrid.py``)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.optim.multigrid import (
    LONG_CYCLE,
    Multigrid,
    Norm,
    intervals,
    long_shapes,
    norm,
    short_cycle,
    validate,
)

KINETICS = Multigrid(239, 64, 224, 32, (94, 154, 196))


def test_the_examples_of_the_docstrings() -> None:
    assert long_shapes(KINETICS) == ((8, 8, 158), (4, 16, 158), (2, 16, 224), (1, 32, 224))
    assert short_cycle(KINETICS, long_shapes(KINETICS)[0]) == ((1024, 112), (512, 158), (512, 158))
    relative = short_cycle(replace(KINETICS, short_cycle_relative_to="base"), long_shapes(KINETICS)[0])
    assert relative == ((2048, 79), (1024, 112), (512, 158))
    assert norm(512, 8) == Norm(splits=8)
    assert norm(32, 8) == Norm(processes=2)
    assert norm(12, 1) == norm(8, 1) == Norm(), "splits are whole numbers"
    assert norm(1, 1) == Norm(processes=8)


def test_sizes_are_multiples_of_size_multiple() -> None:
    """Batch sizes follow the rounded image sizes, so that a step costs the same."""
    grid = replace(KINETICS, size_multiple=32)
    assert [shape.size for shape in long_shapes(grid)] == [160, 160, 224, 224]
    assert short_cycle(grid, long_shapes(grid)[-1]) == ((3 * 64, 128), (2 * 64, 160), (64, 224))
    validate(grid)


def test_the_two_halves_of_the_fine_tuning() -> None:
    first, second = intervals(KINETICS)[-2:]
    assert (first.begin, first.end, second.begin, second.end) == (329, 343, 343, 358)
    assert first.shape == second.shape == (1, 32, 224)
    assert (first.lr_factor, second.lr_factor) == pytest.approx((0.01, 0.001))


def test_without_gamma_the_learning_rate_follows_the_batch_alone() -> None:
    assert {part.lr_factor for part in intervals(replace(KINETICS, gamma=1))} == {8, 4, 2, 1}


def test_images_have_no_frames() -> None:
    grid = Multigrid(20, 64, 32, None, (12,), long_cycle=((1, 0.71), (1, 1)))
    assert long_shapes(grid) == ((2, 1, 23), (1, 1, 32))
    validate(grid)
    with pytest.raises(ValueError, match=r"long_cycle\.0: an image, which has one frame, times 0.25 is 0.25"):
        validate(replace(grid, long_cycle=LONG_CYCLE))


keys = {
    "epochs": st.integers(4, 300),
    "batch_size": st.integers(1, 64).map(lambda number: 8 * number),
    "size": st.integers(16, 256),
    "frames": st.sampled_from([None, 4, 8, 12, 32]),
    "short": st.booleans(),
    "relative": st.sampled_from(["default", "base"]),
    "factor": st.floats(0.5, 3),
}


@given(st.data(), *keys.values())
def test_every_schedule_is_contiguous(
    data: st.DataObject,
    epochs: int,
    batch_size: int,
    size: int,
    frames: int | None,
    short: bool,
    relative: Any,
    factor: float,
) -> None:
    """The intervals follow each other without a gap to the end; accepted grids can be trained."""
    milestones = data.draw(st.sets(st.integers(1, epochs - 1), min_size=1, max_size=3))
    cycle = LONG_CYCLE if frames else ((1.0, 0.5), (1.0, 1.0))
    long_cycle = data.draw(st.sampled_from([cycle, ()]))
    grid = Multigrid(epochs, batch_size, size, frames, tuple(sorted(milestones)), 0.1, factor, long_cycle)
    grid = replace(grid, short_cycle=grid.short_cycle if short else (), short_cycle_relative_to=relative)
    parts = intervals(grid)
    assert parts[0].begin == 0
    assert [part.end for part in parts[:-1]] == [part.begin for part in parts[1:]]
    assert all(part.begin <= part.end for part in parts)
    if grid.long_cycle:
        assert parts[-1].end == round(epochs * factor) or abs(parts[-1].end - epochs * factor) <= 0.5 + 1e-6
    try:
        validate(grid, 8, empty=True)
    except ValueError as error:
        assert "interval" in str(error) or "long_cycle" in str(error)
        return
    for part in parts:
        assert all(shape.batch_size >= 1 and shape.batch_size % 8 == 0 for shape in part.cycle)
        assert max(shape.size for shape in part.cycle) == part.shape.size <= size


WRONG: dict[str, tuple[dict[str, Any], int]] = {
    "milestones: [94, 94] must ascend between epoch 0 and 239": ({"milestones": (94, 94)}, 1),
    "milestones: [239] must ascend": ({"milestones": (239,)}, 1),
    "milestones: [0, 94] must ascend": ({"milestones": (0, 94)}, 1),
    "milestones: a long cycle needs at least one": ({"milestones": ()}, 1),
    "size: 224 is not a multiple of size_multiple (48)": ({"size_multiple": 48}, 1),
    "long_cycle.0: 30 frames times 0.25 is 7.5, and must be a whole number": ({"frames": 30}, 1),
    "long_cycle.0: 2 frames times 0.25 is 0.5": ({"frames": 2}, 1),
    "long_cycle.1: factors are above 0 and at most 1, not 1, 1.5": ({"long_cycle": ((1, 1), (1, 1.5))}, 1),
    "interval 0 (epochs 0 to 93, 32 frames of 90 x 90, batch 384): the short cycle's size 112 is larger than 90": (
        {"long_cycle": ((1, 0.4), (1, 1))},
        1,
    ),
    "interval 3 (epochs 142 to 158, 32 frames of 224 x 224, batch 64): its batch of 64 does not divide by 128": (
        {},
        128,
    ),
    "interval 0 (epochs 0 to 0, 8 frames of 158 x 158, batch 512): it has no epochs": (
        {"epochs": 3, "milestones": (1, 2), "epoch_factor": 0.1},
        1,
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_invalid_grids_are_rejected(message: str) -> None:
    changes, world = WRONG[message]
    with pytest.raises(ValueError) as caught:
        validate(replace(KINETICS, **changes), world)
    assert message in str(caught.value)
