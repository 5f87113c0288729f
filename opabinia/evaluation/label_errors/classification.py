"""Label errors of classification data: confident learning, and disagreement with neighbors in feature space.

Confident learning: Northcutt, Jiang and Chuang, Confident Learning: Estimating Uncertainty in Dataset Labels, Journal
of Artificial Intelligence Research 70 (2021). Probabilities must be out of sample: of a model that was not trained on
the labels in question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from opabinia.contracts import Batch, DataMismatch, Predictions
from opabinia.evaluation.label_errors.suspects import (
    Floats,
    Ints,
    LabelCheck,
    LabelErrors,
    Suspect,
    check_probabilities,
    ranked,
)
from opabinia.evaluation.representation.knn import knn_votes

NEIGHBORS = 20
"""Neighbors of a sample in feature space."""


def class_thresholds(labels: Ints, probabilities: Floats) -> Floats:
    """Return the mean predicted probability of each class over the samples that are labeled with it (K); infinity for a
    class without samples (Northcutt et al. 2021, equation 2).

    Args:
        labels: N.
        probabilities: N x K.
    """
    classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=classes)
    sums = np.bincount(labels, probabilities[np.arange(len(labels)), labels], classes)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def confident_classes(labels: Ints, probabilities: Floats) -> Ints:
    """Return the class that each sample is confidently of (N): the most probable one among those whose probability
    reaches their threshold, -1 if none does (Northcutt et al. 2021, equation 1).

    Args:
        labels: N.
        probabilities: N x K.
    """
    reached = probabilities >= class_thresholds(labels, probabilities) - 1e-12  # against rounding of the mean
    return np.where(reached.any(1), np.where(reached, probabilities, -1.0).argmax(1), -1).astype(np.int64)


def confident_joint(labels: Ints, probabilities: Floats) -> Ints:
    """Return the number of samples that are labeled i and confidently of class j (K x K).

    Args:
        labels: N.
        probabilities: N x K.

    Example: labels [0, 0, 1], probabilities [[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]: [[1, 1], [0, 1]].
    """
    classes, confident = probabilities.shape[1], confident_classes(labels, probabilities)
    cells = (labels * classes + confident)[confident >= 0]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def estimated_errors(labels: Ints, probabilities: Floats) -> float:
    """Return the estimated number of wrong labels: the share outside the diagonal of each row of the confident joint,
    times the samples with that label (Northcutt et al. 2021, equation 3).

    Args:
        labels: N.
        probabilities: N x K.
    """
    joint = confident_joint(labels, probabilities)
    shares = 1 - np.diag(joint) / np.maximum(joint.sum(1), 1)
    counts = np.bincount(labels, minlength=len(joint))
    return float((np.where(joint.any(1), shares, 0.0) * counts).sum())


def self_confidence(labels: Ints, probabilities: Floats) -> Floats:
    """Return the predicted probability of each sample's label (N); low is suspicious.

    Args:
        labels: N.
        probabilities: N x K.
    """
    return probabilities[np.arange(len(labels)), labels]


def normalized_margin(labels: Ints, probabilities: Floats) -> Floats:
    """Return the probability of the label minus that of the most probable other class, scaled to 0 to 1 (N); low is
    suspicious. With one class it is the probability of the label (Northcutt et al. 2021, section 3.2).

    Args:
        labels: N.
        probabilities: N x K.
    """
    rest = probabilities.copy()
    rest[np.arange(len(labels)), labels] = -np.inf
    others = rest.max(1) if probabilities.shape[1] > 1 else np.full(len(labels), -np.inf)
    margins = (self_confidence(labels, probabilities) - others + 1) / 2
    return np.where(np.isfinite(others), margins, self_confidence(labels, probabilities))


def neighbor_votes(labels: Ints, embeddings: Floats, classes: int, *, k: int = NEIGHBORS) -> Floats:
    """Return the share of the votes of each sample's k nearest others for each class (N x K): cosine similarity, votes
    weighted as by :func:`opabinia.evaluation.representation.knn.knn_votes`. Without others all shares are 0.

    Args:
        labels: N.
        embeddings: N x D.
        classes: K.
        k: number of neighbors.
    """
    if len(labels) < 2:
        return np.zeros((len(labels), classes))
    rows = torch.from_numpy(np.ascontiguousarray(embeddings, dtype=np.float32))
    blocks = knn_votes(rows, rows, torch.from_numpy(labels), classes, k=k, leave_one_out=True)
    votes = torch.cat(list(blocks)).double().numpy()
    shares: Floats = votes / votes.sum(1, keepdims=True)
    return shares


def suspicion(labels: Ints, probabilities: Floats, votes: Floats) -> Floats:
    """Return the suspicion of each label from 0 to 1 (N): 1 - :func:`self_confidence` x the share of the neighbors'
    votes for the label, with one vote for it added, so that neighbors alone convict no label.

    Args:
        labels: N.
        probabilities: N x K.
        votes: N x K, see :func:`neighbor_votes`; rows of zeros are not counted.
    """
    confidence = self_confidence(labels, probabilities)
    agreement = (NEIGHBORS * votes[np.arange(len(labels)), labels] + 1) / (NEIGHBORS + 1)
    return np.where(votes.any(1), 1 - confidence * agreement, 1 - confidence)


class Samples(NamedTuple):
    """N samples with one label each.

    Attributes:
        ids: N.
        labels: N.
        probabilities: N x K.
        embeddings: N x D; None without features.
    """

    ids: list[str]
    labels: Ints
    probabilities: Floats
    embeddings: Floats | None


class ClassificationCheck(LabelCheck):
    """Samples with one label: listed are those whose most probable class is another one, if confident learning counts
    them as errors or most of the neighbors' votes are for another class, too; sorted by :func:`suspicion`."""

    needs_embedding = True

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[Ints, Floats, Floats | None]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``probabilities`` (B x K), perhaps ``embedding`` (B x D), ``label`` (int64) and ``id``; views of
        a video have the same id."""
        embedding = predictions.get("embedding")
        rows = None if embedding is None else embedding.float().numpy()
        self._batches.append((batch["label"].numpy(), predictions["probabilities"].double().numpy(), rows))
        self.ids += batch["id"]

    def samples(self) -> Samples:
        """Return the samples with a label; probabilities and embeddings of views are averaged.

        Raises:
            DataMismatch: a probability is not a number from 0 to 1, or views of a video have different labels.
        """
        labels, probabilities, embeddings = zip(*self._batches, strict=True)
        columns = np.concatenate(labels), np.concatenate(probabilities)
        rows = None if embeddings[0] is None else np.concatenate(embeddings)
        check_probabilities(columns[1], self.ids)
        known = columns[0] >= 0
        ids = np.array(self.ids, dtype=object)[known]
        samples = Samples(list(ids), columns[0][known], columns[1][known], None if rows is None else rows[known])
        return samples if len(set(samples.ids)) == len(samples.ids) else _merged(samples)

    @staticmethod
    def find(checks: Sequence[ClassificationCheck], classes: Sequence[str]) -> LabelErrors:
        samples = [check.samples() for check in checks]
        ids = [name for part in samples for name in part.ids]
        labels = np.concatenate([part.labels for part in samples])
        probabilities = np.concatenate([part.probabilities for part in samples])
        # Features of different models cannot be compared: neighbors are samples of the same run.
        votes = np.concatenate([_votes(part, len(classes)) for part in samples])
        scores, confident = suspicion(labels, probabilities, votes), confident_classes(labels, probabilities)
        predicted, of_neighbors = probabilities.argmax(1), votes.argmax(1)
        disagree = (of_neighbors != labels) & (votes.max(1) > 0.5)
        listed = (predicted != labels) & (((confident >= 0) & (confident != labels)) | disagree)
        suspects = [
            Suspect(
                ids[row],
                "class",
                classes[labels[row]],
                classes[predicted[row]],
                float(scores[row]),
                _reason(probabilities[row], votes[row], int(labels[row]), classes),
            )
            for row in np.flatnonzero(listed).tolist()
        ]
        estimate = f"{estimated_errors(labels, probabilities):.0f} of {len(ids):,}"
        return LabelErrors(ranked(suspects), {"wrong labels, estimated by confident learning": estimate})


def _merged(samples: Samples) -> Samples:
    """Return one sample for each id."""
    numbers: dict[str, int] = {}
    rows = np.array([numbers.setdefault(name, len(numbers)) for name in samples.ids])
    _, firsts, counts = np.unique(rows, return_index=True, return_counts=True)
    labels = samples.labels[firsts]
    if (labels[rows] != samples.labels).any():
        name = samples.ids[int((labels[rows] != samples.labels).argmax())]
        raise DataMismatch(f"several samples are called {name}, and have different labels")

    def mean(values: Floats) -> Floats:
        sums = np.zeros((len(numbers), values.shape[1]))
        np.add.at(sums, rows, values)
        return sums / counts[:, None]

    embeddings = None if samples.embeddings is None else mean(samples.embeddings)
    return Samples(list(numbers), labels, mean(samples.probabilities), embeddings)


def _votes(samples: Samples, classes: int) -> Floats:
    if samples.embeddings is None:
        return np.zeros((len(samples.ids), classes))
    return neighbor_votes(samples.labels, samples.embeddings, classes)


def _reason(probabilities: Floats, votes: Floats, label: int, classes: Sequence[str]) -> str:
    predicted, of_neighbors = int(probabilities.argmax()), int(votes.argmax())
    text = f"{classes[predicted]} has probability {probabilities[predicted]:.2f}, the label {probabilities[label]:.2f}"
    if not votes.any():
        return text
    neighbors = f"of the votes of the {NEIGHBORS} nearest samples {votes[of_neighbors]:.0%} are for "
    if of_neighbors == label:
        return f"{text}; {neighbors}the label"
    return f"{text}; {neighbors}{classes[of_neighbors]}, {votes[label]:.0%} for the label"
