"""Schedules of batch shapes, and how a reader applies them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torchvision import tv_tensors

from opabinia.contracts import BatchShape, RunSpec, Sample, Source, SourceInfo, Stage
from opabinia.data.errors import DataError
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batch_shapes import multi_scale, multigrid, progressive
from opabinia.data.sampling.batches import StagedPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import training_requests
from opabinia.runtime.durations import Duration

KINETICS = RunSpec(240_000, 64, Duration(239, "ep"), world=8)


def test_kinetics() -> None:
    layout = multigrid(KINETICS, size=224, frames=32, milestones=[94, 154, 196])
    first, last = layout.stages[0], layout.stages[-1]
    assert first == Stage(73, (*(BatchShape(n, (8, s, s)) for n, s in ((1024, 112), (512, 158), (512, 158))),), 8.0, 8)
    assert last.cycle == ((256, (32, 112, 112)), (128, (32, 158, 158)), (64, (32, 224, 224)))
    assert (last.epochs, last.splits, last.processes) == (15, 1, 1)
    assert layout.length == Duration(358, "ep")
    small = multigrid(RunSpec(10_000, 16, Duration(57, "ep"), world=8), size=224, frames=64, milestones=[41, 49])
    assert [(stage.splits, stage.processes) for stage in small.stages[:4]] == [(2, 1), (1, 1), (1, 2), (1, 4)]
    plan = StagedPlan(KINETICS.samples, layout.stages, layout.length)
    # 3.42 times fewer steps, but for the incomplete batches at the ends of epochs.
    assert 239 * 3750 / plan.total_steps == pytest.approx(3.42, abs=0.01)


def test_multigrid_of_images() -> None:
    layout = multigrid(RunSpec(1437, 64, Duration(12, "ep")), size=32, milestones=[9])
    assert [batch_shape.shape for batch_shape in layout.stages[0].cycle] == [(16, 16), (23, 23), (23, 23)]
    assert [batch_shape.shape for batch_shape in layout.stages[-1].cycle] == [(16, 16), (23, 23), (32, 32)]
    assert sum(stage.epochs for stage in layout.stages) == 18
    one_shape = multigrid(RunSpec(1437, 64, Duration(12, "ep")), size=32, milestones=[], long_cycle=[], short_cycle=[])
    assert one_shape.stages == (Stage(12, (BatchShape(64, (32, 32)),), 1.0, 8),)


@pytest.mark.parametrize("length", ["5it", "0.5ep", "0ep"])
def test_the_baseline_needs_whole_epochs(length: str) -> None:
    spec = RunSpec(1437, 64, Duration.parse(length))
    with pytest.raises(ValueError, match=f"train.length is {length}, and must be the baseline's in whole epochs"):
        multigrid(spec, size=32, milestones=[9])
    layout = multigrid(spec, size=32, milestones=[9], epochs=12)
    assert layout.length == spec.length
    assert sum(stage.epochs for stage in layout.stages) == 18


def test_the_last_shape_continues_after_the_schedule() -> None:
    layout = multigrid(RunSpec(1437, 64, Duration(40, "ep")), size=32, milestones=[9], epochs=12)
    plan = StagedPlan(1437, layout.stages, layout.length)
    last = plan.global_batch(plan.total_steps - 1)
    assert (last.epoch, last.lr_factor) == (39, pytest.approx(0.1))
    assert plan.global_batch(plan.epoch_start(39) + 2).shape == (32, 32)


def test_intervals_without_epochs() -> None:
    spec = RunSpec(1000, 16, Duration(22, "ep"), world=8)
    with pytest.raises(ValueError, match=r"interval 7 \(epochs 30 to 30"):
        multigrid(spec, size=224, frames=64, milestones=[14, 18])
    with pytest.raises(ValueError, match=r"interval 0 .*its batch of 1024 does not divide by 5 ranks"):
        multigrid(RunSpec(240_000, 64, Duration(239, "ep"), 5), size=224, frames=32, milestones=[94, 154, 196])
    layout = multigrid(spec, size=224, frames=64, milestones=[14, 18], drop_empty=True)
    assert len(layout.stages) == 9
    assert all(stage.epochs for stage in layout.stages)


def test_multi_scale_cycles_through_sizes() -> None:
    layout = multi_scale(RunSpec(10, 4, Duration(2, "ep")), sizes=[32, 24])
    plan = StagedPlan(10, layout.stages, layout.length)
    assert [plan.global_batch(step).shape for step in range(plan.total_steps)] == [(32, 32), (24, 24), (32, 32)] * 2
    assert plan.epochs == 2


@pytest.mark.parametrize("length", ["7it", "0.25ep", "0it"])
def test_progressive_sizes_end_with_the_run(length: str) -> None:
    layout = progressive(RunSpec(10, 4, Duration.parse(length)), start=32, end=64)
    plan = StagedPlan(10, layout.stages, layout.length)
    assert plan.total_steps == Duration.parse(length).steps(3)
    if plan.total_steps:
        assert plan.global_batch(0).shape == (32, 32)


# --- reading ----------------------------------------------------------------------------------------------------------


class Videos(Source):
    """Videos, of which a transform makes clips."""

    info = SourceInfo(channels=1)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Sample:
        return {"video": torch.full((16, 1, 32, 32), index, dtype=torch.uint8), "id": str(index)}


def clip_and_crop(sample: Sample) -> Sample:
    """Return a clip of the requested frames and size, as ``clip`` followed by a crop does."""
    video = sample.pop("video")
    frames, height, width = sample["shape"]
    start = int(torch.randint(0, 17 - frames, ()))
    return {**sample, "image": tv_tensors.Video(video[start : start + frames, :, :height, :width])}


def clip_only(sample: Sample) -> Sample:
    """Return a clip of the requested frames at the size of the video, as ``clip`` alone does."""
    frames = sample["shape"][0]
    return {**sample, "image": tv_tensors.Video(sample.pop("video")[:frames])}


def ignore_shape(sample: Sample) -> Sample:
    return {**sample, "image": tv_tensors.Video(sample.pop("video"))}


def shapes(make: Any, start: int = 0) -> list[tuple[int, ...]]:
    stages = (
        Stage(1, (BatchShape(4, (8, 16, 16)), BatchShape(2, (8, 24, 24)))),
        Stage(1, (BatchShape(4, (16, 32, 32)),)),
    )
    requests = training_requests(
        StagedPlan(10, stages, Duration(2, "ep")), partial(epoch_order, 5, n=10, shuffle=True), 0, 1
    )
    batches = [BatchReader(Videos(), [make], seed=3).batch(request) for request in requests(start)]
    assert not any("shape" in batch for batch in batches)
    return [tuple(batch["image"].shape) for batch in batches]


def test_clips_have_the_requested_shape() -> None:
    expected = [
        *((4, 8, 1, 16, 16), (2, 8, 1, 24, 24), (4, 8, 1, 16, 16)),
        *((4, 16, 1, 32, 32), (4, 16, 1, 32, 32), (2, 16, 1, 32, 32)),
    ]
    assert shapes(clip_and_crop) == expected and shapes(clip_and_crop, start=2) == expected[2:]
    assert shapes(clip_only) == expected, "clips of another size are resized"
    message = "clips of 8 frames are wanted, and the transforms made clips of 16; take transforms that read `shape`"
    with pytest.raises(DataError, match=message):
        shapes(ignore_shape)
