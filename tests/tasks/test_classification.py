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
FACTS = DatasetInfo(samples=8, channels=1, classes=CLASSES)


class Pool(Backbone):
    """Means of a 2 x 2 grid and of the whole, through one layer."""

    out_channels = 6

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.seen: Tensor | None = None
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, self.out_channels), nn.Tanh()
        )

    def forward(self, images: Tensor) -> Tensor:
        self.seen = images
        features: Tensor = self.layers(images)
        return features


def make(dataset_info: DatasetInfo = FACTS, **keys: Any) -> Classification:
    torch.manual_seed(0)
    return Classification(dataset_info, backbone=Pool, **keys)


def batch_of(count: int = 8, channels: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, channels, 8, 8), dtype=torch.uint8, generator=generator)
    return {"image": images, "label": torch.arange(count) % len(CLASSES), "id": [str(i) for i in range(count)]}


def test_the_four_methods() -> None:
    task, batch = make().eval(), batch_of()
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

    assert task.hooks(FACTS) == []
    evaluator, *_ = task.evaluators(FACTS)
    evaluator.update(predictions, batch)
    right = (predictions["logits"].argmax(1) == batch["label"]).float().mean().item()
    assert evaluator.compute([evaluator.state()]) == {"top1": pytest.approx(right), "top5": 1.0}
    assert task.evaluators(FACTS)[0] is not evaluator, "fresh ones for each evaluation"


def test_predictions_do_not_need_labels() -> None:
    task = make().eval()
    torch.testing.assert_close(
        task.predict({"image": batch_of()["image"]})["logits"], task.predict(batch_of())["logits"]
    )


def test_soft_labels() -> None:
    """What mixup makes: for targets that are one class each the loss is the same."""
    task, batch = make(loss=partial(cross_entropy, label_smoothing=0.1)), batch_of()
    soft = {**batch, "label": nn.functional.one_hot(batch["label"], 4).float()}
    torch.testing.assert_close(task(soft, Clock())["loss"], task(batch, Clock())["loss"])
    mixed = {**batch, "label": torch.full((8, 4), 0.25)}
    uniform = cross_entropy(task.predict(batch)["logits"], mixed["label"], label_smoothing=0.1)
    torch.testing.assert_close(task(mixed, Clock())["loss"], uniform)


def test_images_are_normalised_once() -> None:
    task, batch = make(mean=[0.3], std=[0.38]), batch_of()
    task(batch, Clock())
    assert isinstance(task.backbone, Pool)
    torch.testing.assert_close(task.backbone.seen, (batch["image"].float() / 255 - 0.3) / 0.38)
    assert batch["image"].dtype == torch.uint8, "the batch stays as it was"


@pytest.mark.parametrize(
    ("channels", "mean", "std"),
    [(1, [0.5], [0.5]), (3, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), (4, [0.5], [0.5])],
)
def test_usual_means(channels: int, mean: list[float], std: list[float]) -> None:
    task = make(DatasetInfo(samples=8, channels=channels, classes=CLASSES))
    torch.testing.assert_close(task.normalize.mean.flatten(), torch.tensor(mean))
    torch.testing.assert_close(task.normalize.std.flatten(), torch.tensor(std))
    assert task.predict(batch_of(2, channels))["logits"].shape == (2, 4)


def test_dropout_acts_before_the_head_in_training_only() -> None:
    task, batch = make(dropout=1.0), batch_of()
    bias = task.head[1].bias.expand(8, 4)
    torch.testing.assert_close(task.train().predict(batch)["logits"], bias)
    assert not torch.allclose(task.eval().predict(batch)["logits"], bias)


def test_it_overfits_a_batch() -> None:
    task, batch = make(), batch_of()
    optimizer = torch.optim.Adam(task.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = task(batch, Clock())["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1
    assert losses[-1] < 0.05
    assert task.predict(batch)["logits"].argmax(1).tolist() == batch["label"].tolist()


@pytest.mark.parametrize("classes", [(), ("alone",)])
def test_two_classes_are_needed(classes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"two classes or more; the training data has {len(classes)}"):
        make(DatasetInfo(samples=8, classes=classes))


@pytest.mark.parametrize(
    ("dataset_info", "message"),
    [
        (DatasetInfo(8, 3, CLASSES), "its images have 3 channels, those of training 1"),
        (DatasetInfo(8, 1, ("cat", "dog", "emu", "gnu")), r"missing: fox; new: gnu"),
        (DatasetInfo(8, 1, CLASSES[::-1]), r"missing: none; new: none; the order counts"),
    ],
)
def test_other_data_cannot_be_measured(dataset_info: DatasetInfo, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().evaluators(dataset_info)


def test_the_log_shows_the_loss() -> None:
    assert "label_smoothing=0.1" in str(make(loss=partial(cross_entropy, label_smoothing=0.1)))


def test_the_weights_are_all_there_is_to_save() -> None:
    names = {name.split(".")[0] for name in make().state_dict()}
    assert names == {"backbone", "head"}


# --- several labels an image ------------------------------------------------------------------------------------------

MULTI = DatasetInfo(samples=8, channels=1, classes=CLASSES, multi_label=True)


def multi_batch() -> Batch:
    return {**batch_of(), "label": torch.eye(4).repeat(2, 1) + torch.eye(4).roll(1, 0).repeat(2, 1)}


def test_several_labels() -> None:
    task, batch = make(MULTI).eval(), multi_batch()
    losses, predictions = task(batch, Clock()), task.predict(batch)
    assert losses.keys() == {"loss"}
    torch.testing.assert_close(losses["loss"], binary_cross_entropy(predictions["logits"], batch["label"]))
    torch.testing.assert_close(predictions["probabilities"], predictions["logits"].sigmoid())
    (evaluator,) = task.evaluators(MULTI)
    evaluator.update(predictions, batch)
    assert evaluator.compute([evaluator.state()]).keys() == {"mAP", "micro_f1", "macro_f1"}


def test_a_loss_for_one_label_does_not_fit_several() -> None:
    with pytest.raises(ValueError, match="binary_cross_entropy, binary_focal or asymmetric"):
        make(MULTI, loss=partial(cross_entropy, label_smoothing=0.1))


def test_evaluation_data_with_another_kind_of_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="its images have several labels each, those of training one label"):
        make().evaluators(MULTI)


@pytest.mark.parametrize("dataset_info", [FACTS, MULTI])
def test_views_are_predicted_together(dataset_info: DatasetInfo) -> None:
    task, batch = make(dataset_info).eval(), batch_of()
    views = torch.stack([batch["image"], batch["image"].flip(-1)], 1)
    found = task.predict({**batch, "image": views})
    each = [task.predict({**batch, "image": images})["probabilities"] for images in views.unbind(1)]
    torch.testing.assert_close(found["probabilities"], (each[0] + each[1]) / 2)
    back = found["logits"].sigmoid() if dataset_info.multi_label else found["logits"].softmax(1)
    torch.testing.assert_close(back, found["probabilities"])


@pytest.mark.parametrize("dataset_info", [FACTS, MULTI])
def test_views_that_rule_a_class_out_stay_finite(dataset_info: DatasetInfo) -> None:
    task = make(dataset_info).eval()
    with torch.no_grad():
        for parameter in task.head.parameters():
            parameter.mul_(1e5)
    views = batch_of()["image"][:, None].expand(-1, 2, -1, -1, -1)
    found = task.predict({**batch_of(), "image": views})
    assert found["probabilities"].min() == 0 and found["logits"].isfinite().all()
