"""Detections: boxes, upright or oriented, with instance masks and keypoints where the detector has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from PIL.Image import Image

from opabinia.contracts import DrawOptions, Presenter, Sample
from opabinia.contracts.masks import decode_rle, mask_outlines
from opabinia.contracts.presenting import OPTIONS, Predicted
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.evaluation.detection.rle import paste_masks
from opabinia.visualization.detections import annotated_objects, predicted_objects
from opabinia.visualization.drawing import draw_objects


class DetectionPresenter(Presenter):
    """Show ``boxes``, ``scores`` and ``labels``, with ``masks`` and ``keypoints``."""

    no_heatmap = "a detector's boxes show where its predictions come from; there is nothing else to explain"

    def readable(self, prediction: Predicted) -> dict[str, Any]:
        """Return ``detections``, each with ``class``, ``score``, ``box`` (left, top, right, bottom; oriented: center x,
        center y, width, height, counterclockwise angle in degrees, and ``corners``, four of x and y) and, if there are
        any, ``keypoints`` (x, y and score by name), ``mask`` (COCO's compressed run-length encoding of the original
        image) and ``polygons`` (its outlines, see :func:`opabinia.contracts.masks.mask_outlines`)."""
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
