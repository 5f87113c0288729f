"""Claim: metrics take at most a fifth of TrackEval's time, and tracking 1,000 objects less than with ``trackers``.

1. HOTA, CLEAR and identity metrics of a set of the size of MOT17: seven sequences with the frames of MOT17's (5,316),
   21 objects in each frame, which move and hide each other; predicted boxes with noise, gaps, identity switches and
   false boxes. Both sides get arrays, compute overlaps, apply MOT17's rules for distractors, and compute all metrics.
2. MOTA, HOTA and identity switches on the synthetic streams of ``tests/models/trackers/streams.py`` (300 frames, three
   seeds), and the number of detections with another track than by ``trackers``.
3. Milliseconds of a frame with 1,000 objects.

CPU time, fastest of the rounds, both sides in turn. TrackEval and ``trackers`` are of the extra ``parity``; without
them, our side runs alone.

Run: ``python benchmarks/tracking.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from opabinia.contracts.tracking import FrameDetections, Role, TrackGroundTruth, Tracks
from opabinia.evaluation.tracking.scores import combine, evaluate_tracks, sequence_sums
from opabinia.models.trackers.sequences import Frame, track_sequence
from tests.models.trackers.peers import TRACKERS, as_tracks, ids_of_both, peer_ids
from tests.models.trackers.streams import KINDS, stream

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


def evaluation() -> None:
    data = [sequence(seed, frames) for seed, frames in enumerate(FRAMES)]

    def ours() -> float:
        sums = [sequence_sums(str(number), *tables, classes=1) for number, tables in enumerate(data)]
        return float(combine(sums, ["pedestrian"])["class_averaged"]["HOTA"])

    sides = {"opabinia": ours} | ({"TrackEval": trackeval_side(data)} if find_spec("trackeval") else {})
    times: dict[str, list[float]] = {name: [] for name in sides}
    scores: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            start = time.process_time()
            scores[name] = side()
            times[name].append(time.process_time() - start)
    boxes = sum(len(truth.ids) for truth, _ in data)
    print(f"evaluation of {sum(FRAMES):,} frames with {boxes:,} annotated boxes, fastest of {ROUNDS} rounds")
    for name, seconds in times.items():
        ratio = min(seconds) / min(times["opabinia"])
        print(f"  {name:10} {min(seconds):5.2f} s, {ratio:.1f} times ours; HOTA {scores[name]:.10f}")


def streams(peers: bool) -> None:
    print(
        "synthetic streams, 300 frames, 3 seeds: MOTA, HOTA, identity switches; detections with other tracks than by "
        "trackers"
    )
    for name, tracker in TRACKERS.items():
        for kind in KINDS:
            data = [stream(kind, seed) for seed in range(3)]
            tracks = {str(seed): track_sequence(tracker, each.frames) for seed, each in enumerate(data)}
            truths = {str(seed): each.truth for seed, each in enumerate(data)}
            line = shown(evaluate_tracks(truths, tracks, ["object"])["class_averaged"])
            if peers:
                pairs = [ids_of_both(name, each.frames) for each in data]
                different = sum(int((ours != theirs).sum()) for ours, theirs in pairs)
                other = {str(seed): as_tracks(each.frames, pairs[seed][1]) for seed, each in enumerate(data)}
                line += (
                    f"; trackers {shown(evaluate_tracks(truths, other, ['object'])['class_averaged'])}; {different} of "
                )
                line += f"{sum(len(ours) for ours, _ in pairs):,}"
            print(f"  {name:10} {kind:10} {line}", flush=True)


def shown(scores: dict[str, float]) -> str:
    return f"{scores['MOTA']:.3f} {scores['HOTA']:.3f} {scores['IDSW']:3.0f}"


def many_objects(peers: bool, objects: int = 1000, frames: int = 20) -> None:
    """Objects on a grid that move to the right by a pixel in a frame."""
    corners = np.stack(np.meshgrid(np.arange(40.0), np.arange(objects // 40)), -1).reshape(-1, 2) * 50
    boxes = np.concatenate([corners, corners + 40], 1)
    random = np.random.default_rng(0)
    data = []
    for number in range(frames):
        noisy = boxes + np.array([number, 0, number, 0]) + random.normal(0, 1, boxes.shape)
        detections = FrameDetections(noisy, np.full(objects, 0.9))
        data.append(Frame(number, detections, np.zeros(objects, np.int64)))
    print(f"milliseconds of a frame with {objects:,} objects, fastest of {ROUNDS} rounds over {frames} frames")
    for name, tracker in TRACKERS.items():
        sides: dict[str, Callable[[], Any]] = {"opabinia": lambda tracker=tracker: track_sequence(tracker, data)}
        if peers:
            sides["trackers"] = lambda name=name: peer_ids(name, data)
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side, run in sides.items():
                start = time.process_time()
                run()
                times[side].append((time.process_time() - start) / frames * 1000)
        print(f"  {name:10} " + ", ".join(f"{side} {min(each):.1f}" for side, each in times.items()), flush=True)


def main() -> None:
    peers = find_spec("trackers") is not None
    evaluation()
    streams(peers)
    many_objects(peers)


if __name__ == "__main__":
    main()
