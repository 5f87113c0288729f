"""Pseudo-labels of classes, pixels and boxes by hand-computed cases, and the task around a task."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from opabinia.contracts import (
    SINGLE,
    UNLABELED,
    WEAK_IMAGE,
    Backbone,
    Batch,
    Clock,
    DatasetInfo,
    GlobalBatch,
    Source,
    SourceInfo,
    Stream,
)
from opabinia.data.collate import collate
from opabinia.data.streams.batches import join_batches
from opabinia.data.strong_views import StrongView, check_keeps_positions
from opabinia.data.transforms.augment import RandomErase, RandomGaussianBlur
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders.pixel_decoders import Linear
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.rcnn import mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.rpn import ProposalOptions
from opabinia.models.losses.binary import binary_cross_entropy
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.models.losses.metric import triplet
from opabinia.runtime.durations import Duration
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection.task import Detection
from opabinia.tasks.reid.baseline import Baseline
from opabinia.tasks.segmentation.task import Segmentation
from opabinia.tasks.semi_supervised.boxes import BoxLabels
from opabinia.tasks.semi_supervised.classes import ClassLabels
from opabinia.tasks.semi_supervised.identities import IdentityLabels, cluster_by_neighbors, purity
from opabinia.tasks.semi_supervised.pixels import PixelLabels
from opabinia.tasks.semi_supervised.task import SemiSupervised, SemiSupervisedTask
from tests.host_waits import HostWaits

CLASSES = ("cat", "dog", "emu")
INFO = DatasetInfo(samples=8, channels=3, classes=CLASSES)
NET = partial(timm, model="test_resnet")


class Pool(Backbone):
    """Means of a 2 x 2 grid through one linear layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = 6
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 6), nn.Tanh())

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def classifier(info: DatasetInfo = INFO, **options: Any) -> Classification:
    torch.manual_seed(0)
    return Classification(info, backbone=Pool, **options)


class Images(Source):
    """Unlabeled images of which the number and the true labels are known."""

    def __init__(self, count: int, labels: list[int] | None = None) -> None:
        self._count, self.info = count, SourceInfo(labels=None if labels is None else np.array(labels))

    def __len__(self) -> int:
        return self._count


def probabilities(*rows: list[float]) -> dict[str, Tensor]:
    return {"probabilities": torch.tensor(rows)}


# --- classes ----------------------------------------------------------------------------------------------------------


def test_classes_have_labels_from_a_probability_on() -> None:
    labeler = ClassLabels(classifier(), Images(4), threshold=0.8)
    predictions = probabilities([0.8, 0.1, 0.1], [0.1, 0.79, 0.11], [0, 0.05, 0.95], [0.1, 0.9, 0])
    pseudo = labeler(predictions, {"id": list("abcd"), "label": torch.tensor([0, 1, 2, 2])})
    assert pseudo.labels["label"].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert pseudo.kept == 0.75 and pseudo.precision is not None and pseudo.precision.item() == pytest.approx(2 / 3)
    assert labeler(predictions, {"id": list("abcd")}).precision is None, "there is no ground truth"


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("smoothing_classes", ["all", "others"])
def test_images_without_a_label_have_the_loss_0_and_count_in_the_mean(smoothing: float, smoothing_classes: Any) -> None:
    logits, loss = (
        torch.randn(3, 3, generator=torch.Generator().manual_seed(0)),
        partial(cross_entropy, label_smoothing=smoothing, smoothing_classes=smoothing_classes),
    )
    targets = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]])
    torch.testing.assert_close(loss(logits, targets), loss(logits[1:2], torch.tensor([1])) / 3)


def test_flexible_thresholds_follow_the_newest_labels_of_all_images() -> None:
    """FlexMatch: of ten images five are labeled 0, two 1, three never had a label: status 1, 0.4, 0 of a largest 5."""
    labeler = ClassLabels(classifier(), Images(10), threshold=0.8, flexible=True)
    labeler.latest.copy_(torch.tensor([0, 0, 0, 0, 0, 1, 1, 3, 3, 3]))
    torch.testing.assert_close(labeler.threshold_factors(), torch.tensor([1, 0.4 / 1.6, 0]))
    batch = {"id": ["a", "b", "c"], "index": torch.tensor([5, 7, 0])}
    pseudo = labeler(probabilities([0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.25, 0.4, 0.35]), batch)
    assert pseudo.labels["label"].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert labeler.latest.tolist() == [0, 0, 0, 0, 0, 1, 1, 3, 3, 3], "the thresholds change after the step"
    (hook,) = labeler.hooks()
    hook.after_step(None)  # type: ignore[arg-type]
    assert labeler.latest.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 3, 3], "an unsure image keeps its label"
    other = ClassLabels(classifier(), Images(10), flexible=True)
    other.hooks()[0].load_tensors(hook.tensors())
    assert torch.equal(other.latest, labeler.latest)


def test_tasks_whose_classes_cannot_be_labeled_are_refused() -> None:
    several = DatasetInfo(samples=8, channels=3, classes=CLASSES, multi_label=True)
    for task, message in [
        (classifier(several), "several labels"),
        (classifier(loss=binary_cross_entropy), "cross_entropy or focal"),
        (nn.Identity(), "the task is Identity"),
    ]:
        with pytest.raises(ValueError, match=message):
            ClassLabels(task, Images(4))  # type: ignore[arg-type]
    for labels, message in ((PixelLabels, "semantic segmentation"), (BoxLabels, "labels of detection")):
        with pytest.raises(ValueError, match=f"{message}; the task is Classification"):
            labels(classifier(), Images(4))


# --- pixels -----------------------------------------------------------------------------------------------------------


def segmentation() -> Segmentation:
    torch.manual_seed(0)
    info = DatasetInfo(samples=8, channels=3, classes=CLASSES, maps=True)
    return Segmentation(info, backbone=NET, decoder=Linear)


def test_sure_pixels_inside_the_images_have_labels() -> None:
    """An image of 1 x 2 pixels in a padded batch of 2 x 2, and one of 2 x 2."""
    sure = torch.tensor([[[0.9, 0.6], [0.9, 0.9]], [[0.9, 0.9], [0.5, 0.9]]])
    maps = torch.stack([sure, (1 - sure) / 2, (1 - sure) / 2], 1)
    truth = torch.tensor([[[0, 0], [255, 255]], [[1, 255], [0, 0]]], dtype=torch.uint8)
    batch = {"image": torch.zeros(2, 3, 2, 2), "image_sizes": [(1, 2), (2, 2)], "mask": truth}
    pseudo = PixelLabels(segmentation(), Images(2), threshold=0.8, cutmix=0)({"probabilities": maps}, batch)
    assert pseudo.labels["image"].equal(batch["image"])
    assert pseudo.labels["mask"].tolist() == [[[0, 255], [255, 255]], [[0, 0], [255, 0]]]
    assert pseudo.kept.item() == pytest.approx(4 / 6) and pseudo.factor == pseudo.kept
    assert pseudo.precision is not None and pseudo.precision.item() == pytest.approx(2 / 3), "255 is not compared"


def test_cross_entropy_of_pixels_is_a_mean_over_all_of_them() -> None:
    logits = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    task, batch = segmentation(), {"image": torch.zeros(2, 3, 4, 4), "image_sizes": [(4, 4), (4, 4)]}
    pseudo = PixelLabels(task, Images(2), threshold=0.6, cutmix=0)({"probabilities": logits.softmax(1)}, batch)
    confidences, classes = logits.softmax(1).max(1)
    expected = (F.cross_entropy(logits, classes, reduction="none") * (confidences >= 0.6)).mean()
    (loss,) = (pixel_loss(logits, pseudo.labels["mask"]) for pixel_loss in task.pixel_losses)
    torch.testing.assert_close(pseudo.factor * loss, expected)


def test_pasted_rectangles_come_with_their_labels() -> None:
    """Three images of one color each, of 40 x 60, 60 x 40 and 60 x 60 pixels, of which the teacher is sure, sure and
    unsure."""
    sizes = [(40, 60), (60, 40), (60, 60)]
    images = torch.tensor([10, 20, 30])[:, None, None, None].expand(3, 3, 60, 60).clone()
    for image, (height, width) in zip(images, sizes, strict=True):
        image[:, height:], image[:, :, width:] = 0, 0
    teacher = torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.4, 0.3, 0.3]])
    predictions = {"probabilities": teacher[..., None, None].expand(3, 3, 60, 60)}
    labeler, shares = PixelLabels(segmentation(), Images(3), threshold=0.8, cutmix=1), []
    for seed in range(20):
        torch.manual_seed(seed)
        labels = labeler(predictions, {"image": images, "image_sizes": sizes}).labels
        for color, label in ((10, 0), (20, 1), (30, 255), (0, 255)):
            shows = labels["image"][:, 0] == color
            assert (labels["mask"][shows] == label).all()
        for row, (height, width) in enumerate(sizes):
            changed = (labels["image"][row] != images[row]).all(0)
            shares.append(changed.sum().item() / (height * width))
            assert not changed[height:].any() and not changed[:, width:].any(), "nothing is pasted into padding"
            rows, columns = (changed.any(side).nonzero() for side in (1, 0))
            assert changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all(), "it is a rectangle"
    assert 0.01 < min(shares) < 0.05 and 0.35 < max(shares) < 0.42


# --- boxes ------------------------------------------------------------------------------------------------------------


def detection(detector: Any = Fcos, **facts: Any) -> Detection:
    torch.manual_seed(0)
    info = DatasetInfo(samples=8, channels=3, classes=CLASSES, boxes=True, **facts)
    return Detection(info, backbone=NET, detector=detector)


def test_detections_with_a_high_score_are_boxes() -> None:
    box = [0.0, 0, 8, 8]
    predictions = {
        "boxes": torch.tensor([[box, [1.0, 1, 8, 8], box, box], [[2.0, 2, 2, 6], box, box, box]]),
        "scores": torch.tensor([[0.9, 0.8, 0.4, 0.9], [0.9, 0.1, 0.1, 0.1]]),
        "labels": torch.tensor([[1, 0, 2, -1], [0, 1, 1, -1]]),
    }
    batch = {"boxes": [torch.tensor([box]), torch.zeros(0, 4)], "labels": [torch.tensor([1]), torch.zeros(0).long()]}
    pseudo = BoxLabels(detection(), Images(2), threshold=0.5)(predictions, batch)
    assert [rows.tolist() for rows in pseudo.labels["boxes"]] == [[box, [1, 1, 8, 8]], []], "empty boxes are dropped"
    assert [rows.tolist() for rows in pseudo.labels["labels"]] == [[1, 0], []]
    assert pseudo.kept.item() == pytest.approx(2 / 6) and pseudo.precision == 0.5


# --- identities -------------------------------------------------------------------------------------------------------


def reidentification() -> Baseline:
    torch.manual_seed(0)
    return Baseline(INFO, backbone=Pool, metric_losses=[triplet])


def groups(*sizes: int) -> Tensor:
    """Return groups of vectors around orthogonal ones."""
    rows = torch.eye(6).repeat_interleave(torch.tensor([*sizes, *[0] * (6 - len(sizes))]), 0)
    return rows + 0.01 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))


def test_groups_of_vectors_are_clusters_and_others_belong_to_none() -> None:
    vectors, options = groups(4, 4, 1), {"k1": 4, "k2": 1}
    assert cluster_by_neighbors(vectors, 0.6, 3, **options).tolist() == [0] * 4 + [1] * 4 + [-1]
    assert cluster_by_neighbors(vectors, 0.6, 1, **options).tolist() == [0] * 4 + [1] * 4 + [2]
    assert purity(np.array([0, 0, 0, 1, 1]), np.array([7, 7, 2, 5, 5])) == 0.8
    assert purity(np.zeros(0, int), np.zeros(0, int)) == 0


def test_images_are_contrasted_with_the_clusters_of_the_teachers_embeddings() -> None:
    """Ten images of 4 and 4 neighbors, of which one was not seen, and one without neighbors."""
    student, truth = reidentification().eval(), [3, 3, 3, 5, 8, 8, 8, 8, 9, 9]
    labeler = IdentityLabels(student, Images(10, truth), every=Duration(2, "it"), min_samples=3, k1=4, k2=1)
    vectors = torch.cat([groups(4, 4, 1), torch.zeros(1, 6)])
    batch = {"id": list("abc"), "index": torch.tensor([0, 5, 8]), "image": images(3, 0)}
    for first in range(0, 9, 3):
        seen = {"id": list("abc"), "index": torch.arange(first, first + 3)}
        pseudo = labeler({"embedding": 2 * vectors[first : first + 3]}, seen)
        assert pseudo.labels["label"].tolist() == [-1] * 3 and pseudo.kept == 0 and pseudo.precision == 0
    assert labeler.loss(student, {**batch, **pseudo.labels}, Clock()) == 0, "there are no clusters yet"
    (hook,) = labeler.hooks()
    for step in (1, 2):
        assert not labeler.labels.ge(0).any()
        hook.after_step(type("Run", (), {"clock": Clock(step=step, total_steps=9)})())
    assert labeler.labels.tolist() == [0] * 4 + [1] * 4 + [-1, -1]
    pseudo = labeler({"embedding": vectors[[0, 5, 8]]}, batch)
    assert pseudo.labels["label"].tolist() == [0, 1, -1] and pseudo.kept.item() == pytest.approx(2 / 3)
    assert pseudo.precision is not None and pseudo.precision.item() == pytest.approx(7 / 8)
    embeddings = F.normalize(student.predict(batch)["embedding"], dim=1)
    normalized = F.normalize(vectors, dim=1)
    centroids = F.normalize(torch.stack([normalized[:4].mean(0), normalized[4:8].mean(0)]), dim=1)
    expected = F.cross_entropy((embeddings @ centroids.T / 0.05)[:2], torch.tensor([0, 1]), reduction="sum") / 3
    loss = labeler.loss(student, {**batch, **pseudo.labels}, Clock())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(param.grad is not None for param in student.backbone.parameters())
    resumed = IdentityLabels(student, Images(10, truth))
    resumed.hooks()[0].load_tensors(hook.tensors())
    assert torch.equal(resumed.centroids(), labeler.centroids())
    assert resumed({"embedding": vectors[[0, 5, 8]]}, batch).precision == pseudo.precision


def test_settings_of_identities_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="identities are labels of re-identification; the task is Classification"):
        IdentityLabels(classifier(), Images(4))
    with pytest.raises(ValueError, match="every: the images are clustered at least once"):
        IdentityLabels(reidentification(), Images(4), every=Duration(0, "ep"))


# --- views ------------------------------------------------------------------------------------------------------------


def test_both_views_are_padded_and_the_weak_one_is_unchanged() -> None:
    images = [torch.full((1, side, side), 200, dtype=torch.uint8) for side in (6, 8)]
    view = StrongView([lambda sample: {**sample, "image": 255 - sample["image"]}])
    batch = collate([view({"image": image, "id": str(number)}) for number, image in enumerate(images)], 8)
    assert batch["image"].shape == batch[WEAK_IMAGE].shape == (2, 1, 8, 8)
    assert batch[WEAK_IMAGE].amax((1, 2, 3)).tolist() == [200, 200] and batch["image"].amax((1, 2, 3)).tolist() == [
        55,
        55,
    ]
    assert batch[WEAK_IMAGE][0, 0, 6:].sum() == 0 and batch["image_sizes"] == [(6, 6), (8, 8)]
    with pytest.raises(ValueError, match=r"^semi_supervised.strong.0: .*not callable|division"):
        StrongView([lambda sample: 1 // 0])({"image": images[0]})


def test_strong_transforms_that_move_pixels_are_found() -> None:
    colors = [RandomErase(), RandomGaussianBlur(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    check_keeps_positions(colors, 3)
    for transform, message in [
        (v2.RandomHorizontalFlip(0.2), "^1: it moves pixels"),
        (v2.RandomAffine(5), "^1: it moves pixels"),
        (v2.Resize(8), "^1: it moves pixels"),
        (v2.RandAugment(), "^1: it must take segmentation maps"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_keeps_positions([colors[0], transform], 3)


# --- the task around a task -------------------------------------------------------------------------------------------


def settings(**options: Any) -> SemiSupervised:
    part: Any = ClassLabels
    return SemiSupervised(unlabeled=Stream(source=[]), pseudo_labels=part, **options)  # type: ignore[arg-type]


def images(count: int, seed: int, side: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def joint_batch(labels: dict[str, Any], counts: tuple[int, int] = (2, 3), side: int = 8) -> Batch:
    labeled, unlabeled = counts
    streams = {
        SINGLE: {"image": images(labeled, 1, side), "id": list("ab"), **labels},
        UNLABELED: {
            "image": images(unlabeled, 2, side),
            WEAK_IMAGE: images(unlabeled, 3, side),
            "id": list("cde"),
            "index": torch.arange(unlabeled),
        },
    }
    global_batches = {name: GlobalBatch(0, 0, 0, len(batch["id"])) for name, batch in streams.items()}
    return join_batches(GlobalBatch(0, 0, 0, labeled + unlabeled), streams, global_batches)


def test_the_teachers_labels_of_weak_views_are_learned_from_strong_views() -> None:
    """Shares of 2 and 3 of 5 images: the losses are means over the images of their stream."""
    student = classifier()
    labeler = ClassLabels(student, Images(3))
    task = SemiSupervisedTask(student, labeler, settings(weight=2.0))
    assert task.average is not None
    with torch.no_grad():
        task.average.head[1].weight.mul_(3)
    batch = joint_batch({"label": torch.tensor([0, 2])})
    unlabeled = batch["streams"][UNLABELED]
    confidences, classes = task.average.predict({"image": unlabeled[WEAK_IMAGE]})["probabilities"].max(1)
    labeler.threshold = confidences.median().item()
    values = task(batch, Clock(step=1, total_steps=2))
    losses = F.cross_entropy(student.predict(unlabeled)["logits"], classes, reduction="none")
    kept = confidences >= labeler.threshold
    assert kept.sum() == 2
    torch.testing.assert_close(values["pseudo_loss"], 2 * (losses * kept).mean())
    torch.testing.assert_close(values["loss"], student(batch["streams"][SINGLE], Clock())["loss"])
    assert values["pseudo/kept"] == kept.float().mean() and "pseudo/precision" not in values
    values["pseudo_loss"].backward()
    assert all(param.grad is None for param in task.average.parameters())
    assert all(param.grad is not None for param in student.parameters())


def test_unlabeled_images_wait_for_the_end_of_the_warmup() -> None:
    student = classifier()
    task = SemiSupervisedTask(
        student, ClassLabels(student, Images(3), threshold=0.0), settings(warmup=Duration(3, "it"))
    )
    batch = joint_batch({"label": torch.tensor([0, 2])})
    assert ["pseudo_loss" in task(batch, Clock(step=step, total_steps=9)) for step in (2, 3)] == [False, True]
    average = task.hooks(INFO)[-1]
    with torch.no_grad():
        student.head[1].weight.add_(1.0)
    for step, is_copy in ((3, True), (4, False)):
        average.after_step(type("Run", (), {"clock": Clock(step=step, total_steps=9)})())
        assert task.average is not None and torch.equal(task.average.head[1].weight, student.head[1].weight) == is_copy
        with torch.no_grad():
            student.head[1].weight.add_(1.0)


def test_identities_make_the_host_wait_when_they_are_clustered_only() -> None:
    student = reidentification()
    labeler = IdentityLabels(student, Images(3, [0, 0, 1]), every=Duration(3, "it"), min_samples=1)
    task, (hook,) = SemiSupervisedTask(student, labeler, settings()), labeler.hooks()
    batch, waits = joint_batch({"label": torch.tensor([0, 2])}), []
    for step in range(1, 7):
        with HostWaits() as of_step:
            task(batch, Clock(step=step - 1, total_steps=9))
            hook.after_step(type("Run", (), {"clock": Clock(step=step, total_steps=9)})())
        waits.append(of_step.calls.total())
    assert labeler.labels.max() >= 0 and waits[0] == waits[1] == waits[3] == waits[4] < waits[2]
    with HostWaits() as of_student:
        student(batch["streams"][SINGLE], Clock())
    assert waits[3] == of_student.calls.total()


@pytest.mark.parametrize("kind", ["classes", "pixels"])
def test_the_host_waits_for_nothing_but_what_the_task_waits_for(kind: str) -> None:
    student: Any = classifier() if kind == "classes" else segmentation()
    labeler = ClassLabels(student, Images(3), flexible=True) if kind == "classes" else PixelLabels(student, Images(3))
    task, side = SemiSupervisedTask(student, labeler, settings()), 8 if kind == "classes" else 32
    labels = {"label": torch.tensor([0, 2])} if kind == "classes" else {"mask": torch.zeros(2, side, side).byte()}
    batch = joint_batch(labels, side=side)
    for stream in batch["streams"].values() if kind == "pixels" else ():
        stream["image_sizes"] = [(side, side)] * len(stream["id"])
    batch["streams"][UNLABELED] |= {key: value[:1].expand(3, *value.shape[1:]) for key, value in labels.items()}
    with HostWaits() as of_student:
        student(batch["streams"][SINGLE], Clock())
    with HostWaits() as waits:
        values = task(batch, Clock())
        for hook in labeler.hooks():
            hook.after_step(None)  # type: ignore[arg-type]
    assert waits.calls == of_student.calls + of_student.calls and "pseudo/precision" in values


SMALL_RCNN = partial(
    mask_rcnn,
    proposals=ProposalOptions(pre_nms_topk_train=20, post_nms_topk_train=20),
    pooling=PoolingOptions(),
    box=BoxOptions(fc_dim=16),
    mask=MaskOptions(channels=16, num_convs=1),
)


@pytest.mark.parametrize("detector", [Fcos, SMALL_RCNN], ids=["fcos", "mask_rcnn"])
def test_detectors_learn_from_pseudo_boxes(detector: Any) -> None:
    student = detection(detector, masks=True)
    task = SemiSupervisedTask(student, BoxLabels(student, Images(3), threshold=0.0), settings())
    labels: dict[str, Any] = {
        "boxes": [torch.tensor([[4.0, 4, 30, 30]]), torch.zeros(0, 4)],
        "labels": [torch.tensor([1]), torch.zeros(0, dtype=torch.int64)],
    }
    if student.detector.masks:
        labels["masks"] = [torch.tensor([[[300, 310]]], dtype=torch.int32), torch.zeros(0, 0, 2, dtype=torch.int32)]
    batch = joint_batch(labels, side=64)
    for stream in batch["streams"].values():
        stream["image_sizes"] = [(64, 64)] * len(stream["id"])
    values = task(batch, Clock())
    assert values["pseudo_loss"].isfinite() and values["pseudo_loss"] > 0
    values["pseudo_loss"].backward()
    assert all(param.grad is not None for name, param in student.named_parameters() if "cls" in name)
