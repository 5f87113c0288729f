"""The uncertainty of predictions, from 0 (certain) to 1.

Shapes: N samples or B x H x W pixels, K classes, D detections of an image.
"""

from __future__ import annotations

from math import log
from typing import Literal

import torch
from torch import Tensor

from opabinia.contracts.rotated_boxes import pairwise_iou

Measure = Literal["margin", "entropy"]


def class_uncertainty(probabilities: Tensor, measure: Measure) -> Tensor:
    """Return the uncertainty of class probabilities that sum to 1 (N x K or B x K x H x W; without the K).

    ``margin``: 1 - the difference of the two highest (Scheffer, Decomain and Wrobel 2001, "best versus second best").
    ``entropy``: that of the probabilities, relative to equal ones (Shannon 1948).
    """
    classes = probabilities.shape[1]
    if classes < 2:
        return torch.zeros_like(probabilities[:, 0])
    if measure == "margin":
        best = probabilities.topk(2, dim=1).values
        return 1 - (best[:, 0] - best[:, 1])
    entropy: Tensor = torch.special.entr(probabilities).sum(1)
    return entropy / log(classes)


def binary_uncertainty(probabilities: Tensor, measure: Measure) -> Tensor:
    """Return the uncertainty of yes or no: of labels that do not exclude each other, or of scores of detections (any
    shape), highest at 0.5."""
    if measure == "margin":
        return 1 - (2 * probabilities - 1).abs()
    entropy: Tensor = torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)
    return entropy / log(2)


def pixel_uncertainty(logits: Tensor, measure: Measure) -> Tensor:
    """Return the mean uncertainty of the pixels of each image (B), of logits B x K x H x W."""
    return class_uncertainty(logits.float().softmax(1), measure).mean((1, 2))


def detection_uncertainty(
    detections: tuple[Tensor, Tensor, Tensor], mirrored: tuple[Tensor, Tensor, Tensor], measure: Measure
) -> Tensor:
    """Return the uncertainty of the detections in an image: of their classes, and of their boxes under a change of the
    image that should not move them.

    After the rule LS+C of Kao, Lee, Sen and Liu, Localization-Aware Active Learning for Object Detection (2018): class
    uncertainty minus the stability of boxes, which is the mean IoU with the corresponding box in a changed image,
    weighted by the scores. Here the change is mirroring instead of noise, a corresponding box is of the same class,
    class uncertainty is weighted like the stability instead of being that of one detection, and the result is from 0 to
    1. An image without detections has 0.

    Args:
        detections: boxes (D x 4 or D x 5), scores and labels (D) in the image; labels of -1 are padding.
        mirrored: those in the mirrored image, mirrored back.
        measure: measure of class uncertainty.
    """
    (boxes, scores, labels), (other_boxes, _, other_labels) = detections, mirrored
    weights = torch.where(labels >= 0, scores, 0.0)
    if not len(boxes):
        return scores.new_zeros(())
    stability = scores.new_zeros(len(boxes))
    if len(other_boxes):
        same = labels[:, None] == other_labels
        stability = torch.where(same, pairwise_iou(boxes, other_boxes), 0.0).amax(1)
    uncertainty = (binary_uncertainty(scores.clamp(0, 1), measure) + 1 - stability) / 2
    return (weights * uncertainty).sum() / weights.sum().clamp(min=1e-12)
