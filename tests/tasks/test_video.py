from typing import Any

import pytest
import torch

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo, Task
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.video import resnet3d
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.tasks.video import Video

DATASET_INFO = DatasetInfo(samples=8, channels=1, classes=("left", "right", "up"))


def small_resnet3d(channels: int) -> Any:
    return resnet3d(channels, widths=[4, 6, 8])


def make_task(**keys: Any) -> Video:
    torch.manual_seed(0)
    return Video(DATASET_INFO, backbone=small_resnet3d, **keys)


def clips(count: int = 6, frames: int = 4, size: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, frames, 1, size, size), dtype=torch.uint8, generator=generator)
    return {"image": images, "label": torch.arange(count) % 3, "id": [f"video{number // 2}" for number in range(count)]}


def test_the_methods_of_a_task() -> None:
    task, batch = make_task().eval(), clips()
    assert isinstance(task, Task)
    losses, predictions = task(batch, Clock()), task.predict(batch)
    assert losses.keys() == {"loss", "top1", "top5"}
    torch.testing.assert_close(losses["loss"], cross_entropy(predictions["logits"], batch["label"]))
    torch.testing.assert_close(predictions["probabilities"].sum(1), torch.ones(6))
    assert task.features(batch)["embedding"].shape == (6, 8)
    assert next(iter(task.evaluators(DATASET_INFO)[0].better)) == "top1"


def test_frames_stay_in_their_order() -> None:
    """The network's input is C x T x H x W, with every value at its position."""
    task, batch = make_task(mean=[0.0], std=[1 / 255]).eval(), clips()
    inputs = {}
    task.backbone.register_forward_pre_hook(lambda _, args: inputs.update(clips=args[0]))
    task(batch, Clock())
    torch.testing.assert_close(inputs["clips"], batch["image"].transpose(1, 2).float())


@pytest.mark.parametrize(("frames", "size"), [(2, 16), (8, 24), (5, 17)])
def test_clips_of_any_shape(frames: int, size: int) -> None:
    task = make_task()
    task(clips(frames=frames, size=size), Clock())["loss"].backward()
    assert all(param.grad is not None and param.grad.isfinite().all() for param in task.parameters())


def test_views_of_a_video_are_merged() -> None:
    task, batch = make_task().eval(), clips()
    batch["label"] = torch.tensor([0, 0, 1, 1, 2, 2])
    evaluator = task.evaluators(DATASET_INFO)[0]
    predictions = task.predict(batch)
    evaluator.update(predictions, batch)
    mean = predictions["probabilities"].view(3, 2, 3).mean(1)
    accuracy = (mean.argmax(1) == torch.arange(3)).double().mean()
    assert evaluator.compute([evaluator.state()])["top1"] == pytest.approx(float(accuracy))


def test_backbones_and_batches_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ValueError, match=r"backbone: .*\{name: tsn, backbone: \.\.\.\}"):
        Video(DATASET_INFO, backbone=lambda channels: timm(channels, model="test_resnet"))
    with pytest.raises(ValueError, match="video needs two classes or more"):
        Video(DatasetInfo(samples=8, channels=1, classes=("left",)), backbone=small_resnet3d)
    task = make_task()
    with pytest.raises(DataMismatch, match="put clip first among the transforms"):
        task({**clips(), "image": torch.zeros(2, 1, 8, 8)}, Clock())
    with pytest.raises(DataMismatch, match="put clip first"):
        task({"video": [], "label": torch.tensor([0])}, Clock())
