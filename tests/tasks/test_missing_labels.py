"""Tasks on the same images of which some lack the labels of some tasks: masked, and never learned as empty labels."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo, GlobalBatch, Sample
from opabinia.data.collate import collate
from opabinia.data.missing_labels import MarkMissingLabels
from opabinia.data.sources import DigitScenes, Mixture, digit_maps
from opabinia.data.sources.image_labels import ImageLabels
from opabinia.data.sources.mixture import MixedStream
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

LACKING = ["boxes", "mask", "boxes label", "", "boxes mask label", "label"]
READS = {"boxes": "boxes", "maps": "mask", "present": "label"}


@cache
def scenes() -> Any:
    return digit_maps(split="val", panoptic=True)


class PartlyLabeled(ImageLabels):
    """Scenes that lack these labels."""

    partly_labeled = ("boxes", "mask", "label")

    def __init__(self, lacking: list[str]) -> None:
        super().__init__(source=scenes())
        self._lacking = lacking

    def __len__(self) -> int:
        return len(self._lacking)

    def __getitem__(self, index: int) -> Sample:
        keys = self._lacking[index].split()
        keys += ["labels"] if "boxes" in keys else []
        return {key: value for key, value in super().__getitem__(index).items() if key not in keys}


def read(lacking: list[str]) -> Batch:
    mixture = Mixture(streams={"boxes": MixedStream(source=PartlyLabeled(lacking))})
    stream = mixture.streams["boxes"]
    samples = [stream.source[index] for index in range(len(lacking))]
    for transform in stream.transforms:
        samples = [transform(sample) for sample in samples]
    kept = ("image", "id", "boxes", "labels", "mask", "label", "missing", "original_size")
    return collate([{key: sample[key] for key in kept if key in sample} for sample in samples], 32)


def model() -> Any:
    torch.manual_seed(0)
    info = DatasetInfo(len(LACKING), channels=1, classes=scenes().classes, multi_label=True, boxes=True, maps=True)
    fcos = partial(Fcos, neck=partial(fpn_p3_p7_from_p5, channels=32), num_convs=1)
    decoder = partial(SemanticFpn, neck=partial(fpn, channels=32), channels=32)
    tasks = {
        "boxes": Subtask(task=partial(Detection, detector=fcos, backbone=shared)),
        "maps": Subtask(task=partial(Segmentation, decoder=decoder, backbone=shared), stream="boxes"),
        "present": Subtask(task=partial(Classification, backbone=shared), stream="boxes"),
    }
    streams = DatasetInfo(len(LACKING), channels=1, streams={"boxes": info})
    return Multitask(streams, backbone=partial(timm, model="test_convnext"), tasks=tasks)


def losses(task: Any, batch: Batch) -> dict[str, Tensor]:
    count = len(batch["id"])
    row = GlobalBatch(step=0, epoch=0, first=0, count=count)
    torch.manual_seed(0)
    values = task({"streams": {"boxes": batch}, "id": batch["id"], "row": row, "rows": {"boxes": row}}, Clock())
    return {name: torch.as_tensor(value).detach() for name, value in values.items() if "loss" in name}


def test_each_task_learns_from_the_samples_that_have_its_labels() -> None:
    """From one forward pass; the loss is that of the labeled samples, times their share."""
    task, batch = model(), read(LACKING)
    passes: list[Tensor] = []
    task.backbone.model.stem.register_forward_hook(lambda module, inputs, output: passes.append(output))
    found = losses(task, batch)
    assert len(passes) == 1
    for name, key in READS.items():
        labeled = [index for index, lacking in enumerate(LACKING) if key not in lacking.split()]
        alone = read([LACKING[index] if index in labeled else "boxes mask label" for index in range(len(LACKING))])
        assert 0 < len(labeled) < len(LACKING)
        whole = read([""] * len(LACKING))
        chosen = {
            column: value[labeled] if isinstance(value, Tensor) else [value[index] for index in labeled]
            for column, value in whole.items()
        }
        expected, share = losses(task, chosen), len(labeled) / len(LACKING)
        for term in (term for term in found if term.startswith(f"{name}/")):
            assert torch.allclose(found[term], expected[term] * share, rtol=1e-4), term
            assert torch.equal(losses(task, alone)[term], found[term]), "other samples' labels do not matter"
    empty = {**batch, "label": torch.where(batch["label"] == 0, 1.0, batch["label"])}
    empty["label"][[0, 1, 3]] = batch["label"][[0, 1, 3]]
    assert torch.equal(losses(task, empty)["present/loss"], found["present/loss"]), "empty labels are not read"


def test_a_batch_without_any_label_of_a_task_does_not_change_its_head() -> None:
    task, batch = model(), read(["boxes", "boxes mask"])
    row = GlobalBatch(step=0, epoch=0, first=0, count=2)
    values = task({"streams": {"boxes": batch}, "id": batch["id"], "row": row, "rows": {"boxes": row}}, Clock())
    values["total_loss"].backward()
    assert all(not param.grad.any() for param in task.tasks["boxes"].parameters() if param.grad is not None)
    assert any(param.grad.any() for param in task.tasks["maps"].parameters() if param.grad is not None)


def test_a_task_that_needs_several_samples_and_has_one_label_or_none() -> None:
    """Batch norm over pooled pixels cannot learn from a single image: it is repeated."""
    task = model()
    maps = task.tasks["maps"]
    counts: list[int] = []
    maps.decoder.register_forward_pre_hook(lambda module, inputs: counts.append(len(inputs[0][0])))
    for lacking, share in ((["mask", "", "mask"], 1 / 3), (["mask", "mask", "mask"], 0.0)):
        counts.clear()
        maps.min_samples_per_rank = 1
        expected = losses(task, read(lacking))["maps/loss"]
        maps.min_samples_per_rank = 2
        assert torch.allclose(losses(task, read(lacking))["maps/loss"], expected) and counts == [1, 2]
        assert (expected > 0) == (share > 0)
    maps.requires_full_batch = True
    with pytest.raises(DataMismatch, match=r"task\.tasks\.maps: its losses compare samples"):
        losses(task, read(["mask", "", ""]))


def test_a_rank_without_labeled_samples_has_no_part_in_the_normalizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, here one after the other, learn as one process does from all their samples."""
    task, batch = model(), read(["", "label", "boxes mask", "boxes mask label"])
    expected = gradients(task, batch, slice(0, 4), 1)
    monkeypatch.setattr("opabinia.tasks.multitask.task.world_size", lambda: 2)
    own: list[list[Tensor]] = [[], []]
    for rank, sums in enumerate(own):
        monkeypatch.setattr("opabinia.runtime.collectives.all_reduce_mean", partial(recorded, sums))
        gradients(task, batch, slice(2 * rank, 2 * rank + 2), 2)
    means = [sum(sums) / 2 for sums in zip(*own, strict=True)]
    ranks = []
    for rank in range(2):
        left = iter(means)
        monkeypatch.setattr("opabinia.runtime.collectives.all_reduce_mean", lambda tensors, left=left: [next(left)])
        ranks.append(gradients(task, batch, slice(2 * rank, 2 * rank + 2), 2))
    assert means and ranks[0].keys() >= expected.keys()
    for name, gradient in expected.items():
        mean = (ranks[0][name] + ranks[1].get(name, 0)) / 2
        assert torch.allclose(mean, gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), name


def recorded(sums: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    sums.append(tensors[0])
    return tensors


def gradients(task: Any, batch: Batch, rows: slice, world: int) -> dict[str, Tensor]:
    """Return the gradients of a rank that has these samples."""
    own = {key: value[rows] if isinstance(value, Tensor | list) else value for key, value in batch.items()}
    row = GlobalBatch(step=0, epoch=0, first=0, count=len(own["id"]) * world)
    task.zero_grad()
    values = task({"streams": {"boxes": own}, "id": own["id"], "row": row, "rows": {"boxes": row}}, Clock())
    values["total_loss"].backward()
    return {name: param.grad.clone() for name, param in task.named_parameters() if param.grad is not None}


def test_samples_of_partly_labeled_data_are_neither_mixed_nor_combined() -> None:
    source = PartlyLabeled(["", "label"])
    for keys, text in (
        ({"mix": [lambda batch, info: batch]}, r"streams\.a\.mix: samples that may lack labels cannot be mixed"),
        ({"transforms": [Mosaic(size=8)]}, r"streams\.a\.transforms\.0: samples that may lack labels cannot be comb"),
    ):
        with pytest.raises(ValueError, match=text):
            Mixture(streams={"a": MixedStream(source=source, **keys)})


def test_samples_with_boxes_and_without_masks_or_keypoints() -> None:
    """They have invisible keypoints, and masks of no rows."""
    for key in ("masks", "keypoints"):
        source: Any = DigitScenes(split="val", **{key: True})
        source.partly_labeled = ("boxes", key)
        of_objects = {"boxes": ("boxes", "labels", key, "visibility"), key: (key, "visibility"), "": ("ground_truth",)}
        samples = [
            {name: value for name, value in source[index].items() if name not in (*of_objects[lacking], "ground_truth")}
            for index, lacking in enumerate(("", key, "boxes"))
        ]
        batch = collate([MarkMissingLabels(source)(sample) for sample in samples], 32)
        assert batch["missing"] == ["", key, f"boxes {key}"]
        counts = [len(boxes) for boxes in batch["boxes"]]
        assert min(counts[:2]) > 0 and counts[2] == 0 and list(map(len, batch["labels"])) == counts
        rows = counts if key == "keypoints" else [counts[0], 0, 0]
        assert list(map(len, batch[key])) == rows
        if key == "keypoints":
            assert batch["visibility"][0].any() and not batch["visibility"][1].any()


def test_views_of_partly_labeled_data() -> None:
    """Such as those of a self-supervised task on the images of a classifier."""
    mark = MarkMissingLabels(PartlyLabeled([""]))
    sample = mark({"views": (torch.zeros(1, 8, 8),), "id": "a", "boxes": (), "mask": ()})
    assert sample["missing"] == "label" and len(sample["label"]) == len(scenes().classes)
