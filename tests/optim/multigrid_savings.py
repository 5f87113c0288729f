"""Savings of a multigrid schedule, as the paper counts them."""

from __future__ import annotations

from typing import NamedTuple

from opabinia.optim.multigrid import Multigrid, mean_batch, rows, short_cycle


class Savings(NamedTuple):
    """The cost of a schedule, in epochs of the baseline.

    Attributes:
        baseline: epochs of the baseline.
        passes: over the data.
        steps: optimizer steps, divided by those in an epoch of the baseline.
        cost: likewise, each step weighted by its number of pixels.
    """

    baseline: float
    passes: int
    steps: float
    cost: float

    @property
    def fewer_steps(self) -> float:
        return self.baseline / self.steps

    @property
    def cheaper(self) -> float:
        return self.baseline / self.cost


def savings(grid: Multigrid) -> Savings:
    """Return the savings of ``grid``. Incomplete batches at the ends of epochs are ignored: a row of E epochs has
    ``E / mean_batch`` steps."""
    frames = grid.frames or 1
    full = grid.batch_size * frames * grid.size**2
    steps, cost, begin = 0.0, 0.0, 0
    for row in rows(grid):
        shapes = short_cycle(grid, row.shape)
        row_steps = (row.end - begin) / mean_batch(grid, row.shape)
        pixels = sum(shape.batch_size * row.shape.frames * shape.size**2 for shape in shapes) / len(shapes)
        steps, cost, begin = steps + row_steps, cost + row_steps * pixels / full, row.end
    return Savings(grid.epochs, begin, steps, cost)
