"""Scores of trackers from sums of whole sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from opabinia.contracts import DataMismatch
from opabinia.contracts.tracking import Role, TrackGroundTruth, Tracks
from opabinia.evaluation.tracking.clear import (
    ClearSums,
    Switch,
    clear_counts,
    clear_scores,
    clear_sums,
    identity_switches,
)
from opabinia.evaluation.tracking.hota import THRESHOLDS, HotaSums, hota_scores, hota_sums
from opabinia.evaluation.tracking.identity import IdentitySums, identity_scores, identity_sums
from opabinia.evaluation.tracking.pairs import class_pairs

Sums = TypeVar("Sums", HotaSums, ClearSums, IdentitySums)

SCORES = (
    *("HOTA", "DetA", "AssA", "DetRe", "DetPr", "AssRe", "AssPr", "LocA", "IDF1", "IDR", "IDP"),
    *("MOTA", "MOTP", "MODA", "sMOTA", "recall", "precision", "MTR", "PTR", "MLR"),
)
"""Fractions, the headline score first."""
COUNTS = ("TP", "FN", "FP", "IDSW", "MT", "PT", "ML", "Frag")
"""Numbers of boxes, identity switches, tracks and interruptions."""


class TrackSums(NamedTuple):
    """Sums of the metrics of a class."""

    hota: HotaSums
    clear: ClearSums
    identity: IdentitySums

    def scores(self) -> dict[str, float]:
        """Return the values of :data:`SCORES` and :data:`COUNTS`."""
        hota = {name: float(values.mean()) for name, values in hota_scores(self.hota).items()}
        values = hota | identity_scores(self.identity) | clear_scores(self.clear) | clear_counts(self.clear)
        return {name: values[name] for name in (*SCORES, *COUNTS)}


class SequenceSums(NamedTuple):
    """The sums of a sequence for each class that has true or predicted boxes in it, by label."""

    name: str
    classes: dict[int, TrackSums]


def sequence_sums(
    name: str, truth: TrackGroundTruth, tracks: Tracks, classes: int, threshold: float = 0.5
) -> SequenceSums:
    """Compare the tracks of a sequence with its ground truth.

    Args:
        name: name of the sequence, for errors and tables.
        truth: annotated boxes.
        tracks: predicted boxes.
        classes: number of classes.
        threshold: smallest IoU of a match in CLEAR and identity metrics.

    Raises:
        DataMismatch: a box is not finite or has no area, a track has two boxes in a frame, or a label is no class.
    """
    _check(name, "predicted", tracks, 0, classes)
    objects = truth.roles != Role.REGION
    lowest = np.where(truth.roles == Role.COUNTED, 0, -1)[objects]
    _check(name, "annotated", Tracks(*(column[objects] for column in truth[:4])), lowest, classes)
    sums = {}
    for label in range(classes):
        pairs = class_pairs(truth, tracks, label)
        if len(pairs.true.ids) + len(pairs.predicted.ids):
            sums[label] = TrackSums(hota_sums(pairs), clear_sums(pairs, threshold), identity_sums(pairs, threshold))
    return SequenceSums(name, sums)


def sequence_switches(truth: TrackGroundTruth, tracks: Tracks, classes: int, threshold: float = 0.5) -> list[Switch]:
    """Return the identity switches of a sequence in order of their frames; arguments as in :func:`sequence_sums`."""
    switches = [
        switch for label in range(classes) for switch in identity_switches(class_pairs(truth, tracks, label), threshold)
    ]
    return sorted(switches, key=lambda switch: switch.frames[1])


def evaluate_tracks(
    truths: Mapping[str, TrackGroundTruth],
    tracks: Mapping[str, Tracks],
    classes: Sequence[str],
    threshold: float = 0.5,
) -> dict[str, Any]:
    """Compare predicted tracks of sequences with their ground truth.

    Args:
        truths: annotated boxes by sequence.
        tracks: predicted boxes by sequence; the same sequences.
        classes: class names; the index is the label.
        threshold: smallest IoU of a match in CLEAR and identity metrics.

    Returns:
        The tables of :func:`combine`.

    Raises:
        DataMismatch: the sequences differ, or see :func:`sequence_sums`.
    """
    if truths.keys() != tracks.keys():
        names = ", ".join(sorted(truths.keys() ^ tracks.keys())[:5])
        raise DataMismatch(f"ground truth and tracks are not of the same sequences; only one has: {names}")
    sums = [sequence_sums(name, truths[name], tracks[name], len(classes), threshold) for name in truths]
    return combine(sums, classes)


def combine(sequences: Iterable[SequenceSums], classes: Sequence[str]) -> dict[str, Any]:
    """Return the scores of sequences, in any order: sums are added by order of the names.

    Returns:
        ``class_averaged``: means over the classes with boxes, and total counts. ``detection_averaged``: scores of the
        sums over all classes. ``per_class`` and ``per_sequence`` (over all classes): a row for each, and
        ``per_threshold``: HOTA and its parts at the 19 IoUs, averaged over classes. Without any boxes, all are empty.

    Raises:
        DataMismatch: two sequences have the same name.
    """
    ordered = sorted(sequences, key=lambda sequence: sequence.name)
    names = [sequence.name for sequence in ordered]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise DataMismatch(f"several sequences are called {', '.join(sorted(repeated))}: each needs a name of its own")
    totals = {}
    for label, name in enumerate(classes):
        if sums := [sequence.classes[label] for sequence in ordered if label in sequence.classes]:
            totals[name] = _add_all(sums)
    scores = [sums.scores() for sums in totals.values()]
    tables: dict[str, Any] = {
        "class_averaged": {},
        "detection_averaged": {},
        "per_class": [{"class": name} | row for name, row in zip(totals, scores, strict=True)],
        "per_sequence": [
            {"sequence": sequence.name} | _add_all(list(sequence.classes.values())).scores()
            for sequence in ordered
            if sequence.classes
        ],
        "per_threshold": [],
    }
    if scores:
        tables["class_averaged"] = {name: float(np.mean([row[name] for row in scores])) for name in SCORES}
        tables["class_averaged"] |= {name: sum(row[name] for row in scores) for name in COUNTS}
        tables["detection_averaged"] = _add_all(list(totals.values())).scores()
        tables["per_threshold"] = _per_threshold([sums.hota for sums in totals.values()])
    return tables


def _per_threshold(sums: Sequence[HotaSums]) -> list[dict[str, float]]:
    """Return HOTA and its parts at each threshold, averaged over classes."""
    scores = [hota_scores(of_class) for of_class in sums]
    means = {name: np.mean([row[name] for row in scores], axis=0) for name in scores[0]}
    return [
        {"IoU": round(float(threshold), 2)} | {name: float(values[row]) for name, values in means.items()}
        for row, threshold in enumerate(THRESHOLDS)
    ]


def _add_all(sums: Sequence[TrackSums]) -> TrackSums:
    return TrackSums(*(_add(metric) for metric in zip(*sums, strict=True)))


def _add(sums: Sequence[Any]) -> Any:
    """Return the sums of several sequences or classes, field by field, in their order."""
    return type(sums[0])(*(sum(values) for values in zip(*sums, strict=True)))


def _check(name: str, kind: str, tracks: Tracks, lowest: Any, classes: int) -> None:
    """Check the boxes of a sequence; ``lowest`` is the first valid label (of each box)."""
    turned = (tracks.boxes[:, 2:] < tracks.boxes[:, :2]).any(1)
    order = np.lexsort((tracks.frames, tracks.ids))
    repeated = np.zeros(len(order), bool)
    repeated[order[1:]] = (np.diff(tracks.frames[order]) == 0) & (np.diff(tracks.ids[order]) == 0)
    problems = {
        "is not finite": ~np.isfinite(tracks.boxes).all(1),
        "has its right before its left, or its bottom above its top": turned,
        f"has a label that is no class: labels are 0 to {classes - 1}": (tracks.labels < lowest)
        | (tracks.labels >= classes),
        "is the second one of this track in the frame": repeated,
    }
    for problem, mask in problems.items():
        for row in np.flatnonzero(mask)[:1]:
            frame, track, box, label = (column[row].tolist() for column in tracks)
            raise DataMismatch(
                f"{name}, frame {frame}: the {kind} box {box} of track {track}, label {label}, {problem}"
            )
