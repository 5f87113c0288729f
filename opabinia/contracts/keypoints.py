"""The keypoints of people in COCO, and how exactly annotators mark them."""

from __future__ import annotations

COCO_SIGMAS = {
    "nose": 0.026,
    **{f"{side}_eye": 0.025 for side in ("left", "right")},
    **{f"{side}_ear": 0.035 for side in ("left", "right")},
    **{f"{side}_shoulder": 0.079 for side in ("left", "right")},
    **{f"{side}_elbow": 0.072 for side in ("left", "right")},
    **{f"{side}_wrist": 0.062 for side in ("left", "right")},
    **{f"{side}_hip": 0.107 for side in ("left", "right")},
    **{f"{side}_knee": 0.087 for side in ("left", "right")},
    **{f"{side}_ankle": 0.089 for side in ("left", "right")},
}
"""COCO's 17 keypoints of people in its order, and for each the standard deviation of annotators in units of the
object's size, the square root of its area (pycocotools' ``kpt_oks_sigmas``)."""

OTHER_SIGMA = 0.05
"""For other keypoints, of which the deviation is unknown: between COCO's eyes and hips."""
