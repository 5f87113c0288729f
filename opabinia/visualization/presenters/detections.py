"""Detections: boxes, upright or oriented, with instance masks and keypoints where the detector has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL.Image import Image

from opabinia.contracts import Detections, DrawOptions, GroundTruth, Presenter, Sample
from opabinia.contracts.masks import decode_rle
from opabinia.contracts.presenting import OPTIONS, Predicted
from opabinia.contracts.rotated_boxes import box_corners, upright_boxes
from opabinia.evaluation.detection.rle import paste_masks
from opabinia.visualization.drawing import DrawnObject, draw_objects
from opabinia.visualization.outlines import mask_outlines


class DetectionPresenter(Presenter):
    """Show ``boxes``, ``scores`` and ``labels``, with ``masks`` and ``keypoints``."""

    no_heatmap = "a detector's boxes show where its predictions come from; there is nothing else to explain"

    def readable(self, prediction: Predicted) -> dict[str, Any]:
        """Return ``detections``, each with ``class``, ``score``, ``box`` (left, top, right, bottom; oriented: center x,
        center y, width, height, counterclockwise angle in degrees, and ``corners``, four of x and y) and, if there are
        any, ``keypoints`` (x, y and score by name), ``mask`` (COCO's compressed run-length encoding of the original
        image) and ``polygons`` (its outlines, see :func:`opabinia.visualization.outlines.mask_outlines`)."""
        detections = []
        count = int((prediction["labels"] >= 0).sum())
        masks: list[dict[str, Any]] = []
        if "masks" in prediction:
            height, width = prediction["image_size"].tolist()
            arrays = prediction["masks"][:count].numpy(), prediction["boxes"][:count].numpy()
            masks = [{"size": [height, width], "counts": text} for text in paste_masks(*arrays, (height, width))]
        for index in range(count):
            detection: dict[str, Any] = {
                "class": self.dataset_info.classes[int(prediction["labels"][index])],
                "score": round(float(prediction["scores"][index]), 4),
                "box": [round(value, 2) for value in prediction["boxes"][index].tolist()],
            }
            if len(detection["box"]) == 5:
                corners = box_corners(prediction["boxes"][index]).tolist()
                detection["corners"] = [[round(value, 2) for value in corner] for corner in corners]
            if "keypoints" in prediction:
                points = prediction["keypoints"][index].tolist()
                detection["keypoints"] = {
                    name: [round(value, 2) for value in point]
                    for name, point in zip(self.dataset_info.keypoints, points, strict=True)
                }
            if masks:
                mask = masks[index]
                detection |= {"mask": mask, "polygons": mask_outlines(decode_rle(mask, mask["size"]))}
            detections.append(detection)
        return {"detections": detections}

    def caption(self, readable: Mapping[str, Any], *, min_score: float = 0.5) -> list[str]:
        """Return the number of detections of the three most frequent classes."""
        return most_frequent([row["class"] for row in readable["detections"] if row["score"] >= min_score])

    def ground_truth_caption(self, sample: Sample, classes: Sequence[str]) -> list[str]:
        """Return the number of annotated objects of the three most frequent classes."""
        return most_frequent([classes[label] for label in sample["ground_truth"].labels.tolist()])

    def draw(self, sample: Sample, prediction: Predicted, options: DrawOptions = OPTIONS) -> Image:
        """Return the image with boxes, masks and keypoints of the detections."""
        height, width = sample["image"].shape[-2:]
        objects = predicted_objects(prediction, self.dataset_info.classes, (height, width), options.min_score)
        return draw_objects(sample["image"], objects, side=options.side, text=options.text)

    def draw_ground_truth(self, sample: Sample, classes: Sequence[str], options: DrawOptions = OPTIONS) -> Image | None:
        """Return the image with boxes, masks and keypoints of the annotations, crowds included."""
        if "ground_truth" not in sample:
            return None
        objects = annotated_objects(sample["ground_truth"], classes)
        return draw_objects(sample["image"], objects, side=options.side, text=options.text)


def most_frequent(names: Sequence[str]) -> list[str]:
    """Return the three most frequent names with their numbers, such as ``2 x cat``."""
    return [f"{count} x {name}" for name, count in Counter(names).most_common(3)]


def predicted_objects(
    prediction: Predicted, classes: Sequence[str], size: tuple[int, int], min_score: float = 0.5
) -> list[DrawnObject]:
    """Return the detections in an image, best first.

    Args:
        prediction: prediction of a detector.
        classes: their names.
        size: height and width of the image.
        min_score: minimum score of the detections shown.
    """
    shown = ((prediction["labels"] >= 0) & (prediction["scores"] >= min_score)).nonzero().flatten()
    rows = {name: values[shown] for name, values in prediction.items() if name in Detections._fields}
    masks = paste_masks(rows["masks"].numpy(), rows["boxes"].numpy(), size) if "masks" in rows else [None] * len(shown)
    points = rows["keypoints"][..., :2].tolist() if "keypoints" in rows else [()] * len(shown)
    boxes = rows["boxes"]
    corners = box_corners(boxes).tolist() if boxes.shape[1] == 5 else [()] * len(shown)
    columns = rows["labels"].tolist(), rows["scores"].tolist(), upright_boxes(boxes).tolist(), masks, points, corners
    return [
        DrawnObject(
            label=label,
            text=f"{classes[label]}: {score:.2f}",
            box=box,
            mask=None if counts is None else decode_rle({"size": list(size), "counts": counts}, size).astype(bool),
            points=keypoints,
            corners=polygon,
        )
        for label, score, box, counts, keypoints, polygon in zip(*columns, strict=True)
    ]


def annotated_objects(ground_truth: GroundTruth, classes: Sequence[str]) -> list[DrawnObject]:
    """Return the annotated objects of an image, crowds included."""
    segments = ground_truth.segments or [None] * len(ground_truth.labels)
    keypoints = np.zeros((len(segments), 0, 3)) if ground_truth.keypoints is None else ground_truth.keypoints
    corners = [()] * len(segments) if ground_truth.corners is None else ground_truth.corners.tolist()
    boxes = ground_truth.boxes.tolist()
    columns = ground_truth.labels.tolist(), ground_truth.crowd, boxes, segments, keypoints, corners
    return [
        DrawnObject(
            label=label,
            text=classes[label] + (" (crowd)" if crowd else ""),
            box=(left, top, left + width, top + height),
            mask=decode_rle(segment, ground_truth.size).astype(bool) if segment else None,
            points=[(x + 0.5, y + 0.5) for x, y, visible in points if visible],  # annotations count pixels
            corners=polygon,
        )
        for label, crowd, (left, top, width, height), segment, points, polygon in zip(*columns, strict=True)
    ]
