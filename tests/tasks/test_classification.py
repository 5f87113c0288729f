from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, Batch, Clock, DatasetInfo, Task
from opabinia.models.losses.binary import binary_cross_entropy
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.tasks.classification import Classification

CLASSES = ("cat", "dog", "emu", "fox")
DATASET_INFO = DatasetInfo(samples=8, channels=1, classes=CLASSES)


class Pool(Backbone):
    """Means of a 2 x 2 grid through one linear layer."""

    out_channels = 6

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.images: Tensor | None = None
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, self.out_channels), nn.Tanh()
        )

    def forward(self, images: Tensor) -> Tensor:
        self.images = images
        features: Tensor = self.layers(images)
        return features


def make_task(dataset_info: DatasetInfo = DATASET_INFO, **keys: Any) -> Classification:
    torch.manual_seed(0)
    return Classification(dataset_info, backbone=Pool, **keys)


def batch_of(count: int = 8, channels: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, channels, 8, 8), dtype=torch.uint8, generator=generator)
    return {"image": images, "label": torch.arange(count) % len(CLASSES), "id": [str(i) for i in range(count)]}


def test_the_methods_of_a_task() -> None:
    task, batch = make_task().eval(), batch_of()
    assert isinstance(task, Task)

    losses = task(batch, Clock())
    predictions = task.predict(batch)
    assert losses.keys() == {"loss", "top1", "top5"}
    torch.testing.assert_close(losses["loss"], cross_entropy(predictions["logits"], batch["label"]))

    assert predictions["logits"].shape == predictions["probabilities"].shape == (8, 4)
    torch.testing.assert_close(predictions["probabilities"].sum(1), torch.ones(8))

    embedding = task.features(batch)["embedding"]
    assert embedding.shape == (8, 6)
    torch.testing.assert_close(task.head(embedding), predictions["logits"])

    assert task.hooks(DATASET_INFO) == []
    evaluator, *_ = task.evaluators(DATASET_INFO)
    evaluator.update(predictions, batch)
    accuracy = (predictions["logits"].argmax(1) == batch["label"]).float().mean().item()
    assert evaluator.compute([evaluator.state()]) == {"top1": pytest.approx(accuracy), "top5": 1.0}
    assert task.evaluators(DATASET_INFO)[0] is not evaluator, "each evaluation has new evaluators"


def test_soft_labels() -> None:
    """Soft labels, as from mixup, with a single class give the same loss as hard labels."""
    task, batch = make_task(loss=partial(cross_entropy, label_smoothing=0.1)), batch_of()
    soft = {**batch, "label": nn.functional.one_hot(batch["label"], 4).float()}
    torch.testing.assert_close(task(soft, Clock())["loss"], task(batch, Clock())["loss"])
    mixed = {**batch, "label": torch.full((8, 4), 0.25)}
    uniform = cross_entropy(task.predict(batch)["logits"], mixed["label"], label_smoothing=0.1)
    torch.testing.assert_close(task(mixed, Clock())["loss"], uniform)


def test_images_are_normalized_once() -> None:
    task, batch = make_task(mean=[0.3], std=[0.38]), batch_of()
    task(batch, Clock())
    assert isinstance(task.backbone, Pool)
    torch.testing.assert_close(task.backbone.images, (batch["image"].float() / 255 - 0.3) / 0.38)
    assert batch["image"].dtype == torch.uint8, "the batch is unchanged"


@pytest.mark.parametrize(
    ("channels", "mean", "std"),
    [(1, [0.5], [0.5]), (3, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), (4, [0.5], [0.5])],
)
def test_default_mean_and_std(channels: int, mean: list[float], std: list[float]) -> None:
    normalize = make_task(DatasetInfo(samples=8, channels=channels, classes=CLASSES)).normalize
    torch.testing.assert_close(normalize.mean.flatten(), torch.tensor(mean))
    torch.testing.assert_close(normalize.std.flatten(), torch.tensor(std))


def test_dropout_acts_before_the_head_in_training_only() -> None:
    task, batch = make_task(dropout=1.0), batch_of()
    bias = task.head[1].bias.expand(8, 4)
    torch.testing.assert_close(task.train().predict(batch)["logits"], bias)
    assert not torch.allclose(task.eval().predict(batch)["logits"], bias)


@pytest.mark.parametrize(
    ("dataset_info", "message"),
    [
        (DatasetInfo(8, channels=3, classes=CLASSES), "its images have 3 channels, those of training 1"),
        (DatasetInfo(8, channels=1, classes=("cat", "dog", "emu", "gnu")), r"missing: fox; new: gnu"),
        (DatasetInfo(8, channels=1, classes=CLASSES[::-1]), r"missing: none; new: none; the order counts"),
        (
            DatasetInfo(8, channels=1, classes=CLASSES, multi_label=True),
            "images have several labels each, those of training one label",
        ),
    ],
)
def test_evaluation_data_that_do_not_fit_are_refused(dataset_info: DatasetInfo, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task().evaluators(dataset_info)


def test_the_log_shows_the_loss() -> None:
    assert "label_smoothing=0.1" in str(make_task(loss=partial(cross_entropy, label_smoothing=0.1)))


SMOOTHED = partial(cross_entropy, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("dataset_info", "keys", "message"),
    [
        (DatasetInfo(8), {}, "classification needs two classes or more; the training data has 0"),
        (DatasetInfo(8, classes=("single",)), {}, "two classes or more; the training data has 1"),
        (
            DatasetInfo(8, channels=1, classes=CLASSES, multi_label=True),
            {"loss": SMOOTHED},
            "binary_focal or asymmetric",
        ),
    ],
)
def test_training_data_that_do_not_fit_are_refused(dataset_info: DatasetInfo, keys: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(dataset_info, **keys)


# --- multi-label data -------------------------------------------------------------------------------------------------

MULTI_LABEL_INFO = DatasetInfo(samples=8, channels=1, classes=CLASSES, multi_label=True)


def multi_batch() -> Batch:
    return {**batch_of(), "label": torch.eye(4).repeat(2, 1) + torch.eye(4).roll(1, 0).repeat(2, 1)}


def test_multi_label_losses_and_scores() -> None:
    task, batch = make_task(MULTI_LABEL_INFO).eval(), multi_batch()
    losses, predictions = task(batch, Clock()), task.predict(batch)
    assert losses.keys() == {"loss"}
    torch.testing.assert_close(losses["loss"], binary_cross_entropy(predictions["logits"], batch["label"]))
    torch.testing.assert_close(predictions["probabilities"], predictions["logits"].sigmoid())
    (evaluator,) = task.evaluators(MULTI_LABEL_INFO)
    evaluator.update(predictions, batch)
    assert evaluator.compute([evaluator.state()]).keys() == {"mAP", "micro_f1", "macro_f1"}


@pytest.mark.parametrize("dataset_info", [DATASET_INFO, MULTI_LABEL_INFO])
def test_predictions_of_views_are_averaged(dataset_info: DatasetInfo) -> None:
    task, batch = make_task(dataset_info).eval(), batch_of()
    views = torch.stack([batch["image"], batch["image"].flip(-1)], 1)
    predictions = task.predict({**batch, "image": views})
    per_view = [task.predict({**batch, "image": images})["probabilities"] for images in views.unbind(1)]
    torch.testing.assert_close(predictions["probabilities"], (per_view[0] + per_view[1]) / 2)
    from_logits = predictions["logits"].sigmoid() if dataset_info.multi_label else predictions["logits"].softmax(1)
    torch.testing.assert_close(from_logits, predictions["probabilities"])


@pytest.mark.parametrize("dataset_info", [DATASET_INFO, MULTI_LABEL_INFO])
def test_logits_stay_finite_for_probabilities_of_0(dataset_info: DatasetInfo) -> None:
    task = make_task(dataset_info).eval()
    with torch.no_grad():
        for param in task.head.parameters():
            param.mul_(1e5)
    views = batch_of()["image"][:, None].expand(-1, 2, -1, -1, -1)
    predictions = task.predict({**batch_of(), "image": views})
    assert predictions["probabilities"].min() == 0 and predictions["logits"].isfinite().all()
