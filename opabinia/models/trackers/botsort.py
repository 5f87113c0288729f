"""BoT-SORT (Aharon et al. 2022, arXiv:2206.14651): ByteTrack with appearance and camera motion, after the paper.

The order of the rounds of matching is that of Roboflow's ``trackers``, with whose numbers it agrees.

The filter's coordinates are center x, center y, width, height; its noise grows with the size of the box.
"""

from __future__ import annotations

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Fraction, NonNegative, Positive
from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.models.trackers import kalman
from opabinia.models.trackers.association import Ints, box_iou, match
from opabinia.models.trackers.kalman import Floats, Motion
from opabinia.models.trackers.table import TrackTable, elapsed

_POSITION_NOISE, _VELOCITY_NOISE, _MEASUREMENT_NOISE = 0.05, 0.00625, 0.05
"""Standard deviations as shares of a box's width and height (section 3.1)."""
_START, _START_VELOCITY = 2, 10
"""Those of a new track are so many times as large."""
_LOWEST_SCORE = 0.1
_SMALLEST = 1e-3


@register.tracker(name="botsort")
def bot_sort(
    state: TrackerState,
    frame: FrameDetections,
    /,
    *,
    high_score: Fraction = 0.6,
    new_track_score: Fraction = 0.7,
    match_similarity: Fraction = 0.2,
    low_match_iou: Fraction = 0.5,
    new_match_similarity: Fraction = 0.3,
    max_appearance_distance: Fraction = 0.25,
    min_appearance_iou: Fraction = 0.5,
    appearance_momentum: Fraction = 0.9,
    min_hits: Count = 2,
    keep_lost: NonNegative = 1.0,
    frame_rate: Positive = 30.0,
) -> Ints:
    """BoT-SORT (Aharon et al. 2022, arXiv:2206.14651): ByteTrack with appearance, where detections have embeddings.

    The similarity of the first round is the larger one of IoU times score and of the appearance: 1 less half the cosine
    distance, if that is small and the boxes overlap (section 3.3). Confirmed and lost tracks are matched first, then
    confirmed ones with detections of low score, then tracks with one detection.

    Args:
        state: state of the sequence.
        frame: detections of the frame.
        high_score: minimum score of the detections of the first round.
        new_track_score: minimum score of a detection that begins a track.
        match_similarity: smallest similarity of a match in the first round.
        low_match_iou: smallest IoU of a match with a detection of low score.
        new_match_similarity: smallest similarity of a match with a track that is not confirmed.
        max_appearance_distance: largest cosine distance at which appearance counts.
        min_appearance_iou: smallest IoU at which appearance counts; 0: tracks are also found again where their motion
            does not predict them.
        appearance_momentum: share of the old embedding in the moving average of a track.
        min_hits: number of detections from which on a track is confirmed, and reported. Tracks of the first frame are
            confirmed at once.
        keep_lost: seconds without a match after which a confirmed track ends; others end at once.
        frame_rate: nominal frames per second, for which the noise of the motion holds.
    """
    boxes, scores = frame.boxes, frame.scores
    embeddings = np.zeros((len(boxes), 0)) if frame.embeddings is None else frame.embeddings
    tracks = _predicted(_stored(state, embeddings), elapsed(state, frame, frame_rate), frame.camera_shift)
    ids = np.full(len(boxes), -1)
    iou = box_iou(_to_corners(tracks.motion.position), boxes)
    distance = _appearance_distance(tracks, embeddings)
    near = (distance <= max_appearance_distance) & (iou >= min_appearance_iou)
    similarity = np.maximum(iou * scores, np.where(near, 1 - distance / 2, 0))

    high, low = np.flatnonzero(scores >= high_score), np.flatnonzero((scores < high_score) & (scores > _LOWEST_SCORE))
    known, seen, fresh = _by_confirmation(tracks)
    rounds = (
        (known, high, similarity, match_similarity),
        (seen, low, iou, low_match_iou),
        (fresh, high, similarity, new_match_similarity),
    )
    used, found = np.zeros(len(boxes), bool), np.zeros(len(tracks), bool)
    for candidates, detections, values, least in rounds:
        candidates, detections = candidates[~found[candidates]], detections[~used[detections]]
        part = values[np.ix_(candidates, detections)]
        rows, columns = match(part, part, least)
        rows, columns = candidates[rows], detections[columns]
        used[columns], found[rows] = True, True
        _correct(tracks, rows, boxes[columns], embeddings[columns], appearance_momentum)
        tracks.confirm(state, rows, min_hits)
        ids[columns] = tracks.ids[rows]

    alive = tracks.matched_within(keep_lost * frame_rate) & ((tracks.ids >= 0) | found)
    new = np.flatnonzero((scores >= max(high_score, new_track_score)) & ~used)
    begun = _begun(boxes[new], embeddings[new])
    if "tracks" not in state:
        begun.confirm(state, np.arange(len(new)), hits=0)
        ids[new] = begun.ids
    state["tracks"] = tracks.take(alive).joined(begun)
    return ids


def _stored(state: TrackerState, embeddings: Floats) -> TrackTable:
    """Return the tracks of the state, none at first.

    Raises:
        ValueError: embeddings have another width than in the frames before.
    """
    tracks: TrackTable | None = state.get("tracks")
    if not tracks:
        return _begun(np.zeros((0, 4)), np.zeros((0, embeddings.shape[1])))
    before, width = tracks.extra["embedding"].shape[1], embeddings.shape[1]
    if before != width:
        raise ValueError(f"embeddings have {width} values, in the frames before {before}: all frames need the same")
    return tracks


def _appearance_distance(tracks: TrackTable, embeddings: Floats) -> Floats:
    """Return the cosine distance of each track and detection (N x M); infinite without embeddings."""
    if not embeddings.shape[1]:
        return np.full((len(tracks), len(embeddings)), np.inf)
    distance: Floats = 1 - tracks.extra["embedding"] @ embeddings.T
    return distance


def _by_confirmation(tracks: TrackTable) -> tuple[Ints, Ints, Ints]:
    """Return the confirmed tracks, first those that matched in the frame before; these alone; and the new ones."""
    lost = tracks.missed > 1
    confirmed = (tracks.ids >= 0) & ~lost
    seen = np.flatnonzero(confirmed)
    return np.concatenate([seen, np.flatnonzero(lost)]), seen, np.flatnonzero(~confirmed & ~lost)


def _begun(boxes: Floats, embeddings: Floats) -> TrackTable:
    """Return new tracks; the column ``embedding`` is their moving average, of unit length (N x D)."""
    position = _to_center(boxes)
    sizes = _sizes(position)
    variances = (_START * _POSITION_NOISE * sizes) ** 2, (_START_VELOCITY * _VELOCITY_NOISE * sizes) ** 2
    return TrackTable.new(kalman.start(position, *variances), hits=1, embedding=embeddings.copy())


def _predicted(tracks: TrackTable, step: float, camera_shift: tuple[float, float]) -> TrackTable:
    """Return the tracks at the time of the next frame."""
    tracks = tracks.take(np.arange(len(tracks)))
    sizes = _sizes(tracks.motion.position)
    noise = (_POSITION_NOISE * sizes) ** 2, (_VELOCITY_NOISE * sizes) ** 2
    tracks.motion = _with_area(kalman.predict(tracks.motion, step, *noise))
    tracks.motion.position[:, :2] += camera_shift
    tracks.wait(step)
    return tracks


def _correct(tracks: TrackTable, rows: Ints, boxes: Floats, embeddings: Floats, momentum: float) -> None:
    """Give detections to the tracks ``rows``."""
    motion = tracks.motion.take(rows)
    noise = (_MEASUREMENT_NOISE * _sizes(motion.position)) ** 2
    tracks.hit(rows, _with_area(kalman.correct(motion, _to_center(boxes), noise)))
    average = momentum * tracks.extra["embedding"][rows] + (1 - momentum) * embeddings
    tracks.extra["embedding"][rows] = average / np.linalg.norm(average, axis=1, keepdims=True).clip(_SMALLEST)


def _sizes(position: Floats) -> Floats:
    """Return width, height, width, height (N x 4)."""
    return np.tile(position[:, 2:].clip(_SMALLEST), 2)


def _with_area(motion: Motion) -> Motion:
    """Return the state with boxes of positive width and height."""
    motion.position[:, 2:] = motion.position[:, 2:].clip(_SMALLEST)
    return motion


def _to_center(boxes: Floats) -> Floats:
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)


def _to_corners(position: Floats) -> Floats:
    return np.concatenate([position[:, :2] - position[:, 2:] / 2, position[:, :2] + position[:, 2:] / 2], 1)
