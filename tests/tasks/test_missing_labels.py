"""Several tasks on partly labeled images: missing labels are masked, and never learned as empty labels."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo, GlobalBatch, Sample
from opabinia.data import TrainingStream
from opabinia.data.collate import collate
from opabinia.data.missing_labels import MarkMissingLabels
from opabinia.data.sources import DigitScenes, digit_maps
from opabinia.data.sources.wrapper import ImageLabels
from opabinia.data.streams.batches import join_batches
from opabinia.data.transforms.combine import Mosaic
from opabinia.models.backbones.shared import shared
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders.pyramids import SemanticFpn
from opabinia.models.detectors import Fcos
from opabinia.models.necks import fpn, fpn_p3_p7_from_p5
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection
from opabinia.tasks.multitask import Multitask
from opabinia.tasks.multitask.settings import Subtask
from opabinia.tasks.segmentation import Segmentation
from opabinia.training.streams import mark_missing_labels

MISSING = ["boxes", "mask", "boxes label", "", "boxes mask label", "label"]
KEYS = {"boxes": "boxes", "maps": "mask", "present": "label"}


@cache
def scenes() -> Any:
    return digit_maps(split="val", panoptic=True)


class PartlyLabeled(ImageLabels):
    """Scenes without some of their labels."""

    def __init__(self, missing: list[str]) -> None:
        super().__init__(source=scenes())
        self.info = replace(self.info, partly_labeled=("boxes", "mask", "label"))
        self._missing = missing

    def __len__(self) -> int:
        return len(self._missing)

    def __getitem__(self, index: int) -> Sample:
        keys = self._missing[index].split()
        keys += ["labels"] if "boxes" in keys else []
        return {key: value for key, value in super().__getitem__(index).items() if key not in keys}


def read_batch(missing: list[str]) -> Batch:
    stream = mark_missing_labels(TrainingStream(source=PartlyLabeled(missing)))
    samples = [stream.source[index] for index in range(len(missing))]
    for transform in stream.transforms:
        samples = [transform(sample) for sample in samples]
    columns = ("image", "id", "boxes", "labels", "mask", "label", "missing", "original_size")
    return collate([{key: sample[key] for key in columns if key in sample} for sample in samples], 32)


def make_model() -> Any:
    torch.manual_seed(0)
    info = DatasetInfo(len(MISSING), channels=1, classes=scenes().classes, multi_label=True, boxes=True, maps=True)
    fcos = partial(Fcos, neck=partial(fpn_p3_p7_from_p5, channels=32), num_convs=1)
    decoder = partial(SemanticFpn, neck=partial(fpn, channels=32), channels=32)
    tasks = {
        "boxes": Subtask(task=partial(Detection, detector=fcos, backbone=shared)),
        "maps": Subtask(task=partial(Segmentation, decoder=decoder, backbone=shared), stream="boxes"),
        "present": Subtask(task=partial(Classification, backbone=shared), stream="boxes"),
    }
    streams = DatasetInfo(len(MISSING), channels=1, streams={"boxes": info})
    return Multitask(streams, backbone=partial(timm, model="test_convnext"), tasks=tasks)


def compute_losses(task: Any, batch: Batch) -> dict[str, Tensor]:
    count = len(batch["id"])
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=count)
    torch.manual_seed(0)
    values = task(join_batches(global_batch, {"boxes": batch}, {"boxes": global_batch}), Clock())
    return {name: torch.as_tensor(value).detach() for name, value in values.items() if "loss" in name}


def test_each_task_learns_from_the_samples_that_have_its_labels() -> None:
    """There is one forward pass; the loss is that of the labeled samples times their share."""
    task, batch = make_model(), read_batch(MISSING)
    passes: list[Tensor] = []
    task.backbone.model.stem.register_forward_hook(lambda module, inputs, output: passes.append(output))
    losses = compute_losses(task, batch)
    assert len(passes) == 1
    for name, key in KEYS.items():
        labeled = [index for index, missing in enumerate(MISSING) if key not in missing.split()]
        only_labeled = read_batch(
            [MISSING[index] if index in labeled else "boxes mask label" for index in range(len(MISSING))]
        )
        assert 0 < len(labeled) < len(MISSING)
        fully_labeled = read_batch([""] * len(MISSING))
        labeled_batch = {
            column: value[labeled] if isinstance(value, Tensor) else [value[index] for index in labeled]
            for column, value in fully_labeled.items()
        }
        expected, share = compute_losses(task, labeled_batch), len(labeled) / len(MISSING)
        for term in (term for term in losses if term.startswith(f"{name}/")):
            assert torch.allclose(losses[term], expected[term] * share, rtol=1e-4), term
            assert torch.equal(compute_losses(task, only_labeled)[term], losses[term]), (
                "other samples' labels do not matter"
            )
    empty = {**batch, "label": torch.where(batch["label"] == 0, 1.0, batch["label"])}
    empty["label"][[0, 1, 3]] = batch["label"][[0, 1, 3]]
    assert torch.equal(compute_losses(task, empty)["present/loss"], losses["present/loss"]), "empty labels are not read"


def test_a_batch_without_any_label_of_a_task_does_not_change_its_head() -> None:
    task, batch = make_model(), read_batch(["boxes", "boxes mask"])
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=2)
    values = task(join_batches(global_batch, {"boxes": batch}, {"boxes": global_batch}), Clock())
    values["total_loss"].backward()
    heads = task.tasks["boxes"].detector, task.tasks["maps"].decoder
    learns = [any(param.grad.any() for param in head.parameters() if param.grad is not None) for head in heads]
    assert learns == [False, True]


def test_few_labeled_samples_are_repeated_if_a_task_needs_several() -> None:
    """A single labeled image is repeated, because batch norm over pooled pixels needs several."""
    task = make_model()
    maps = task.tasks["maps"]
    counts: list[int] = []
    maps.decoder.register_forward_pre_hook(lambda module, inputs: counts.append(len(inputs[0][0])))
    for missing, labeled_share in ((["mask", "", "mask"], 1 / 3), (["mask", "mask", "mask"], 0.0)):
        counts.clear()
        maps.min_samples_per_rank = 1
        expected = compute_losses(task, read_batch(missing))["maps/loss"]
        maps.min_samples_per_rank = 2
        assert torch.allclose(compute_losses(task, read_batch(missing))["maps/loss"], expected) and counts == [1, 2]
        assert (expected > 0) == (labeled_share > 0)
    maps.requires_full_batch = True
    with pytest.raises(DataMismatch, match=r"task\.tasks\.maps: its losses compare samples"):
        compute_losses(task, read_batch(["mask", "", ""]))


def test_a_rank_without_labeled_samples_does_not_change_the_normalizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, run one after the other, give the gradients of one process with all samples."""
    task, batch = make_model(), read_batch(["", "label", "boxes mask", "boxes mask label"])
    expected = compute_gradients(task, batch, slice(0, 4), 1)
    for module in ("tasks.multitask.partial_labels", "runtime.collectives"):
        monkeypatch.setattr(f"opabinia.{module}.world_size", lambda: 2)
    sums_by_rank: list[list[Tensor]] = [[], []]
    for rank, sums in enumerate(sums_by_rank):
        monkeypatch.setattr("opabinia.runtime.collectives.all_reduce_mean", partial(record_sums, sums))
        compute_gradients(task, batch, slice(2 * rank, 2 * rank + 2), 2)
    means = [sum(sums) / 2 for sums in zip(*sums_by_rank, strict=True)]
    ranks = []
    for rank in range(2):
        remaining = iter(means)
        monkeypatch.setattr(
            "opabinia.runtime.collectives.all_reduce_mean", lambda tensors, remaining=remaining: [next(remaining)]
        )
        ranks.append(compute_gradients(task, batch, slice(2 * rank, 2 * rank + 2), 2))
    assert means and ranks[0].keys() >= expected.keys()
    for name, gradient in expected.items():
        mean = (ranks[0][name] + ranks[1].get(name, 0)) / 2
        assert torch.allclose(mean, gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), name


def record_sums(sums: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    sums.append(tensors[0])
    return tensors


def compute_gradients(task: Any, batch: Batch, rows: slice, world: int) -> dict[str, Tensor]:
    """Return the gradients of a rank that has these samples."""
    rank_batch = {key: value[rows] if isinstance(value, Tensor | list) else value for key, value in batch.items()}
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=len(rank_batch["id"]) * world)
    task.zero_grad()
    values = task(join_batches(global_batch, {"boxes": rank_batch}, {"boxes": global_batch}), Clock())
    values["total_loss"].backward()
    return {name: param.grad.clone() for name, param in task.named_parameters() if param.grad is not None}


def test_samples_of_partly_labeled_data_are_neither_mixed_nor_combined() -> None:
    source = PartlyLabeled(["", "label"])
    for keys, message in (
        ({"mix": [lambda batch, info: batch]}, r"mix: samples that may lack labels cannot be mixed"),
        ({"transforms": [Mosaic(size=8)]}, r"train\.transforms\.0: samples that may lack labels cannot be comb"),
    ):
        with pytest.raises(ValueError, match=message):
            mark_missing_labels(TrainingStream(source=source, **keys))


def test_samples_with_boxes_and_without_masks_or_keypoints() -> None:
    """They get invisible keypoints and empty masks."""
    for key in ("masks", "keypoints"):
        source: Any = DigitScenes(split="val", **{key: True})
        source.info = replace(source.info, partly_labeled=("boxes", key))
        removed_keys = {
            "boxes": ("boxes", "labels", key, "visibility"),
            key: (key, "visibility"),
            "": ("ground_truth",),
        }
        samples = [
            {
                name: value
                for name, value in source[index].items()
                if name not in (*removed_keys[missing], "ground_truth")
            }
            for index, missing in enumerate(("", key, "boxes"))
        ]
        batch = collate([MarkMissingLabels(source.info)(sample) for sample in samples], 32)
        assert batch["missing"] == ["", key, f"boxes {key}"]
        counts = [len(boxes) for boxes in batch["boxes"]]
        assert min(counts[:2]) > 0 and counts[2] == 0 and list(map(len, batch["labels"])) == counts
        rows = counts if key == "keypoints" else [counts[0], 0, 0]
        assert list(map(len, batch[key])) == rows
        if key == "keypoints":
            assert batch["visibility"][0].any() and not batch["visibility"][1].any()


def test_views_of_partly_labeled_data() -> None:
    """Views as of a self-supervised task on the images of a classifier."""
    mark = MarkMissingLabels(PartlyLabeled([""]).info)
    sample = mark({"views": (torch.zeros(1, 8, 8),), "id": "a", "boxes": (), "mask": ()})
    assert sample["missing"] == "label" and len(sample["label"]) == len(scenes().classes)
