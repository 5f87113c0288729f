"""Synthetic detections of moving objects with known tracks: linear motion, occlusion, nonlinear motion, crowds.

Made for comparisons of trackers without images, after the four kinds of streams of Geti's (pull request 7066).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opabinia.contracts.tracking import FrameDetections, TrackGroundTruth
from opabinia.models.trackers.sequences import Frame

KINDS = ("linear", "occlusion", "nonlinear", "crowded")
FRAMES = 300


class Stream(NamedTuple):
    """Frames with detections, and the ground truth."""

    frames: list[Frame]
    truth: TrackGroundTruth


def stream(kind: str, seed: int, frames: int = FRAMES) -> Stream:
    """Return a stream of 640 x 480 pixels. Objects are not in the ground truth while they are hidden.

    Every visible object is detected with a probability of 0.97, with a noise of 1 pixel and a score around 0.85 (low in
    5 % of the cases); a false detection appears in 5 % of the frames.
    """
    random = np.random.default_rng([seed, KINDS.index(kind)])
    objects = 40 if kind == "crowded" else 12
    size = random.uniform(30, 60, (objects, 2)) * (0.8 if kind == "crowded" else 1)
    position = random.uniform([60, 60], [580, 420], (objects, 2))
    velocity = random.uniform(-3, 3, (objects, 2))
    phase, speed = random.uniform(0, 2 * np.pi, objects), random.uniform(0.02, 0.06, objects)
    hidden_from = random.integers(30, frames, objects)
    truth, result = [], []
    for frame in range(frames):
        if kind == "nonlinear":
            turn = speed * frame + phase
            velocity = 4 * np.stack([np.cos(turn), np.sin(1.7 * turn)], 1)
        position = position + velocity
        bounce = (position < [30, 30]) | (position > [610, 450])
        velocity = np.where(bounce, -velocity, velocity)
        position = position.clip([30, 30], [610, 450])
        boxes = np.concatenate([position - size / 2, position + size / 2], 1)
        visible = np.ones(objects, bool)
        if kind in ("occlusion", "crowded"):
            visible = (frame < hidden_from) | (frame >= hidden_from + 12)
        truth += [[frame, row, *boxes[row], 0, 0] for row in np.flatnonzero(visible)]
        found = visible & (random.random(objects) < 0.97)
        noisy = boxes[found] + random.normal(0, 1, (found.sum(), 4))
        scores = random.normal(0.85, 0.05, found.sum()).clip(0, 1)
        scores[random.random(len(scores)) < 0.05] = 0.4
        if random.random() < 0.05:
            corner = random.uniform(0, 400, 2)
            noisy, scores = np.vstack([noisy, [*corner, *(corner + 40)]]), np.append(scores, 0.65)
        order = random.permutation(len(scores))
        result.append(Frame(frame, FrameDetections(noisy[order], scores[order]), np.zeros(len(scores), np.int64)))
    table = np.array(truth)
    whole = table[:, [0, 1, 6, 7]].astype(np.int64).T
    return Stream(result, TrackGroundTruth(whole[0], whole[1], table[:, 2:6], whole[2], whole[3]))
