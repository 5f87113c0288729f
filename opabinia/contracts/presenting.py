"""The presenter of a task: how commands show its predictions and the ground truth, in JSON, in words and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL.Image import Image
from torch import Tensor

from opabinia.contracts.data import DatasetInfo, Sample, label_names
from opabinia.contracts.evaluation import EMBEDDING
from opabinia.runtime.files import disk_errors

Predicted = Mapping[str, Tensor]
"""The prediction for one sample: a row of each tensor of :data:`Predictions`, on the CPU."""


class DrawOptions(NamedTuple):
    """Options of drawing.

    Attributes:
        min_score: detections with a lower score are not drawn.
        side: small images are enlarged by a whole factor until the longer side has about this many pixels.
        text: minimum height of texts in pixels.
        legend: name the colors of a segmentation map below the image, which becomes higher.
    """

    min_score: float = 0.5
    side: int = 512
    text: int = 11
    legend: bool = True


OPTIONS = DrawOptions()


class Panel(NamedTuple):
    """A drawn image with its title."""

    image: Image
    title: str


class Comparison(NamedTuple):
    """Ground truth and prediction of one sample.

    Attributes:
        panels: images shown side by side.
        caption: both in words, one line.
        verdict: ``right`` or ``wrong``, where that can be said.
    """

    panels: Sequence[Panel]
    caption: str
    verdict: str | None = None


class Presenter:
    """Show embeddings and numbers: their values by name, and nothing drawn. Subclasses show other kinds of predictions.

    A sample is as its source gives it, before transforms: ``image`` (uint8, C x H x W); of a video ``video`` and
    ``frames``, the numbers of the frames in each view.

    Args:
        dataset_info: of the training data.

    Attributes:
        drawings_folder: name of the folder of drawn predictions.
        extra_files: :meth:`save` writes files besides the drawing.
        no_heatmap: why there are no heatmaps of the evidence for predictions; empty: there are.
    """

    drawings_folder = "images"
    extra_files = False
    no_heatmap = ""

    def __init__(self, dataset_info: DatasetInfo) -> None:
        self.dataset_info = dataset_info

    def readable(self, prediction: Predicted) -> dict[str, Any]:
        """Return a prediction as JSON values, with class names instead of numbers; by default the ``embedding`` alone,
        or all tensors if there is none, rounded to six digits."""
        names = [EMBEDDING] if EMBEDDING in prediction else list(prediction)
        return {name: _rounded(prediction[name].tolist()) for name in names}

    def caption(self, readable: Mapping[str, Any], *, min_score: float = 0.5) -> list[str]:
        """Return short lines that describe a readable prediction; by default its values by name.

        Args:
            readable: see :meth:`readable`.
            min_score: detections with a lower score are ignored.
        """
        lines = []
        for name, value in readable.items():
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            lines.append(f"{name}: {f'{len(value)} values' if isinstance(value, list) and len(value) > 5 else text}")
        return lines

    def ground_truth_caption(self, sample: Sample, classes: Sequence[str]) -> list[str]:
        """Return short lines that describe the ground truth of a sample; by default its class, classes or value.

        Args:
            sample: see :class:`Presenter`.
            classes: class names of the source.
        """
        return [f"value: {float(sample['value']):.4g}"] if "value" in sample else label_names(sample, classes)

    def draw(self, sample: Sample, prediction: Predicted, options: DrawOptions = OPTIONS) -> Image | None:
        """Return the image with the prediction drawn on it; None (the default): the caption says all.

        Raises:
            OSError, ValueError: a video cannot be read.
        """
        return None

    def draw_ground_truth(self, sample: Sample, classes: Sequence[str], options: DrawOptions = OPTIONS) -> Image | None:
        """Return the image with the ground truth of a sample drawn on it; None (the default): there is nothing to draw.

        Args:
            sample: see :class:`Presenter`.
            classes: class names of the source.
            options: of the drawing.
        """
        return None

    def compare(
        self,
        sample: Sample,
        prediction: Predicted,
        classes: Sequence[str],
        options: DrawOptions = OPTIONS,
    ) -> Comparison | None:
        """Return ground truth and prediction of a sample, drawn side by side; None where there is nothing to draw.

        Args:
            sample, prediction: see :class:`Presenter`.
            classes: class names of the source.
            options: of the drawing.

        Raises:
            OSError, ValueError: a video cannot be read.
        """
        annotated, drawn = self.draw_ground_truth(sample, classes, options), self.draw(sample, prediction, options)
        if annotated is None or drawn is None:
            return None
        predicted = ", ".join(self.caption(self.readable(prediction), min_score=options.min_score)) or "nothing"
        truth = ", ".join(self.ground_truth_caption(sample, classes)) or "nothing"
        panels = (Panel(annotated, f"ground truth: {truth}"), Panel(drawn, f"predicted: {predicted}"))
        return Comparison(panels, f"ground truth: {truth}; predicted: {predicted}")

    def save(self, out: Path, name: str, sample: Sample, prediction: Predicted, options: DrawOptions) -> Image | None:
        """Write the drawn prediction as ``NAME.png`` in ``drawings_folder``, if there is one, and return it.

        Args:
            out: folder written by the predict command.
            name: of the files, without suffix.
            sample, prediction, options: see :meth:`draw`.

        Raises:
            OSError, ValueError: a video cannot be read.
            DiskError: a file cannot be written.
        """
        drawn = self.draw(sample, prediction, options)
        if drawn is not None:
            save_image(out / self.drawings_folder / f"{name}.png", drawn)
        return drawn


def save_image(path: Path, image: Image) -> None:
    """Write an image, and the folder that it is in.

    Raises:
        DiskError: the file cannot be written.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value
