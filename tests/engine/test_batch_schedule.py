"""The hook that applies a batch schedule."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from opabinia.contracts import BatchShape, Clock, Phase, Stage
from opabinia.engine.hooks import batch_schedule
from opabinia.engine.hooks.batch_schedule import ApplyBatchSchedule
from opabinia.models.norms import GhostBatchNorm, split_batch_norms

STAGES = (
    Stage(2, (BatchShape(32, (8, 16, 16)), BatchShape(16, (8, 24, 24))), 2.0, 4),
    Stage(1, (BatchShape(8),), 0.1),
)
TRAIN = Phase("train", "train")


def splits_at(hook: ApplyBatchSchedule, run: Any, epoch: int, phase: Phase = TRAIN) -> int:
    run.clock = Clock(epoch=epoch)
    hook.before_phase(run, phase)
    (norm,) = (module for module in run.task.modules() if isinstance(module, GhostBatchNorm))
    return int(norm.splits)


def test_norms_follow_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(batch_schedule, "log", SimpleNamespace(info=lambda text, *values: lines.append(text % values)))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    split_batch_norms(net, 1)
    hook, run = ApplyBatchSchedule(STAGES, norms=True), SimpleNamespace(task=net)
    assert splits_at(hook, run, 0, Phase("evaluate", "val")) == 1
    assert [splits_at(hook, run, epoch) for epoch in (0, 1, 2, 7)] == [4, 4, 1, 1]
    assert lines == [
        "epoch 0: batches of 32 x 8 x 16 x 16, 16 x 8 x 24 x 24, learning rate x 2, batch norm in 4 parts",
        "epoch 2: batches of 8, learning rate x 0.1",
    ]
    resumed = ApplyBatchSchedule(STAGES, norms=True)
    assert splits_at(resumed, run, 1) == 4


def test_a_stage_over_several_processes() -> None:
    stage = Stage(1, (BatchShape(8),), processes=2)
    assert batch_schedule.describe_stage(stage) == "batches of 8, learning rate x 1, batch norm over 2 processes"


def test_norms_may_stay_as_they_are() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2))
    split_batch_norms(net, 3)
    assert splits_at(ApplyBatchSchedule(STAGES, norms=False), SimpleNamespace(task=net), 0) == 3
