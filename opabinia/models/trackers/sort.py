"""SORT and ByteTrack: tracks are matched with detections by the IoU of their predicted boxes."""

from __future__ import annotations

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Fraction, NonNegative, Positive
from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.models.trackers import kalman
from opabinia.models.trackers.association import Ints, box_iou, match, others
from opabinia.models.trackers.kalman import Floats
from opabinia.models.trackers.table import TrackTable, elapsed

_MEASUREMENT_NOISE, _NOISE, _START_VARIANCE = 0.1, 0.01, 1.0
"""Variances in square pixels of the corners of boxes: of a detection, of a frame's motion, and of a new track."""


@register.tracker
def sort(
    state: TrackerState,
    frame: FrameDetections,
    /,
    *,
    new_track_score: Fraction = 0.25,
    match_iou: Fraction = 0.3,
    min_hits: Count = 3,
    keep_lost: NonNegative = 1.0,
    frame_rate: Positive = 30.0,
) -> Ints:
    """SORT (Bewley et al. 2016, arXiv:1602.00763): one assignment by IoU with the boxes that a Kalman filter predicts.

    Args:
        state: state of the sequence.
        frame: detections of the frame.
        new_track_score: minimum score of a detection that begins a track.
        match_iou: smallest IoU of a match.
        min_hits: number of detections of a track from which on it is confirmed, and reported.
        keep_lost: seconds without a match after which a confirmed track ends; others end at once.
        frame_rate: nominal frames per second, for which the noise of the motion holds.
    """
    tracks = _predicted(state, frame, frame_rate)
    ids = np.full(len(frame.boxes), -1)
    iou = box_iou(tracks.motion.position, frame.boxes)
    rows, columns = match(iou, iou, match_iou)
    _correct(tracks, rows, frame.boxes[columns])
    tracks.confirm(state, rows, min_hits)
    ids[columns] = tracks.ids[rows]

    free = others(len(ids), columns)
    alive = tracks.matched_within(keep_lost * frame_rate) & ((tracks.hits >= min_hits) | (tracks.missed == 0))
    state["tracks"] = tracks.take(alive).joined(_begun(frame.boxes[free[frame.scores[free] >= new_track_score]]))
    return ids


@register.tracker(name="bytetrack")
def byte_track(
    state: TrackerState,
    frame: FrameDetections,
    /,
    *,
    high_score: Fraction = 0.6,
    new_track_score: Fraction = 0.7,
    match_iou: Fraction = 0.1,
    min_hits: Count = 2,
    keep_lost: NonNegative = 1.0,
    frame_rate: Positive = 30.0,
) -> Ints:
    """ByteTrack (Zhang et al. 2022, arXiv:2110.06864): SORT that matches detections of low score in a second round with
    the tracks that the others left, and begins no tracks from them.

    Args:
        state: state of the sequence.
        frame: detections of the frame.
        high_score: minimum score of the detections of the first round.
        new_track_score: minimum score of a detection that begins a track.
        match_iou: smallest IoU of a match.
        min_hits: number of detections in successive frames from which on a track is confirmed, and reported.
        keep_lost: seconds without a match after which a confirmed track ends; others end at once.
        frame_rate: nominal frames per second, for which the noise of the motion holds.
    """
    tracks = _predicted(state, frame, frame_rate)
    tracks.hits[tracks.missed > 1] = 0
    ids = np.full(len(frame.boxes), -1)
    high = frame.scores >= high_score
    waiting = np.arange(len(tracks))
    predicted = tracks.motion.position.copy()
    for detections in (np.flatnonzero(high), np.flatnonzero(~high)):
        iou = box_iou(predicted[waiting], frame.boxes[detections])
        rows, columns = match(iou, iou, match_iou)
        matched, columns = waiting[rows], detections[columns]
        _correct(tracks, matched, frame.boxes[columns])
        tracks.confirm(state, matched, min_hits)
        ids[columns] = tracks.ids[matched]
        high[columns] = False  # only those that are left can begin a track
        waiting = waiting[others(len(waiting), rows)]

    alive = tracks.matched_within(keep_lost * frame_rate) & ((tracks.ids >= 0) | (tracks.missed == 0))
    new = high & (frame.scores >= new_track_score)
    state["tracks"] = tracks.take(alive).joined(_begun(frame.boxes[new]))
    return ids


def _begun(boxes: Floats) -> TrackTable:
    """Return new tracks."""
    return TrackTable.new(kalman.start(boxes, _START_VARIANCE, _START_VARIANCE), hits=1)


def _predicted(state: TrackerState, frame: FrameDetections, frame_rate: float) -> TrackTable:
    """Return the tracks of the state, moved to the time of the frame."""
    step = elapsed(state, frame, frame_rate)
    tracks: TrackTable = state.get("tracks", _begun(np.zeros((0, 4))))
    tracks = tracks.take(np.arange(len(tracks)))
    tracks.motion = kalman.predict(tracks.motion, step, _NOISE, _NOISE)
    tracks.motion.position[:] += np.tile(frame.camera_shift, 2)
    tracks.wait(step)
    return tracks


def _correct(tracks: TrackTable, rows: Ints, boxes: Floats) -> None:
    tracks.hit(rows, kalman.correct(tracks.motion.take(rows), boxes, _MEASUREMENT_NOISE))
