"""Label errors of identities, by embeddings: one identity under two labels (split), and two under one (merged).

Shapes: N samples with embeddings of length 1, so that their dot product is the cosine similarity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import EMBEDDING, Batch, DataMismatch, Predictions
from opabinia.evaluation.label_errors.suspects import Floats, Ints, LabelCheck, LabelErrors, Suspect, ranked

SPLIT, MERGED = "split identity", "merged identities"

MIN_SPLIT, MIN_MERGED = 0.7, 0.4
"""Suspects with a lower score are not listed."""

MIN_SAMPLES = 2
"""Smallest part of an identity that may be another one: a single sample has no within-part similarity."""

_MAX_ROUNDS = 50


def within_similarity(similarity: Floats) -> float:
    """Return the mean similarity of different samples, of that of all pairs (N x N); NaN for a single sample."""
    count = len(similarity)
    return float((similarity.sum() - np.trace(similarity)) / (count * (count - 1))) if count > 1 else np.nan


def split_scores(between: Floats, same: float, other: float) -> Floats:
    """Return the suspicion that two labels are one identity (K x K): where the mean similarity of their samples lies
    between that of typical nearest other identities (0) and that of typical images of one identity (1).

    Args:
        between: mean similarity of the samples of each two labels (K x K).
        same: median over the labels of the similarity of their samples with each other.
        other: median over the labels of the similarity with the nearest other label.
    """
    scores: Floats = np.clip((between - other) / max(same - other, 1e-6), 0, 1)
    np.fill_diagonal(scores, 0)
    return scores


def two_clusters(embeddings: Floats) -> NDArray[np.bool_]:
    """Return which samples belong to the second of two clusters (N): spherical k-means (Dhillon and Modha 2001) that
    starts from the two samples that are least similar."""
    similarity = embeddings @ embeddings.T
    first, second = np.unravel_index(similarity.argmin(), similarity.shape)
    centers = embeddings[[first, second]]
    second_cluster = np.zeros(len(embeddings), dtype=bool)
    for _ in range(_MAX_ROUNDS):
        nearer = embeddings @ centers[1] > embeddings @ centers[0]
        if (nearer == second_cluster).all() or not nearer.any() or nearer.all():
            break
        second_cluster = nearer
        centers = np.stack([embeddings[part].mean(0) for part in (~nearer, nearer)])
        centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-12)
    return second_cluster


def silhouette(embeddings: Floats, second: NDArray[np.bool_]) -> float:
    """Return the mean silhouette of two clusters by cosine distance (Rousseeuw 1987), -1 to 1.

    Args:
        embeddings: N x D.
        second: which samples belong to the second cluster; each has two samples or more.
    """
    distances = 1 - embeddings @ embeddings.T
    np.fill_diagonal(distances, 0)
    own = second[:, None] == second
    to_own = (distances * own).sum(1) / (own.sum(1) - 1)
    to_other = (distances * ~own).sum(1) / (~own).sum(1)
    return float(((to_other - to_own) / np.maximum(np.maximum(to_own, to_other), 1e-12)).mean())


class IdentityCheck(LabelCheck):
    """Identities: listed are the samples of the smaller label of :func:`split_scores`, and of the smaller cluster of a
    label with a high :func:`silhouette`, whose clusters differ like other identities."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[Ints, Floats]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``embedding`` (B x D), ``label`` (B) and ``id``."""
        self._batches.append((batch["label"].long().numpy(), predictions[EMBEDDING].double().numpy()))
        self.ids += batch["id"]

    @staticmethod
    def find(checks: Sequence[IdentityCheck], classes: Sequence[str]) -> LabelErrors:
        suspects = [suspect for check in checks for suspect in check.suspects(classes)]
        return LabelErrors(ranked(suspects), {"identities": f"{sum(len(check.members()) for check in checks):,}"})

    def members(self) -> dict[int, Ints]:
        """Return the rows of each identity."""
        labels = np.concatenate([labels for labels, _ in self._batches])
        order = np.argsort(labels, kind="stable")
        values, starts = np.unique(labels[order], return_index=True)
        return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True))

    def suspects(self, classes: Sequence[str]) -> Iterator[Suspect]:
        """Yield the suspects of a run, whose embeddings are comparable.

        Raises:
            DataMismatch: an embedding is not finite.
        """
        embeddings = np.concatenate([rows for _, rows in self._batches])
        if not (finite := np.isfinite(embeddings).all(1)).all():
            raise DataMismatch(f"the embedding of {self.ids[int((~finite).argmax())]} is not finite")
        embeddings = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
        members = self.members()
        means = np.stack([embeddings[part].mean(0) for part in members.values()])
        between = means @ means.T  # the mean of the similarities of all pairs
        within = np.array([within_similarity(embeddings[rows] @ embeddings[rows].T) for rows in members.values()])
        if len(members) < 2 or np.isnan(within).all():
            return
        other = float(np.median(np.where(np.eye(len(between), dtype=bool), -np.inf, between).max(1)))
        yield from self._split(between, within, other, members, classes)
        for label, rows in members.items():
            yield from self._merged(embeddings, other, label, rows, classes)

    def _split(
        self, between: Floats, within: Floats, other: float, members: dict[int, Ints], classes: Sequence[str]
    ) -> Iterator[Suspect]:
        """Yield the samples of the smaller one of two labels of one identity, for the most similar label only."""
        labels, rows = list(members), list(members.values())
        scores = split_scores(between, float(np.nanmedian(within)), other)
        for smaller, nearest in enumerate(scores.argmax(1).tolist()):
            if scores[smaller, nearest] < MIN_SPLIT or (len(rows[smaller]), smaller) > (len(rows[nearest]), nearest):
                continue
            reason = f"mean similarity with the images of {classes[labels[nearest]]} {between[smaller, nearest]:.2f}"
            known = f", among its own {within[smaller]:.2f}" if len(rows[smaller]) > 1 else ""
            reason += f"{known}; with the nearest other identity it is {other:.2f} typically"
            names = classes[labels[smaller]], classes[labels[nearest]]
            for row in rows[smaller].tolist():
                yield Suspect(self.ids[row], SPLIT, *names, float(scores[smaller, nearest]), reason)

    def _merged(
        self, embeddings: Floats, other: float, label: int, rows: Ints, classes: Sequence[str]
    ) -> Iterator[Suspect]:
        """Yield the samples of the smaller cluster, if the two are at most as similar as ``other``: typical nearest
        other identities. So cameras, whose images are clusters, too, are no identities."""
        if len(rows) < 2 * MIN_SAMPLES:
            return
        second = two_clusters(embeddings[rows])
        smaller = second if second.sum() <= len(rows) / 2 else ~second
        if smaller.sum() < MIN_SAMPLES:
            return
        score = silhouette(embeddings[rows], second)
        similarity = float(embeddings[rows][second].mean(0) @ embeddings[rows][~second].mean(0))
        if score >= MIN_MERGED and similarity <= other:
            reason = f"{smaller.sum()} of its {len(rows)} images are a cluster of their own, silhouette {score:.2f}, "
            reason += f"mean similarity with the others {similarity:.2f}"
            for row in rows[smaller].tolist():
                yield Suspect(self.ids[row], MERGED, classes[label], "", min(1.0, score), reason)
