"""Samples of a dataset drawn with their ground truth."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from opabinia.contracts import DrawOptions, Sample
from opabinia.visualization.drawing import draw_objects, to_pil
from opabinia.visualization.presenters.detections import annotated_objects
from opabinia.visualization.segmentation import draw_map
from opabinia.visualization.video_strips import SampledClip, draw_strip


def draw_sample(
    sample: Sample,
    classes: Sequence[str],
    options: DrawOptions = DrawOptions(),
    colors: Sequence[tuple[int, int, int]] = (),
) -> Image.Image:
    """Draw a sample as its source gives it, before transforms: an image with its segmentation map, or with the boxes,
    masks and keypoints of its annotated objects, or frames of a video side by side, from the first to the last.

    Args:
        sample: to draw.
        classes: their names.
        options: options of the drawing.
        colors: colors of the classes in segmentation maps, as in :func:`opabinia.visualization.segmentation.draw_map`.

    Raises:
        OSError, ValueError: the video cannot be read.
    """
    if "video" in sample:
        return draw_strip(sample["video"], [SampledClip(list(range(sample["video"].frames)), "", 0, "")])
    if "ground_truth_map" in sample:
        return draw_map(sample["image"], sample["ground_truth_map"].labels, classes, colors, options)
    objects = annotated_objects(sample["ground_truth"], classes) if "ground_truth" in sample else []
    if not objects:
        return to_pil(sample["image"])
    return draw_objects(sample["image"], objects, side=options.side, text=options.text)
