"""Claim: HOTA, CLEAR and identity metrics of a set of the size of MOT17 take at most a fifth of TrackEval's time.

Seven sequences with the frames of MOT17's (5,316), 21 objects in each frame, which move and hide each other; predicted
boxes with noise, gaps, identity switches and false boxes. Both sides get arrays, compute overlaps, apply MOT17's rules
for distractors, and compute all metrics, in turn; CPU time, fastest of the rounds.

TrackEval is of the extra ``parity``. Without it, only our time is printed.

Run: ``python benchmarks/tracking.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from opabinia.contracts.tracking import Role, TrackGroundTruth, Tracks
from opabinia.evaluation.tracking.scores import combine, sequence_sums

FRAMES = (600, 1050, 837, 525, 654, 900, 750)
OBJECTS, FIELD, ROUNDS = 21, 1200, 3


def sequence(seed: int, frames: int) -> tuple[TrackGroundTruth, Tracks]:
    """Return ground truth and predicted tracks; tracks of the ground truth last a fifth of the sequence on average."""
    random = np.random.default_rng(seed)
    position = np.cumsum(random.normal(0, 2, (frames, OBJECTS, 2)), 0) + random.uniform(0, FIELD, (OBJECTS, 2))
    size = random.uniform(40, 160, (OBJECTS, 2)) * [1, 2]
    boxes = np.concatenate([position, position + size], 2)
    number = np.arange(frames * OBJECTS).reshape(frames, OBJECTS) // OBJECTS
    track = (random.random((frames, OBJECTS)) < 5 / frames).cumsum(0) + np.arange(OBJECTS) * 100
    predicted_track = (random.random((frames, OBJECTS)) < 10 / frames).cumsum(0) + np.arange(OBJECTS) * 100
    noisy = boxes + random.normal(0, 6, boxes.shape)
    noisy[..., 2:] = np.maximum(noisy[..., 2:], noisy[..., :2] + 1)
    seen = random.random((frames, OBJECTS)) < 0.85
    false = random.random((frames, 2)) < 0.5
    corner = random.uniform(0, FIELD, (*false.shape, 2))
    false_boxes = np.concatenate([corner, corner + random.uniform(40, 160, corner.shape)], 2)
    false_tracks = np.arange(false.size).reshape(false.shape) // 8 * 2 + np.arange(2) + 10_000
    frame_of_false = np.broadcast_to(np.arange(frames)[:, None], false.shape)
    roles = np.broadcast_to(np.where(np.arange(OBJECTS) < 2, Role.DISTRACTOR, Role.COUNTED), track.shape).ravel()
    truth = TrackGroundTruth(number.ravel(), track.ravel(), boxes.reshape(-1, 4), np.where(roles, -1, 0), roles)
    columns = [
        np.concatenate([first[seen], second[false]])
        for first, second in ((number, frame_of_false), (predicted_track, false_tracks), (noisy, false_boxes))
    ]
    return truth, Tracks(columns[0], columns[1], columns[2], np.zeros(len(columns[0]), np.int64))


def by_frame(table: Any, columns: int, frames: int) -> list[list[Any]]:
    """Return the first columns of a table, split into frames."""
    order = np.argsort(table.frames, kind="stable")
    ends = np.searchsorted(table.frames[order], np.arange(1, frames))
    return [np.split(column[order], ends) for column in table[:columns]]


def trackeval_side(data: list[tuple[TrackGroundTruth, Tracks]]) -> Callable[[], float]:
    """Return a function that evaluates with TrackEval and returns HOTA; the arrays are split into frames before."""
    from trackeval.datasets import MotChallenge2DBox
    from trackeval.metrics import CLEAR, HOTA, Identity

    dataset: Any = object.__new__(MotChallenge2DBox)
    dataset.benchmark, dataset.do_preproc, dataset.valid_class_numbers = "MOT17", True, [1, 8]
    distractors = ("person_on_vehicle", "static_person", "distractor", "reflection")
    dataset.class_name_to_class_id = dict.fromkeys(distractors, 8) | {"pedestrian": 1}
    metrics = [HOTA(), CLEAR({"PRINT_CONFIG": False}), Identity({"PRINT_CONFIG": False})]
    raw: list[dict[str, Any]] = []
    for (truth, tracks), frames in zip(data, FRAMES, strict=True):
        _, ids, boxes, _, roles = by_frame(truth, 5, frames)
        _, predicted_ids, predicted_boxes = by_frame(tracks, 3, frames)
        classes = [np.where(role, 8, 1) for role in roles]
        ones = [np.ones(len(each), int) for each in predicted_ids]
        values = {"gt_ids": ids, "gt_dets": boxes, "gt_classes": classes, "tracker_ids": predicted_ids}
        values |= {"tracker_dets": predicted_boxes, "tracker_classes": ones, "tracker_confidences": ones}
        extras = [{"zero_marked": np.ones(len(each), int)} for each in ids]
        raw.append({**values, "gt_extras": extras, "num_timesteps": frames, "seq": "s"})

    def evaluate() -> float:
        prepared = []
        for values in raw:
            pairs = zip(values["gt_dets"], values["tracker_dets"], strict=True)
            ious = [dataset._calculate_box_ious(*pair, box_format="x0y0x1y1") for pair in pairs]
            prepared.append(dataset.get_preprocessed_seq_data({**values, "similarity_scores": ious}, "pedestrian"))
        scores = [
            metric.combine_sequences({str(i): metric.eval_sequence(values) for i, values in enumerate(prepared)})
            for metric in metrics
        ]
        return float(scores[0]["HOTA"].mean())

    return evaluate


def main() -> None:
    data = [sequence(seed, frames) for seed, frames in enumerate(FRAMES)]

    def ours() -> float:
        sums = [sequence_sums(str(number), *tables, classes=1) for number, tables in enumerate(data)]
        return float(combine(sums, ["pedestrian"])["class_averaged"]["HOTA"])

    sides = {"opabinia": ours} | ({"TrackEval": trackeval_side(data)} if find_spec("trackeval") else {})
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            start = time.process_time()
            score = side()
            times[name].append(time.process_time() - start)
            print(f"  {name:10} HOTA {score:.10f}", flush=True) if len(times[name]) == 1 else None
    boxes = sum(len(truth.ids) for truth, _ in data)
    print(f"evaluation of {sum(FRAMES):,} frames with {boxes:,} annotated boxes, CPU time, fastest of {ROUNDS} rounds")
    for name, seconds in times.items():
        print(f"  {name:10} {min(seconds):6.2f} s   {min(seconds) / min(times['opabinia']):.1f} times ours")


if __name__ == "__main__":
    main()
