"""The function of tensors that is exported of a task, and how two results of it are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts.data import Sample
from opabinia.contracts.evaluation import Predictions
from opabinia.contracts.models import Features

Tensors = Mapping[str, Tensor]


class ExportModule(nn.Module):
    """A task's predictions as a function of tensors by name, with static shapes apart from the number of samples.

    The default takes ``image`` (B x C x H x W, as the validation transforms give it; normalization is part of the
    function) and gives the tensors of ``predict`` by their names. Subclasses change ``forward`` (its parameter names
    are the input names, the keys of what it returns the output names) together with ``inputs`` and ``expected``.

    Args:
        task: in evaluation mode, on the CPU.
        dims: dimensions of ``image`` in a batch: 4 for images, 5 for clips.
    """

    def __init__(self, task: nn.Module, dims: int = 4) -> None:
        super().__init__()
        self.task: Any = task
        self.dims = dims

    def forward(self, image: Tensor) -> Predictions:
        """Return predictions by name."""
        return dict(self.task.predict({"image": image}))

    def outputs(self, features: Features, image: Tensor, image_sizes: Tensor | None = None) -> Predictions:
        """Return predictions by name, from features that a multi-task model has computed.

        Args:
            features: of the images.
            image: B x C x H x W.
            image_sizes: height and width of the image within each of them (int64, B x 2), if they are padded.
        """
        return dict(self.task.predictions(features, {"image": image}))

    def check_static(self) -> None:
        """Check that the function can become a graph of static shapes.

        Raises:
            ValueError: it cannot; the text says why, and what can.
        """

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Return transformed samples as inputs by name, one row each; every view of a sample is a row of its own.

        Raises:
            ValueError: the images differ in size.
        """
        images = [sample["image"].as_subclass(Tensor) for sample in samples]
        rows = [row for image in images for row in (image if image.ndim == self.dims else [image])]
        shapes = sorted({tuple(row.shape) for row in rows})
        if len(shapes) > 1:
            raise ValueError(
                f"the validation transforms give images of several sizes ({shapes[0]}, {shapes[1]}), and an exported "
                "model takes one; end them with a Resize with height and width, or with a crop"
            )
        return {"image": torch.stack(rows)}

    @torch.no_grad()
    def expected(self, inputs: Tensors) -> Predictions:
        """Return the task's own predictions for these inputs."""
        return dict(self.task.predict(dict(inputs)))

    def difference(self, expected: Tensors, actual: Tensors) -> float:
        """Return the largest :func:`relative_difference` over all outputs."""
        return max(relative_difference(expected[name], actual[name]) for name in expected)


def relative_difference(expected: Tensor, actual: Tensor) -> float:
    """Return the largest absolute difference of two tensors, divided by the largest magnitude in ``expected`` where
    that is above 1; infinite if shapes differ or a value is not finite."""
    if expected.shape != actual.shape or not bool(actual.isfinite().all()):
        return inf
    if not expected.numel():
        return 0.0
    scale = max(1.0, float(expected.abs().max()))
    return float((expected.double() - actual.double()).abs().max()) / scale
