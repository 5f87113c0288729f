"""Embeddings of whole data sets, in the order of the data on any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Batch, Predictions, Unfit


class Rows(NamedTuple):
    """Some samples, a row for each of N.

    Attributes:
        features: float32, N x D.
        labels: int64, N; None where nobody tells them.
        ids: of the samples.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    ids: list[str]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Features and labels.

        Raises:
            Unfit: there are no labels, or not one for each sample.
        """
        if self.labels is None or self.labels.ndim != 1:
            raise Unfit("every image needs one label here")
        return torch.from_numpy(self.features), torch.from_numpy(self.labels)


Batches = list[Rows]
"""Of a process, in the order in which it saw them."""


def rows_of(predictions: Predictions, batch: Batch, layer: str = "embedding") -> Rows:
    """What is kept of a batch: ``predictions[layer]`` (B x ...), ``label`` where there is one, and ``id``."""
    labels = batch["label"].cpu().numpy() if isinstance(batch.get("label"), Tensor) else None
    return Rows(predictions[layer].detach().flatten(1).float().cpu().numpy(), labels, list(batch["id"]))


def joined(states: Sequence[Batches]) -> Rows | None:
    """All batches of all processes in the order of the data, for they were dealt in turn; None if there are none.

    Raises:
        Unfit: an embedding is not finite.
    """
    batches = [one for turn in zip_longest(*states) for one in turn if one is not None]
    if not batches:
        return None
    features = np.concatenate([one.features for one in batches])
    labels = [one.labels for one in batches if one.labels is not None]
    ids = list(chain(*(one.ids for one in batches)))
    wrong = np.flatnonzero(~np.isfinite(features).all(1))
    if len(wrong):
        raise Unfit(f"{len(wrong)} of {len(ids)} embeddings are not finite, the first that of {ids[wrong[0]]}")
    return Rows(features, np.concatenate(labels) if len(labels) == len(batches) else None, ids)
