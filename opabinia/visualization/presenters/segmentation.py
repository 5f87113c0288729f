"""Segmentation maps: the class of each pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image, fromarray
from torch import Tensor
from torch.nn.functional import interpolate

from opabinia.contracts import IGNORE_LABEL, DrawOptions, Presenter, Sample
from opabinia.contracts.masks import compressed_mask
from opabinia.contracts.presenting import OPTIONS, Predicted, save_image
from opabinia.visualization.segmentation import draw_map


class SegmentationPresenter(Presenter):
    """Show ``segmentation``, or the classes with the highest ``pixel_logits`` (K x H x W, of any size)."""

    extra_files = True
    no_heatmap = "a segmentation map shows where its classes come from; there is nothing else to explain"

    def readable(self, prediction: Predicted) -> dict[str, Any]:
        """Return ``classes``: those in the image, largest first, each with its ``share`` of the pixels and its ``mask``
        (COCO's compressed run-length encoding)."""
        labels = class_map(prediction)
        counts = labels.flatten().bincount(minlength=len(self.dataset_info.classes))
        order = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
        return {
            "classes": [
                {
                    "class": self.dataset_info.classes[label],
                    "share": round(int(counts[label]) / labels.numel(), 4),
                    "mask": compressed_mask((labels == label).numpy()),
                }
                for label in order.tolist()
            ]
        }

    def caption(self, readable: Mapping[str, Any], *, min_score: float = 0.5) -> list[str]:
        """Return the three largest classes with their shares of the pixels."""
        return [f"{row['class']} {row['share']:.1%}" for row in readable["classes"][:3]]

    def ground_truth_caption(self, sample: Sample, classes: Sequence[str]) -> list[str]:
        """Return the three largest annotated classes with their shares of the pixels."""
        labels = sample["mask"].flatten()
        counts = labels[labels != IGNORE_LABEL].bincount(minlength=len(classes))
        values, numbers = counts.topk(min(3, len(classes)))
        pairs = zip(numbers.tolist(), values.tolist(), strict=True)
        return [f"{classes[number]} {count / labels.numel():.1%}" for number, count in pairs if count]

    def draw(self, sample: Sample, prediction: Predicted, options: DrawOptions = OPTIONS) -> Image:
        """Return the image with the color of the predicted class of each pixel; segments are separated by lines."""
        labels = class_map(prediction)
        if "pixel_logits" in prediction:
            labels = interpolate(labels[None, None].float(), sample["image"].shape[-2:])[0, 0].long()
        segments = cropped(prediction, "segments") if "segments" in prediction else None
        info = self.dataset_info
        return draw_map(sample["image"], labels, info.classes, info.colors, options, segments)

    def draw_ground_truth(self, sample: Sample, classes: Sequence[str], options: DrawOptions = OPTIONS) -> Image | None:
        """Return the image with the color of the annotated class of each pixel."""
        if "mask" not in sample:
            return None
        return draw_map(sample["image"], sample["mask"], classes, self.dataset_info.colors, options)

    def save(self, out: Path, name: str, sample: Sample, prediction: Predicted, options: DrawOptions) -> Image | None:
        """Write the drawing, and :meth:`map_pixels` as ``maps/NAME.png``."""
        drawn = super().save(out, name, sample, prediction, options)
        save_image(out / "maps" / f"{name}.png", fromarray(self.map_pixels(prediction)))
        return drawn

    def map_pixels(self, prediction: Predicted) -> NDArray[np.uint8]:
        """Return the predicted class of each pixel as gray value."""
        return class_map(prediction).numpy().astype(np.uint8)


def class_map(prediction: Predicted) -> Tensor:
    """Return the predicted class of each pixel (h x w)."""
    return prediction["pixel_logits"].argmax(0) if "pixel_logits" in prediction else cropped(prediction, "segmentation")


def cropped(prediction: Predicted, name: str) -> Tensor:
    """Return a map (h x w) without the padding of its batch."""
    height, width = prediction["image_size"].tolist()
    pixels: Tensor = prediction[name][:height, :width]
    return pixels
