"""Pictures with what is in them and what was found there: what evaluations of detection start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Batch, DataMismatch, GroundTruth, Predictions
from opabinia.contracts.masks import compressed
from opabinia.evaluation.detection.rle import paste

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


class Picture(NamedTuple):
    """What a file says of a picture, and the D things found in it, in its own pixels.

    Attributes:
        name: id of the sample.
        truth: of the file; segments as compressed run lengths, None for a thing whose pixels nobody tells.
        boxes: left, top, right, bottom (D x 4).
        scores: D.
        labels: class numbers (D).
        masks: compressed run lengths of each thing found; None where the detector gives none.
        keypoints: x, y, score (D x P x 3); None where the detector gives none.
    """

    name: str
    ground_truth: GroundTruth
    boxes: Floats
    scores: Floats
    labels: Ints
    masks: list[str] | None
    keypoints: Floats | None

    def best(self, most: int) -> Picture:
        """The picture with the ``most`` things of the highest scores."""
        if len(self.scores) <= most:
            return self
        return self.only(np.sort(np.argsort(-self.scores, kind="stable")[:most]))

    def only(self, rows: NDArray[Any]) -> Picture:
        """The picture with some of what was found: numbers of rows, or a bool for each."""
        numbers = np.arange(len(self.scores))[rows]
        return self._replace(
            boxes=self.boxes[numbers],
            scores=self.scores[numbers],
            labels=self.labels[numbers],
            masks=None if self.masks is None else [self.masks[number] for number in numbers],
            keypoints=None if self.keypoints is None else self.keypoints[numbers],
        )


class Pictures:
    """Keeps the pictures of this process; what evaluators of detection have in common.

    Args:
        masks: whether masks are judged, too; otherwise they are dropped.
    """

    def __init__(self, masks: bool = False) -> None:
        self._masks = masks
        self._pictures: list[Picture] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep a batch: ``predictions`` as told there, ``batch["ground_truth"]`` and ``batch["id"]``. Waits once for the
        device, to copy everything at once.

        Raises:
            Unfit: things lie elsewhere in the images than in the pictures that they were made of.
        """
        if not self._pictures:
            refuse_moved(batch)
        found = _on_host(predictions, self._masks)
        masks, keypoints = found.get("masks"), found.get("keypoints")
        for number, (name, ground_truth) in enumerate(zip(batch["id"], batch["ground_truth"], strict=True)):
            there = found["labels"][number] >= 0
            boxes = found["boxes"][number][there]
            self._pictures.append(
                Picture(
                    str(name),
                    _with_runs(ground_truth) if self._masks else replace(ground_truth, segments=None),
                    boxes,
                    found["scores"][number][there],
                    found["labels"][number][there].astype(np.int64),
                    None if masks is None else paste(masks[number][there], boxes, ground_truth.size),
                    None if keypoints is None else keypoints[number][there],
                )
            )

    def state(self) -> list[Picture]:
        """The pictures of this process."""
        return self._pictures


def refuse_moved(batch: Batch) -> None:
    """Tell transforms that crop, turn or mirror pictures: what is found in such images cannot be brought back to them.

    Resizing moves nothing: by what share of a picture a thing is from its edges stays the same.

    Raises:
        Unfit: most things of the batch lie elsewhere in their images than their pictures' files say.
    """
    if not {"boxes", "image_sizes", "original_size"} <= batch.keys():
        return
    moved: list[bool] = []
    for boxes, ground_truth, image, picture in zip(
        *(batch[key] for key in ("boxes", "ground_truth", "image_sizes", "original_size")), strict=True
    ):
        there = ground_truth.boxes[~ground_truth.crowd]
        if len(boxes) == len(there):  # others were left out, or cut away
            corners = np.concatenate([there[:, :2], there[:, :2] + there[:, 2:]], 1) / (picture * 2)[::-1]
            seen = boxes.cpu().numpy() / (image * 2)[::-1]
            moved += (np.abs(seen - corners).max(1, initial=0) > _MOVED).tolist()
    if sum(moved) > max(len(moved) / 2, 3):
        raise DataMismatch(
            f"{sum(moved)} of {len(moved)} things lie elsewhere in the images than in the pictures as they were read: "
            "data.val.transforms may resize pictures, and nothing else"
        )


_MOVED = 0.03
"""By so much of a picture's side a resize never moves a box; what was cut at the picture's edges may be."""


def in_order(states: Sequence[Sequence[Picture]]) -> list[Picture]:
    """Pictures of all processes, sorted by their numbers or names in the file: where scores are equal, the order of
    pictures decides which comes first, and so it must not depend on who evaluated them.

    Raises:
        Unfit: something was found whose box or score is not finite.
    """
    pictures = sorted((picture for state in states for picture in state), key=_place)
    for picture in pictures:
        values = picture.boxes, picture.scores, np.zeros(0) if picture.keypoints is None else picture.keypoints
        if not all(np.isfinite(one).all() for one in values):
            raise DataMismatch(
                f"something found in {picture.name} has a box, a score or a keypoint that is not finite; if this is so "
                "everywhere, the model has diverged"
            )
    return pictures


def _place(picture: Picture) -> tuple[bool, int, str, str]:
    """Numbers before names; of the same number, the id of the sample."""
    number = picture.ground_truth.image_id
    if isinstance(number, str):
        return True, 0, number, picture.name
    return False, int(number), "", picture.name


def _on_host(predictions: Mapping[str, Tensor], masks: bool) -> dict[str, NDArray[Any]]:
    """Boxes, scores, labels, keypoints and masks as arrays, by one copy from the device."""
    names = [name for name in ("boxes", "scores", "labels", "keypoints", "masks") if name in predictions]
    if not masks and "masks" in names:
        names.remove("masks")
    shapes = [predictions[name].shape for name in names]
    # Whole numbers up to 2^24 stay what they are in float32.
    kind = torch.promote_types(predictions["boxes"].dtype, torch.float32)
    rows, things = shapes[0][:2]
    columns = [predictions[name].to(kind).reshape(rows, things, -1 if things else 0) for name in names]
    widths = np.cumsum([column.shape[2] for column in columns])[:-1]
    parts = np.split(torch.cat(columns, 2).cpu().numpy(), widths, axis=2)
    return {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}


def _with_runs(ground_truth: GroundTruth) -> GroundTruth:
    """The truth with its segments as compressed run lengths."""
    if ground_truth.segments is None:
        return replace(ground_truth, segments=[None] * len(ground_truth.labels))
    runs = [compressed(segment, ground_truth.size) if segment else None for segment in ground_truth.segments]
    return replace(ground_truth, segments=runs)
