"""Loaders of validation sets, and modes of modules."""

import pytest
import torch
from torch import nn

from opabinia.data import Data, Stream
from opabinia.data.reading import BatchReader
from opabinia.data.sources import Digits
from opabinia.engine.loop.evaluate import evaluation_mode
from opabinia.training import validation


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("batch_size", "rank", "workers"), [(10, 0, 4), (120, 0, 2), (120, 1, 1), (360, 1, 0)])
def test_a_small_set_has_few_workers(batch_size: int, rank: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks share 360 samples: neither has more workers than batches."""
    monkeypatch.setattr(validation, "rank", lambda: rank)
    monkeypatch.setattr(validation, "world_size", lambda: 2)
    source = Digits(split="val")
    data = Data(train=Stream(source=source), batch_size=8, num_workers=4)
    loader = validation._evaluation_loader(data, batch_size, torch.device("cpu"), BatchReader(source))
    assert (loader._workers.num_workers if loader._workers is not None else 0) == workers


def test_every_module_keeps_its_mode_through_an_evaluation() -> None:
    """Frozen norms are in evaluation mode during training."""
    task = nn.Sequential(nn.BatchNorm2d(1).eval())
    with evaluation_mode(task):  # type: ignore[arg-type]
        assert not task.training
    assert task.training and not task[0].training
