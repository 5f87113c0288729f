"""Segmentation on a GPU: mixed precision compared with single precision, and deterministic training steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from opabinia.contracts import IGNORE_LABEL, Batch, Clock, DatasetInfo, GlobalBatch, StepOptions
from opabinia.engine.loop.step import StandardStep
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders import DeepLabV3Plus, Fcn
from opabinia.models.losses.segmentation import boundary, dice, lovasz, pixel_cross_entropy, pixel_focal
from opabinia.runtime.device import configure_backends
from opabinia.tasks.segmentation import Segmentation

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
INFO = DatasetInfo(samples=4, channels=3, classes=tuple("abcd"), maps=True)
LOSSES = (pixel_cross_entropy, pixel_focal, dice, lovasz, boundary)


@pytest.fixture(autouse=True)
def restore_backends() -> Iterator[None]:
    """Restore the settings that a step changes for the process."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = False


def batch() -> Batch:
    """Bright squares of class 1 in the upper left, noise of the other classes, and pixels without a label."""
    draw = torch.Generator().manual_seed(0)
    image = torch.randint(0, 128, (4, 3, 64, 64), generator=draw, dtype=torch.uint8)
    mask = torch.randint(2, 4, (4, 64, 64), generator=draw, dtype=torch.uint8)
    image[..., :40, :40] += 120
    mask[:, :40, :40], mask[:, 60:] = 1, IGNORE_LABEL
    sizes: dict[str, Any] = {"image_sizes": [(64, 64)] * 4, "original_size": [(64, 64)] * 4, "id": list("abcd")}
    return {"image": image.to(DEVICE), "mask": mask.to(DEVICE), **sizes}


def train(precision: Literal["fp32", "bf16", "fp16"] = "fp32", steps: int = 8) -> tuple[list[float], Segmentation]:
    """Return the sum of the losses of each step, and the model."""
    torch.manual_seed(0)
    task = Segmentation(
        INFO,
        backbone=partial(timm, model="test_resnet"),
        decoder=partial(DeepLabV3Plus, channels=16, fine_channels=8),
        losses=list(LOSSES),
        auxiliary=partial(Fcn, level=2, channels=8, dropout=0.0),
    ).to(DEVICE)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.05, momentum=0.9)
    step = StandardStep(task, optimizer, {}, StepOptions(0, precision), clip_norm=1.0)
    global_batch, totals, data = GlobalBatch(step=0, epoch=0, first=0, count=4), [], batch()
    for number in range(steps):
        scalars = step(data, global_batch, Clock(step=number, total_steps=steps), lambda: None)
        totals.append(
            sum(float(value) for name, value in scalars.items() if name.startswith("loss_") and name != "loss_scale")
        )
    return totals, task


def test_mixed_precision_has_the_losses_of_single_precision() -> None:
    expected, _ = train()
    assert expected[-1] < 0.95 * expected[0]
    for precision in ("bf16", "fp16"):
        losses, task = train(precision)
        assert losses[0] == pytest.approx(expected[0], rel=0.02)
        assert losses[-1] < 0.95 * losses[0]
        assert all(param.dtype == torch.float32 and param.isfinite().all() for param in task.parameters())


def test_mixed_precision_predicts_the_classes_of_single_precision() -> None:
    _, task = train()
    task.eval()
    with torch.no_grad():
        expected = task.predict(batch())["segmentation"]
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast(DEVICE, dtype):
                predicted = task.predict(batch())["segmentation"]
            assert predicted.dtype == torch.uint8
            assert (predicted == expected).float().mean() > 0.97


def test_deterministic_training_is_bitwise_identical() -> None:
    options = {"cudnn_benchmark": False, "matmul_precision": None, "threads": None}
    configure_backends(torch.device(DEVICE), deterministic=True, **options)
    states: list[dict[str, Tensor]] = []
    losses: list[list[float]] = []
    for _ in range(2):
        totals, task = train(steps=3)
        losses.append(totals)
        states.append(task.state_dict())
    assert losses[0] == losses[1]
    assert all(torch.equal(states[0][name], tensor) for name, tensor in states[1].items())
