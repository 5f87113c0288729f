"""The presenter of a task, by default chosen by the keys of its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL.Image import Image

from opabinia.contracts import DatasetInfo, DrawOptions, Presenter, Sample, SourceInfo, Task


def presenter_of(task: Task, dataset_info: DatasetInfo, shown: Mapping[str, Any]) -> Presenter:
    """Return the presenter of a task, or if it has none of its own the one for the keys of what is shown;
    :class:`opabinia.contracts.Presenter` itself for unknown ones.

    Args:
        task: to show predictions of.
        dataset_info: description of its training data.
        shown: a prediction, readable or not, or a sample, if nothing is predicted for it.
    """
    return task.presenter() or _kind_of(shown)(dataset_info)


def draw_sample(sample: Sample, info: SourceInfo, options: DrawOptions) -> Image:
    """Draw a sample as its source gives it, before transforms: an image with its segmentation map, or with the boxes,
    masks and keypoints of its annotated objects, or frames of a video side by side, from the first to the last.

    Args:
        sample: sample to draw.
        info: description of its source.
        options: options of the drawing.

    Raises:
        OSError, ValueError: the video cannot be read.
    """
    from opabinia.visualization.drawing import to_pil
    from opabinia.visualization.video_strips import SampledClip, draw_strip

    if "video" in sample:
        return draw_strip(sample["video"], [SampledClip(list(range(sample["video"].frames)), "", 0, "")])
    presenter = _kind_of(sample)(DatasetInfo(samples=0, colors=info.colors))
    return presenter.draw_ground_truth(sample, info.classes, options) or to_pil(sample["image"])


def _kind_of(shown: Mapping[str, Any]) -> type[Presenter]:
    # Imported here because a task with a presenter needs no other.
    from opabinia.visualization.presenters.classes import ClassPresenter
    from opabinia.visualization.presenters.detections import DetectionPresenter
    from opabinia.visualization.presenters.panoptic import PanopticPresenter
    from opabinia.visualization.presenters.segmentation import SegmentationPresenter

    kinds: dict[type[Presenter], set[str]] = {
        PanopticPresenter: {"segments"},
        SegmentationPresenter: {"segmentation", "pixel_logits", "classes", "mask"},
        DetectionPresenter: {"boxes", "detections", "ground_truth"},
        ClassPresenter: {"probabilities", "top"},
    }
    return next((kind for kind, keys in kinds.items() if keys & shown.keys()), Presenter)
