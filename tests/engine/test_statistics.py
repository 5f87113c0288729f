"""Which buffers are running statistics, of which each process has its own."""

from torch import nn

from opabinia.engine.statistics import statistics
from opabinia.models.memory import FeatureQueue, MemoryBank


def test_what_every_process_holds_alike_is_no_statistic() -> None:
    """A memory of all images may be large; its mean over processes would be itself."""
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(3), "queue": FeatureQueue(2, 4), "bank": MemoryBank(5, 2)})
    assert set(statistics(model)) == {"norm.running_mean", "norm.running_var"}


def test_a_model_that_is_a_norm_itself() -> None:
    assert set(statistics(nn.BatchNorm1d(3))) == {"running_mean", "running_var"}
