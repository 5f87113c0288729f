"""Running statistics, of which each process has its own, and memories, which are the same on all."""

import copy

import torch
from torch import nn

from opabinia.engine.loop.nonfinite import UpdateGuard
from opabinia.engine.loop.norm_statistics import running_statistics
from opabinia.models.feature_queue import FeatureQueue, MemoryBank
from opabinia.optim.ema import WeightAverage


def test_memories_are_not_running_statistics() -> None:
    """A memory of all images may be large; its mean over processes would be itself."""
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(3), "queue": FeatureQueue(2, 4), "bank": MemoryBank(5, 2)})
    assert set(running_statistics(model)) == {"norm.running_mean", "norm.running_var"}


def test_a_model_that_is_a_norm_itself() -> None:
    assert set(running_statistics(nn.BatchNorm1d(3))) == {"running_mean", "running_var"}


def test_memories_are_neither_copied_nor_averaged_in_a_step() -> None:
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "bank": MemoryBank(5, 2)})
    bank = model["bank"].vectors.clone()
    average, guard = copy.deepcopy(model), UpdateGuard(model)
    update = WeightAverage(average, model, lambda clock: 0.5)
    for buffer in model.buffers():
        buffer.fill_(3)
    update.update(0.5)
    guard.restore_buffers()
    assert torch.equal(average.get_buffer("bank.vectors"), bank)
    assert average.get_buffer("norm.running_mean").tolist() == [1.5, 1.5]
    assert (model["bank"].vectors == 3).all() and (model["norm"].running_mean == 0).all()
