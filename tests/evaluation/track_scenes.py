"""Random and hand-made sequences of tracks, and their scores by TrackEval (extra ``parity``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from opabinia.contracts.tracking import Role, TrackGroundTruth, Tracks
from opabinia.evaluation.tracking.scores import COUNTS, SCORES

MOT17_PEDESTRIAN, MOT17_DISTRACTOR, MOT17_CAR = 1, 8, 3
KITTI_CLASSES = {"car": (1, 2), "pedestrian": (4, 5)}
"""Numbers of the class and of its distractor."""


class Case(NamedTuple):
    """Sequences by name, and the TrackEval dataset whose rules hold: ``plain``, ``mot17`` or ``kitti``."""

    rules: str
    classes: tuple[str, ...]
    truths: dict[str, TrackGroundTruth]
    tracks: dict[str, Tracks]


def ground_truth(rows: Any) -> TrackGroundTruth:
    """Rows of frame, id, left, top, right, bottom, label, role."""
    table = np.array(rows, float).reshape(-1, 8)
    whole = table[:, [0, 1, 6, 7]].astype(np.int64).T
    return TrackGroundTruth(whole[0], whole[1], table[:, 2:6], whole[2], whole[3])


def predicted(rows: Any) -> Tracks:
    """Rows of frame, id, left, top, right, bottom, label."""
    table = np.array(rows, float).reshape(-1, 7)
    whole = table[:, [0, 1, 6]].astype(np.int64).T
    return Tracks(whole[0], whole[1], table[:, 2:6], whole[2])


def random_sequence(
    random: np.random.Generator, rules: str, classes: int, most: int
) -> tuple[TrackGroundTruth, Tracks]:
    """Fewer than ``most`` objects that move in a small field, so that many overlap; predictions with noise, gaps,
    switches and false boxes.

    Every other sequence has positions on a coarse grid: many equal IoUs, and IoUs of exactly 0.5.
    """
    frames, objects, step = (
        int(random.integers(1, 14)),
        int(random.integers(0, most)),
        8 if random.random() < 0.5 else 0.1,
    )
    roles = {"plain": [0], "mot17": [0, 0, 0, 1, 2], "kitti": [0, 0, 0, 1, 3]}[rules]
    labels, kinds = random.integers(0, classes, objects), random.choice(roles, objects)
    empty = random.random(frames) < 0.15
    true_rows, predicted_rows = [], []
    position, size = random.uniform(0, 120, (objects, 2)), random.uniform(32, 64, (objects, 2))
    shown = np.arange(objects)
    for frame in range(frames):
        position = position + random.normal(0, 6, position.shape)
        corners = np.round(np.concatenate([position, position + size], 1) / step) * step
        noisy = corners + np.round(random.normal(0, 5, corners.shape) / step) * step
        noisy[:, 2:] = np.maximum(noisy[:, 2:], noisy[:, :2] + 30)
        if random.random() < 0.2:
            shown = random.permutation(shown)
        there, seen = random.random(objects) < 0.85, (random.random(objects) < 0.8) & ~empty[frame]
        for row in np.flatnonzero(there & (random.random() > 0.1)):
            label = -1 if rules == "mot17" and kinds[row] else labels[row]
            true_rows.append([frame, row, *corners[row], label, kinds[row]])
        for row in np.flatnonzero(seen):
            predicted_rows.append([frame, shown[row], *noisy[row], labels[row]])
        for number in range(int(random.integers(0, 3)) * (not empty[frame])):
            corner = np.round(random.uniform(0, 120, 2) / step) * step
            predicted_rows.append([frame, 100 + number, *corner, *(corner + 40), random.integers(classes)])
    order = random.permutation(len(predicted_rows))
    return ground_truth(true_rows), predicted([predicted_rows[row] for row in order])


def random_case(number: int) -> Case:
    random = np.random.default_rng(number)
    rules = ("plain", "mot17", "kitti")[number % 3]
    names = {"plain": ("a", "b", "c")[: 1 + number % 2 * 2], "mot17": ("pedestrian",), "kitti": ("car", "pedestrian")}[
        rules
    ]
    sequences = {
        f"s{index}": random_sequence(random, rules, len(names), 40 if number % 10 == 0 else 9)
        for index in range(1 + number % 4)
    }
    return Case(
        rules,
        names,
        {name: sequence[0] for name, sequence in sequences.items()},
        {name: sequence[1] for name, sequence in sequences.items()},
    )


def hand_made_cases() -> Iterator[Case]:
    """Ties, sequences without boxes, and tracks that begin, end, switch and are interrupted."""
    box, shifted, twin = (0, 0, 40, 40), (0, 20, 40, 60), (0, 10, 40, 50)
    boxes = {"box": box, "shifted": shifted, "twin": twin, "far": (300, 0, 340, 40)}
    scenes: list[tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]] = [
        ([], []),
        ([(0, 1, "box")], []),
        ([], [(0, 1, "box")]),
        ([(0, 1, "box")], [(1, 1, "box")]),
        ([(0, 1, "box"), (0, 2, "box")], [(0, 7, "box"), (0, 8, "box")]),
        ([(t, i, "box") for t in range(5) for i in (1, 2)], [(t, i + t % 2, "box") for t in range(5) for i in (1, 2)]),
        ([(t, 1, "box") for t in range(9)], [(t, t // 3, "box") for t in range(9)]),
        ([(t, 1, "box") for t in range(9)], [(t, 1, "box") for t in (0, 1, 4, 8)]),
        ([(t, 1, "box") for t in range(9)], [(t, 1 + t % 2, ("box", "far")[t % 3 == 1]) for t in range(9)]),
        ([(t, 1, "twin") for t in range(4)], [(t, i, s) for t in range(4) for i, s in ((1, "box"), (2, "shifted"))]),
        ([(t, i, s) for t in range(4) for i, s in ((1, "box"), (2, "shifted"))], [(t, 5, "twin") for t in range(4)]),
        ([(t, 1, "box") for t in range(10)], [(t, 1, "box") for t in range(8)]),
        ([(t, 1, "box") for t in range(10)], [(t, 1, "box") for t in range(2)]),
        ([(0, 1, "box"), (2, 1, "box")], [(0, 1, "box"), (1, 1, "far"), (2, 2, "box")]),
    ]
    for true_rows, predicted_rows in scenes:
        truth = ground_truth([[frame, track, *boxes[name], 0, 0] for frame, track, name in true_rows])
        tracks = predicted([[frame, track, *boxes[name], 0] for frame, track, name in predicted_rows])
        yield Case("plain", ("a",), {"one": truth}, {"one": tracks})


# --- TrackEval --------------------------------------------------------------------------------------------------------


def trackeval_scores(case: Case) -> dict[str, Any]:
    """Return per_class, class_averaged and detection_averaged as :func:`combine` does, of classes with boxes."""
    from trackeval.metrics import CLEAR, HOTA, Identity

    quiet = {"PRINT_CONFIG": False}
    metrics = [HOTA(), CLEAR(dict(quiet)), Identity(dict(quiet))]
    prepared = {label: [_prepared(case, name, label) for name in case.truths] for label in range(len(case.classes))}
    prepared = {
        label: sequences
        for label, sequences in prepared.items()
        if any(data["num_gt_dets"] + data["num_tracker_dets"] for data in sequences)
    }
    tables: dict[str, Any] = {"per_class": [{} for _ in prepared], "class_averaged": {}, "detection_averaged": {}}
    for metric in metrics if prepared else []:
        of_classes = {
            label: metric.combine_sequences({str(i): metric.eval_sequence(data) for i, data in enumerate(sequences)})
            for label, sequences in prepared.items()
        }
        for row, result in zip(tables["per_class"], of_classes.values(), strict=True):
            row |= _named(result)
        tables["class_averaged"] |= _named(metric.combine_classes_class_averaged(of_classes, ignore_empty_classes=True))
        tables["detection_averaged"] |= _named(metric.combine_classes_det_averaged(of_classes))
    return tables


def _named(result: dict[str, Any]) -> dict[str, float]:
    names = {"recall": "CLR_Re", "precision": "CLR_Pr"} | {name: f"CLR_{name}" for name in ("TP", "FN", "FP")}
    return {
        name: float(np.mean(result[names.get(name, name)]))
        for name in (*SCORES, *COUNTS)
        if names.get(name, name) in result
    }


def _prepared(case: Case, name: str, label: int) -> dict[str, Any]:
    """Return what TrackEval's metrics read, after the preprocessing of its dataset."""
    from trackeval.datasets import Kitti2DBox, MotChallenge2DBox

    kitti = case.rules == "kitti"
    dataset: Any = object.__new__(Kitti2DBox if kitti else MotChallenge2DBox)
    if kitti:
        dataset.max_occlusion, dataset.max_truncation, dataset.min_height = 2, 0, 0
        numbers = {"car": 1, "van": 2, "pedestrian": 4, "person": 5}
        class_name = case.classes[label]
    else:
        dataset.benchmark, dataset.do_preproc = "MOT17", case.rules == "mot17"
        numbers = dict.fromkeys(("person_on_vehicle", "static_person", "distractor", "reflection"), MOT17_DISTRACTOR)
        numbers |= {"pedestrian": MOT17_PEDESTRIAN}
        dataset.valid_class_numbers = [MOT17_PEDESTRIAN, MOT17_DISTRACTOR, MOT17_CAR]
        class_name = "pedestrian"
    dataset.class_name_to_class_id = numbers
    return dict(dataset.get_preprocessed_seq_data(_raw(case, name, label, dataset, numbers), class_name))


def _raw(case: Case, name: str, label: int, dataset: Any, numbers: dict[str, int]) -> dict[str, Any]:
    truth, tracks = case.truths[name], case.tracks[name]
    frames = int(max(truth.frames.max(initial=-1), tracks.frames.max(initial=-1))) + 1
    raw: dict[str, Any] = {"num_timesteps": frames, "seq": name}
    keys = "gt_ids gt_dets gt_classes gt_extras tracker_ids tracker_dets tracker_classes tracker_confidences"
    raw |= {key: [] for key in (keys + " similarity_scores gt_crowd_ignore_regions").split()}
    for frame in range(frames):
        true = (truth.frames == frame) & (truth.roles != Role.REGION)
        here = tracks.frames == frame
        if case.rules == "kitti":  # its classes are selected by TrackEval
            pairs = list(KITTI_CLASSES.values())
            classes = np.array([pairs[k][role] for k, role in zip(truth.labels[true], truth.roles[true], strict=True)])
            predicted_classes = np.array([pairs[k][0] for k in tracks.labels[here]])
        else:
            true &= np.isin(truth.labels, (label, -1))
            here &= tracks.labels == label
            kinds = np.array([MOT17_PEDESTRIAN, MOT17_DISTRACTOR, MOT17_CAR])
            classes, predicted_classes = kinds[truth.roles[true]], np.full(here.sum(), MOT17_PEDESTRIAN)
        region = (truth.frames == frame) & (truth.roles == Role.REGION) & (truth.labels == label)
        zeros = np.zeros(true.sum(), int)
        raw["gt_ids"].append(truth.ids[true])
        raw["gt_dets"].append(truth.boxes[true])
        raw["gt_classes"].append(classes.astype(int))
        raw["gt_extras"].append({"occlusion": zeros, "truncation": zeros, "zero_marked": zeros + 1})
        raw["tracker_ids"].append(tracks.ids[here])
        raw["tracker_dets"].append(tracks.boxes[here])
        raw["tracker_classes"].append(predicted_classes.astype(int))
        raw["tracker_confidences"].append(np.ones(here.sum()))
        raw["gt_crowd_ignore_regions"].append(truth.boxes[region])
        ious = dataset._calculate_box_ious(truth.boxes[true], tracks.boxes[here], box_format="x0y0x1y1")
        raw["similarity_scores"].append(ious)
    return raw
