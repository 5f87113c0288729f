"""Which buffers are running statistics, of which each process has its own, and which are memories."""

import torch
from torch import nn

from opabinia.engine.checkpointing.norm_statistics import statistics
from opabinia.engine.loop.skip_nonfinite import Guard
from opabinia.models.feature_queue import FeatureQueue, MemoryBank
from opabinia.optim.ema import Average


def test_what_every_process_holds_alike_is_no_statistic() -> None:
    """A memory of all images may be large; its mean over processes would be itself."""
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(3), "queue": FeatureQueue(2, 4), "bank": MemoryBank(5, 2)})
    assert set(statistics(model)) == {"norm.running_mean", "norm.running_var"}


def test_a_model_that_is_a_norm_itself() -> None:
    assert set(statistics(nn.BatchNorm1d(3))) == {"running_mean", "running_var"}


def test_nobody_copies_or_averages_a_memory_in_a_step() -> None:
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "bank": MemoryBank(5, 2)})
    bank = model["bank"].vectors.clone()
    average, guard = Average(model), Guard(model)
    for buffer in model.buffers():
        buffer.fill_(3)
    average.update(0.5)
    guard.put_back()
    assert torch.equal(average.model.get_buffer("bank.vectors"), bank)
    assert average.model.get_buffer("norm.running_mean").tolist() == [1.5, 1.5]
    assert (model["bank"].vectors == 3).all() and (model["norm"].running_mean == 0).all()
