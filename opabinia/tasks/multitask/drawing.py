"""Predictions of several tasks drawn on one image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from opabinia.contracts import EMBEDDING, DrawOptions, Sample
from opabinia.visualization.drawing import stack_vertically


def draw_together(
    tasks: Mapping[str, Any], sample: Sample, predictions: Mapping[str, Mapping[str, Tensor]], options: DrawOptions
) -> Image.Image | None:
    """Return an image with the predictions of all tasks that draw theirs, segmentation maps below the others, with the
    captions of the other tasks above it and the legends of maps under it; None if no task draws.

    Args:
        tasks: by name.
        sample: see :meth:`opabinia.contracts.Task.draw`.
        predictions: of each task.
        options: see :class:`opabinia.contracts.DrawOptions`.
    """
    last: tuple[str, Sample] | None = None
    captions, legends = list[str](), dict[str, Image.Image]()
    for name in sorted(tasks, key=lambda name: "segmentation" not in predictions[name]):
        # In the size of the image, in which the predictions of the next task have their coordinates.
        drawn = tasks[name].draw(sample, predictions[name], options._replace(side=1, legend=False))
        if drawn is not None:
            last = name, sample
            if options.legend and "segmentation" in predictions[name]:
                full, plain = (
                    tasks[name].draw(sample, predictions[name], options._replace(legend=own)) for own in (True, False)
                )
                if full.height > plain.height:
                    legends[name] = full.crop((0, plain.height, *full.size))
            sample = {**sample, "image": torch.from_numpy(np.array(drawn)).permute(2, 0, 1)}
        elif EMBEDDING not in predictions[name]:
            lines = tasks[name].caption(tasks[name].readable(predictions[name]), min_score=options.min_score)
            captions.append(f"{name}: {', '.join(lines) or 'nothing'}")
    if last is None:
        return None
    name, sample = last
    image = tasks[name].draw(sample, predictions[name], options._replace(legend=False))
    return stack_vertically([image, *legends.values()], ["; ".join(captions), *legends])
