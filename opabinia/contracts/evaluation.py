"""Predictions of a batch, and the evaluators that accumulate over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts.data import Batch

Predictions = Mapping[str, Tensor]
"""A model's output for a batch, one row per sample in every tensor: ``logits`` (B x K), ``embedding`` (B x D) ...

Detectors give at most D detections per image, best first, in pixels of the original image: ``boxes`` (B x D x 4: left,
top, right, bottom; oriented ones B x D x 5, see :data:`Sample`), ``scores`` (B x D), ``labels`` (int64, B x D; -1 pads
images with fewer detections), ``masks`` (B x D x S x S: the probability that a pixel belongs to the object, with the
box stretched to S x S) and with these ``image_size`` (int64, B x 2: height and width of the original image),
``keypoints`` (B x D x P x 3: x, y, score).
Segmentation gives maps of the original images, padded at the right and bottom to the largest of the batch, with
``image_size``: ``segmentation`` (uint8, B x H x W: the class of each pixel, 255 in the padding); panoptic segmentation
also ``segments`` (int32, B x H x W: the number of the segment of each pixel from 1, 0 for none), ``segment_labels``
(int64, B x S: the class of segment 1, 2 ...; -1 pads images with fewer segments) and ``segment_scores`` (B x S).
``pixel_logits`` (float, B x K x H x W) are maps of transformed images. Regression gives ``value`` (B).
Losses of the batch, if its ground truth is known, are ``losses/<name>`` (the same number B times)."""

EMBEDDING = "embedding"
"""The name of a task's features; every other layer name is the name of a module."""


@dataclass(frozen=True)
class Resampling:
    """A score as a function of how often each unit of the evaluated data counts, for bootstrap confidence intervals.

    Attributes:
        name: name of the score.
        unit: name of the units that are drawn, in the plural: ``images``, ``videos``, ``identities``.
        count: number of units, N. Their order must not depend on the number of processes.
        scores: maps weights (float64, R x N: how often each unit is drawn in each of R resamples) to scores (float64,
            R; NaN for a resample that has none). Weights of 1 give the score itself.
        cost: how many numbers ``scores`` computes for a resample.
    """

    name: str
    unit: str
    count: int
    scores: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    cost: int

    @staticmethod
    def mean(name: str, values: NDArray[Any], unit: str = "images", units: NDArray[Any] | None = None) -> Resampling:
        """Return a score that is the mean of one value per sample.

        Args:
            name: name of the score.
            values: of each sample (M), in an order that does not depend on the number of processes.
            unit: name of the units that are drawn.
            units: the unit of each sample (M), such as its identity; None: each sample is one.
        """
        members = np.arange(len(values)) if units is None else np.unique(units, return_inverse=True)[1]
        sums, sizes = np.bincount(members, values.astype(np.float64)), np.bincount(members).astype(np.float64)
        return Resampling(name, unit, len(sizes), lambda weights: weights @ sums / (weights @ sizes), 2 * len(sizes))

    @staticmethod
    def share(name: str, right: int, count: int) -> Resampling:
        """Return a score that is the share of ``right`` samples among ``count``, such as accuracy."""
        return Resampling.mean(name, np.arange(count) < right)


class Evaluator:
    """Accumulates over the batches of one evaluation. The result is the same for any number of processes.

    Implement ``update``, ``state`` and ``compute``; the rest is optional.

    Example: ``update`` counts the correct samples of a process, ``compute`` adds the counts of all and divides.

    Attributes:
        better: the scores that it computes and the better direction of each ("max" or "min"); the first one is its
            headline score.
        layers: names of modules of the task. Their outputs (B x D; feature maps and tokens averaged over positions) are
            ``predictions["layers/<name>"]``. The name ``embedding`` stands for the task's ``features``, in
            ``predictions["embedding"]``.
        device: the task's device, where it may compute; set before the first batch.
    """

    better: dict[str, str]
    layers: Sequence[str] = ()
    device = torch.device("cpu")

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch. Predictions and batch are on the host, so that the GPU can go on with the next batch."""
        raise NotImplementedError

    def state(self) -> Any:
        """Return what this process has accumulated, for rank 0: arrays, tensors and picklable plain values."""
        raise NotImplementedError

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the scores, as fractions of 1, from the states of all processes. An empty dataset has no scores.

        Called on rank 0 only; the other ranks receive the scores, or the error.
        """
        raise NotImplementedError

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch of training data, read like the evaluated data, to compare with, as a nearest-neighbor classifier
        does. All come before the first ``update``. Training data is read only for evaluators that implement this."""

    @property
    def learns(self) -> bool:
        """Whether it implements :meth:`learn`."""
        return type(self).learn is not Evaluator.learn

    def details(self, states: Sequence[Any]) -> dict[str, Any]:
        """Return tables by name that are too long for the metrics log, for ``eval/<set>/details.json``. Called after
        ``compute``, with the same states."""
        return {}

    def resamplings(self, states: Sequence[Any]) -> Sequence[Resampling]:
        """Return the scores that can be computed from weights of the samples, for confidence intervals. Called after
        ``compute``, with the same states, if that has given scores."""
        return ()

    def files(self, states: Sequence[Any]) -> dict[str, Any]:
        """Return further files next to ``details.json``: JSON-serializable values by file name, texts for names that
        end with ``.txt``. Called after ``compute``, with the same states."""
        return {}
