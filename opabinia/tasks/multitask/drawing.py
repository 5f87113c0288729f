"""Predictions of several tasks drawn on one image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from opabinia.contracts import DrawOptions, Sample


def draw_together(
    tasks: Mapping[str, Any], sample: Sample, predictions: Mapping[str, Mapping[str, Tensor]], options: DrawOptions
) -> Image.Image | None:
    """Return an image with the predictions of all tasks that draw theirs, segmentation maps below the others; None if
    no task does.

    Args:
        tasks: by name.
        sample: see :meth:`opabinia.contracts.Task.draw`.
        predictions: of each task.
        options: see :class:`opabinia.contracts.DrawOptions`.
    """
    drawn: Image.Image | None = None
    ordered = sorted(tasks, key=lambda name: "segmentation" not in predictions[name])
    drawing = [name for name in ordered if tasks[name].draw(sample, predictions[name], options) is not None]
    for name in drawing:
        # All but the last one in the size of the image, in which predictions have their coordinates.
        own_options = options if name == drawing[-1] else options._replace(side=1)
        drawn = tasks[name].draw(sample, predictions[name], own_options)
        sample = {**sample, "image": torch.from_numpy(np.array(drawn)).permute(2, 0, 1)}
    return drawn
