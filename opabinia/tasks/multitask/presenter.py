"""How commands show the predictions of several tasks: as the presenter of each does, drawn on one image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image

from opabinia.contracts import EMBEDDING, DatasetInfo, DrawOptions, Presenter, Sample
from opabinia.contracts.presenting import OPTIONS, Predicted
from opabinia.tasks.multitask.export import prediction_of
from opabinia.visualization.drawing import stack_vertically


class MultitaskPresenter(Presenter):
    """Show the predictions of each task under its name.

    Args:
        dataset_info: of the training data.
        presenters: give the presenter of each task, by its name, for a prediction.
    """

    def __init__(
        self, dataset_info: DatasetInfo, presenters: Mapping[str, Callable[[Mapping[str, Any]], Presenter]]
    ) -> None:
        super().__init__(dataset_info)
        self._presenters = presenters

    def _parts(self, prediction: Predicted) -> dict[str, tuple[Presenter, Predicted]]:
        """Return the presenter and the prediction of each task."""
        parts = {name: prediction_of(prediction, name) for name in self._presenters}
        return {name: (self._presenters[name](part), part) for name, part in parts.items()}

    def readable(self, prediction: Predicted) -> dict[str, Any]:
        """Return the readable prediction of each task by its name."""
        return {name: presenter.readable(part) for name, (presenter, part) in self._parts(prediction).items()}

    def caption(self, readable: Mapping[str, Any], *, min_score: float = 0.5) -> list[str]:
        """Return a line for each task: its name, and its caption."""
        return [self._line(name, readable[name], min_score) for name in self._presenters]

    def _line(self, name: str, readable: Mapping[str, Any], min_score: float) -> str:
        lines = self._presenters[name](readable).caption(readable, min_score=min_score)
        return f"{name}: {', '.join(lines) or 'nothing'}"

    def draw(self, sample: Sample, prediction: Predicted, options: DrawOptions = OPTIONS) -> Image | None:
        """Return the image with the predictions of all tasks that draw theirs, segmentation maps below the others, with
        the captions of the other tasks above it and the legends of maps under it; None if no task draws."""
        last: Callable[[], Image | None] | None = None
        captions, legends = list[str](), dict[str, Image]()
        parts = self._parts(prediction)
        for name, (presenter, part) in sorted(parts.items(), key=lambda item: "segmentation" not in item[1][1]):
            # In the size of the image, in which the predictions of the next task have their coordinates.
            drawn = presenter.draw(sample, part, options._replace(side=1, legend=False))
            if drawn is not None:
                last = partial(presenter.draw, sample, part, options._replace(legend=False))
                if options.legend and "segmentation" in part:
                    full = presenter.draw(sample, part, options._replace(legend=True))
                    plain = presenter.draw(sample, part, options._replace(legend=False))
                    assert full is not None and plain is not None
                    if full.height > plain.height:
                        legends[name] = full.crop((0, plain.height, *full.size))
                sample = {**sample, "image": torch.from_numpy(np.array(drawn)).permute(2, 0, 1)}
            elif EMBEDDING not in part:
                captions.append(self._line(name, presenter.readable(part), options.min_score))
        image = last() if last else None
        return image and stack_vertically([image, *legends.values()], ["; ".join(captions), *legends])

    def save(self, out: Path, name: str, sample: Sample, prediction: Predicted, options: DrawOptions) -> Image | None:
        """Write the drawing, and the files of tasks that write other ones, such as maps, to folders of their names."""
        for key, (presenter, part) in self._parts(prediction).items():
            if presenter.extra_files:
                presenter.save(out / key, name, sample, part, options)
        return super().save(out, name, sample, prediction, options)
