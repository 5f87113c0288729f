"""OC-SORT (Cao et al. 2023, arXiv:2203.14360): SORT that trusts observations more than its estimates.

The filter's coordinates are center x, center y, area, and width / height, which has no velocity.
"""

from __future__ import annotations

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Fraction, NonNegative, Positive
from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.models.trackers import kalman
from opabinia.models.trackers.association import Ints, box_iou, match, others
from opabinia.models.trackers.kalman import Floats, Motion
from opabinia.models.trackers.table import TrackTable, elapsed

_MEASUREMENT_NOISE = np.array([1.0, 1, 10, 10])
_POSITION_NOISE, _VELOCITY_NOISE = np.array([1.0, 1, 1, 1]), np.array([0.01, 0.01, 0.0001, 0])
_START_VARIANCE, _START_VELOCITY_VARIANCE = 10.0, np.array([10_000.0, 10_000, 10_000, 0])
_TINY = 1e-6


@register.tracker(name="ocsort")
def oc_sort(
    state: TrackerState,
    frame: FrameDetections,
    /,
    *,
    high_score: Fraction = 0.6,
    match_iou: Fraction = 0.3,
    direction_weight: NonNegative = 0.2,
    direction_frames: Count = 3,
    min_hits: Count = 3,
    keep_lost: NonNegative = 1.0,
    frame_rate: Positive = 30.0,
) -> Ints:
    """OC-SORT (Cao et al. 2023, arXiv:2203.14360): SORT with three corrections by observations.

    The assignment also rewards detections in the direction of a track's last observations; detections that are left are
    matched with the last observations of the tracks that are left; and when a lost track is found, its filter is run
    again over the gap, along a straight line.

    Args:
        state: state of the sequence.
        frame: detections of the frame.
        high_score: minimum score of a detection; others are ignored.
        match_iou: smallest IoU of a match.
        direction_weight: weight of the direction beside the IoU.
        direction_frames: frames between the two observations that give the direction of a track.
        min_hits: number of detections in successive frames, after the first one, from which on a track is confirmed,
            and reported. At the start of a sequence, one is enough.
        keep_lost: seconds without a match after which a track ends.
        frame_rate: nominal frames per second, for which the noise of the motion holds.
    """
    step = elapsed(state, frame, frame_rate)
    tracks = _predicted(state.get("tracks", _begun(np.zeros((0, 4)), direction_frames)), step, frame.camera_shift)
    ids = np.full(len(frame.boxes), -1)
    high = np.flatnonzero(frame.scores >= high_score)
    boxes, scores = frame.boxes[high], frame.scores[high]
    number = state.get("frames", 0)
    needed = min_hits if number > min_hits else 0

    iou = box_iou(_to_corners(tracks.motion.position), boxes)
    rows, columns = match(iou + direction_weight * _same_direction(tracks, boxes) * scores, iou, match_iou)
    left, free = others(len(tracks), rows), others(len(boxes), columns)
    last_iou = box_iou(tracks.extra["last"][left], boxes[free])
    last_rows, last_columns = match(last_iou, last_iou, match_iou)
    for matched, detections in ((rows, columns), (left[last_rows], free[last_columns])):
        _observe(tracks, matched, boxes[detections], step)
        tracks.confirm(state, matched, needed)
        reported = tracks.hits[matched] >= needed
        ids[high[detections[reported]]] = tracks.ids[matched[reported]]

    new = _begun(boxes[free[others(len(free), last_columns)]], direction_frames)
    state["tracks"] = tracks.take(tracks.matched_within(keep_lost * frame_rate)).joined(new)
    state["frames"] = number + bool(len(tracks) or len(frame.boxes))
    return ids


def _begun(boxes: Floats, direction_frames: int) -> TrackTable:
    """Return new tracks.

    Columns: the last observation (``last``, N x 4), those of the frames before (``past``, N x F x 4, the nearest first;
    ``seen``, N x F: whether there is one), the direction between two of them (``direction``, N x 2, y and x; 0 if
    unknown), whether there is a second observation (``moved``), and the filter at the start of a gap (``frozen``,
    N x 5 x 4).
    """
    count = len(boxes)
    return TrackTable.new(
        kalman.start(_to_center(boxes), _START_VARIANCE, _START_VELOCITY_VARIANCE),
        hits=0,
        last=boxes.copy(),
        past=np.zeros((count, direction_frames, 4)),
        seen=np.zeros((count, direction_frames), bool),
        direction=np.zeros((count, 2)),
        moved=np.zeros(count, bool),
        frozen=np.zeros((count, 5, 4)),
    )


def _predicted(tracks: TrackTable, step: float, camera_shift: tuple[float, float]) -> TrackTable:
    """Return the tracks at the time of the next frame."""
    tracks = tracks.take(np.arange(len(tracks)))
    extra = tracks.extra
    lost = np.flatnonzero(tracks.missed == 1)
    extra["frozen"][lost] = np.stack(tracks.motion.take(lost), 1)
    tracks.hits[tracks.missed > 0] = 0
    for name, newest in (("past", extra["last"]), ("seen", (tracks.missed == 0) & extra["moved"])):
        extra[name] = np.concatenate([newest[:, None], extra[name][:, :-1]], 1)
    tracks.motion = _advanced(tracks.motion, step)
    tracks.motion.position[:, :2] += camera_shift
    extra["frozen"][:, 0, :2] += camera_shift
    extra["last"] += np.tile(camera_shift, 2)
    extra["past"] += np.tile(camera_shift, 2)
    tracks.wait(step)
    return tracks


def _advanced(motion: Motion, step: float) -> Motion:
    """Return the prediction; areas that would become negative stay as they are."""
    velocity = motion.velocity.copy()
    velocity[motion.position[:, 2] + step * velocity[:, 2] <= 0, 2] = 0
    return kalman.predict(motion._replace(velocity=velocity), step, _POSITION_NOISE, _VELOCITY_NOISE)


def _observe(tracks: TrackTable, rows: Ints, boxes: Floats, step: float) -> None:
    """Give detections to the tracks ``rows``."""
    extra = tracks.extra
    offset = _centers(boxes) - _centers(_earlier(tracks)[rows])
    direction = offset / (np.linalg.norm(offset, axis=1, keepdims=True) + _TINY)
    extra["direction"][rows] = np.where(extra["moved"][rows, None], direction, 0)
    motion = tracks.motion.take(rows)
    for index in np.flatnonzero(tracks.missed[rows] > 1):  # few: lost and found
        row = rows[index]
        frozen = Motion(*extra["frozen"][row][:, None])
        gap = int(tracks.missed[row])
        motion.put([index], _replayed(frozen, extra["last"][row], boxes[index], gap, step))
    tracks.hit(rows, kalman.correct(motion, _to_center(boxes), _MEASUREMENT_NOISE))
    extra["last"][rows], extra["moved"][rows] = boxes, True


def _replayed(frozen: Motion, last: Floats, box: Floats, gap: int, step: float) -> Motion:
    """Return the filter of a lost track as if it had been seen in all ``gap`` frames, on the line from the last
    observation to the new one."""
    first, end = (np.concatenate([_centers(each[None])[0], each[2:] - each[:2]]) for each in (last, box))
    for number in range(1, gap + 1):
        y, x, width, height = first + (end - first) * number / gap
        measured = np.array([[x, y, width * height, width / max(height, _TINY)]])
        frozen = kalman.correct(frozen, measured, _MEASUREMENT_NOISE)
        if number < gap:
            frozen = _advanced(frozen, step)
    return frozen


def _earlier(tracks: TrackTable) -> Floats:
    """Return the oldest observation of the last frames, or else the last one (N x 4)."""
    seen = tracks.extra["seen"][:, ::-1]
    oldest = seen.shape[1] - 1 - seen.argmax(1)
    past = tracks.extra["past"][np.arange(len(tracks)), oldest]
    return np.where(seen.any(1, keepdims=True), past, tracks.extra["last"])


def _same_direction(tracks: TrackTable, boxes: Floats) -> Floats:
    """Return how well the way from an earlier observation to each box agrees with a track's direction, from -0.5 to 0.5
    (N x M); 0 without a direction."""
    offset = _centers(boxes) - _centers(_earlier(tracks))[:, None]
    offset /= np.linalg.norm(offset, axis=2, keepdims=True) + _TINY
    direction = tracks.extra["direction"]
    angle = np.arccos((offset * direction[:, None]).sum(2).clip(-1, 1))
    return np.where(direction.any(1, keepdims=True), 0.5 - angle / np.pi, 0)


def _centers(boxes: Floats) -> Floats:
    """Return y and x of the centers."""
    return (boxes[:, [1, 0]] + boxes[:, [3, 2]]) / 2


def _to_center(boxes: Floats) -> Floats:
    width, height = (boxes[:, 2:] - boxes[:, :2]).T
    center = _centers(boxes)
    return np.stack([center[:, 1], center[:, 0], width * height, width / (height + _TINY)], 1)


def _to_corners(position: Floats) -> Floats:
    x, y, area, ratio = position.T
    width = np.sqrt(np.maximum(area * ratio, _TINY))
    height = area / width
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 1)
