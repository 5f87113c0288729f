from typing import Any

import pytest
import torch

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo, Task
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.video import resnet3d
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.tasks.video import Video

FACTS = DatasetInfo(samples=8, channels=1, classes=("left", "right", "up"))


def small(channels: int) -> Any:
    return resnet3d(channels, widths=[4, 6, 8])


def make(**keys: Any) -> Video:
    torch.manual_seed(0)
    return Video(FACTS, backbone=small, **keys)


def clips(count: int = 6, frames: int = 4, size: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, frames, 1, size, size), dtype=torch.uint8, generator=generator)
    return {"image": images, "label": torch.arange(count) % 3, "id": [f"film{number // 2}" for number in range(count)]}


def test_the_four_methods() -> None:
    task, batch = make().eval(), clips()
    assert isinstance(task, Task)
    losses, predictions = task(batch, Clock()), task.predict(batch)
    assert losses.keys() == {"loss", "top1", "top5"}
    torch.testing.assert_close(losses["loss"], cross_entropy(predictions["logits"], batch["label"]))
    torch.testing.assert_close(predictions["probabilities"].sum(1), torch.ones(6))
    assert task.features(batch)["embedding"].shape == (6, 8)
    assert next(iter(task.evaluators(FACTS)[0].better)) == "top1"


def test_frames_stay_in_their_order() -> None:
    """The network sees C x T x H x W, each value where it was."""
    task, batch = make(mean=[0.0], std=[1 / 255]).eval(), clips()
    seen = {}
    task.backbone.register_forward_pre_hook(lambda _, given: seen.update(clips=given[0]))
    task(batch, Clock())
    torch.testing.assert_close(seen["clips"], batch["image"].transpose(1, 2).float())


@pytest.mark.parametrize(("frames", "size"), [(2, 16), (8, 24), (5, 17)])
def test_any_shape(frames: int, size: int) -> None:
    task = make()
    task(clips(frames=frames, size=size), Clock())["loss"].backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in task.parameters())


def test_views_of_a_video_are_merged() -> None:
    task, batch = make().eval(), clips()
    batch["label"] = torch.tensor([0, 0, 1, 1, 2, 2])
    judge = task.evaluators(FACTS)[0]
    predictions = task.predict(batch)
    judge.update(predictions, batch)
    mean = predictions["probabilities"].view(3, 2, 3).mean(1)
    right = (mean.argmax(1) == torch.arange(3)).double().mean()
    assert judge.compute([judge.state()])["top1"] == pytest.approx(float(right))


def test_what_does_not_fit_is_reported() -> None:
    with pytest.raises(ValueError, match=r"backbone: .*\{name: tsn, backbone: \.\.\.\}"):
        Video(FACTS, backbone=lambda channels: timm(channels, model="test_resnet"))
    with pytest.raises(ValueError, match="video needs two classes or more"):
        Video(DatasetInfo(samples=8, channels=1, classes=("left",)), backbone=small)
    task = make()
    with pytest.raises(DataMismatch, match="put clip first among the transforms"):
        task({**clips(), "image": torch.zeros(2, 1, 8, 8)}, Clock())
    with pytest.raises(DataMismatch, match="put clip first"):
        task({"video": [], "label": torch.tensor([0])}, Clock())
