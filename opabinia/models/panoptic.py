"""Panoptic and semantic maps from the outputs of detectors, decoders and mask classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import roi_align

from opabinia.contracts import IGNORE_LABEL, Detections

MAX_INSTANCES = 100
_MASK_SIZE = 112


class Segments(NamedTuple):
    """The segments of one image.

    Attributes:
        map: the number of the segment of each pixel, from 1; 0 belongs to none (int32, H x W).
        labels: class of segment 1, 2 ... (int64, S).
        scores: confidence of each (S); 1 where the model gives none.
    """

    map: Tensor
    labels: Tensor
    scores: Tensor


def paste_mask(mask: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """Stretch the mask of a detection to its box and return which pixels of the image belong to the object (bool,
    H x W), by the rule of detectron2's ``paste_masks_in_image``.

    Args:
        mask: probabilities, S x S.
        box: left, top, right, bottom in pixels of the image.
        size: height and width of the image.
    """
    weights = []
    for axis, side in enumerate(size):
        begin, end = box[1 - axis], box[3 - axis]
        cells = mask.shape[axis]
        centers = torch.arange(side, device=mask.device) + 0.5
        positions = (centers - begin) * (cells / (end - begin).clamp(min=1e-6)) - 0.5
        distances = (positions[:, None] - torch.arange(cells, device=mask.device)).abs()
        weights.append((1 - distances).clamp(min=0))
    rows, columns = weights
    with torch.autocast(mask.device.type, enabled=False):
        return rows @ mask.float() @ columns.T >= 0.5


def combine_instances(
    detections: Detections,
    labels: Tensor,
    *,
    min_score: float = 0.5,
    max_overlap: float = 0.5,
    min_area: int = 4096,
) -> Segments:
    """Combine the detections of an image with the classes of its pixels (Kirillov et al. 2019, Panoptic Feature Pyramid
    Networks, section 3; detectron2's ``combine_semantic_and_instance_outputs``).

    Instances are placed one after the other, best first; one that is covered by more than ``max_overlap`` is dropped.
    The free pixels of each class are a segment if there are enough.

    Args:
        detections: with masks, in pixels of the image.
        labels: class of each pixel of the image; 255 for pixels of objects (uint8, H x W).
        min_score: minimum score of instances.
        max_overlap: maximum share of an instance's pixels that belong to better ones.
        min_area: minimum pixels of the segments of other classes.
    """
    assert detections.masks is not None
    size = (labels.shape[0], labels.shape[1])
    segments = torch.zeros(size, dtype=torch.int32, device=labels.device)
    kept: list[int] = []
    order = detections.scores.argsort(descending=True, stable=True)
    for row in order[detections.scores[order] >= min_score].tolist():
        mask = paste_mask(detections.masks[row], detections.boxes[row], size)
        free = mask & (segments == 0)
        area, free_area = torch.stack([mask.sum(), free.sum()]).tolist()
        if area and (area - free_area) / area <= max_overlap:
            kept.append(row)
            segments[free] = len(kept)
    areas = labels[segments == 0].long().bincount(minlength=IGNORE_LABEL + 1)[:IGNORE_LABEL]
    others = ((areas > 0) & (areas >= min_area)).nonzero()[:, 0]
    for number, label in enumerate(others.tolist(), len(kept) + 1):
        segments[(labels == label) & (segments == 0)] = number
    scores = detections.scores[kept]
    return Segments(
        segments, torch.cat([detections.labels[kept], others]), torch.cat([scores, scores.new_ones(len(others))])
    )


def classify_pixels(class_logits: Tensor, mask_logits: Tensor) -> Tensor:
    """Return the score of each class at each pixel (B x K x h x w): the sum over the queries of the probability of the
    class and of the mask (Cheng et al. 2021, Per-Pixel Classification is Not All You Need, section 3.4). Computed in
    the dtype of the logits, also under autocast.

    Args:
        class_logits: B x Q x (K + 1), the last class is no object.
        mask_logits: B x Q x h x w.
    """
    with torch.autocast(mask_logits.device.type, enabled=False):
        return torch.einsum("bqk,bqhw->bkhw", class_logits.softmax(-1)[..., :-1], mask_logits.sigmoid())


def merge_masks(
    class_logits: Tensor,
    mask_logits: Tensor,
    thing_labels: Sequence[int],
    *,
    min_score: float = 0.8,
    min_visible: float = 0.8,
) -> Segments:
    """Return the segments of one image from a mask classifier (Cheng et al. 2021, section 3.4; Mask2Former's
    ``panoptic_inference``).

    Each pixel belongs to the query with the highest product of class and mask probability. Queries of the same class
    without countable objects are one segment.

    Args:
        class_logits: Q x (K + 1), the last class is no object.
        mask_logits: of the pixels of the image (Q x H x W).
        thing_labels: labels of the classes with countable objects.
        min_score: minimum probability of the class of a query, exclusive.
        min_visible: minimum share of a mask's pixels that no other query takes.
    """
    scores, labels = class_logits.softmax(-1).max(-1)
    kept = (labels != class_logits.shape[-1] - 1) & (scores > min_score)
    scores, labels, probabilities = scores[kept], labels[kept], mask_logits[kept].sigmoid()
    if not len(labels):
        return Segments(torch.zeros_like(mask_logits[0], dtype=torch.int32), labels, scores)
    owners = (scores[:, None, None] * probabilities).argmax(0)
    inside = probabilities >= 0.5
    visible = inside.gather(0, owners[None])[0]
    owned, drawn = (numbers.bincount(minlength=len(labels)) for numbers in (owners.flatten(), owners[visible]))
    valid = (drawn > 0) & (owned / inside.sum((1, 2)) >= min_visible)
    numbers, first = [0] * len(labels), dict[tuple[int, int], int]()
    queries = []
    for query in valid.nonzero()[:, 0].tolist():
        label = int(labels[query])
        key = (label, query if label in thing_labels else -1)
        if key not in first:
            queries.append(query)
            first[key] = len(queries)
        numbers[query] = first[key]
    segments = torch.tensor(numbers, dtype=torch.int32, device=owners.device)[owners] * visible
    return Segments(segments, labels[queries], scores[queries])


def top_instances(
    class_logits: Tensor, mask_logits: Tensor, thing_labels: Sequence[int], count: int = MAX_INSTANCES
) -> Detections:
    """Return the instances of B images from a mask classifier, best first, as Mask2Former's ``instance_inference``.

    The score is the probability of the class times the mean probability of the pixels of the mask. Only the ``count``
    best pairs of query and class are considered, of all classes; instances without pixels are dropped: they have label
    -1 and are the last ones. Masks are the pixels averaged over 112 x 112 cells of the box.

    Args:
        class_logits: B x Q x (K + 1), the last class is no object.
        mask_logits: of the pixels (B x Q x H x W); negative outside of the images.
        thing_labels: labels of the classes with countable objects.
        count: see above.
    """
    probabilities = class_logits.softmax(-1)[..., :-1]
    (images, number, classes), (height, width) = probabilities.shape, mask_logits.shape[-2:]
    scores, cells = probabilities.flatten(1).topk(min(count, number * classes))
    labels, queries = cells % classes, cells // classes
    masks = (mask_logits > 0).to(mask_logits.dtype)
    areas = masks.sum((2, 3))
    sure = (mask_logits.sigmoid() * masks).sum((2, 3)) / (areas + 1e-6)
    valid = (labels[..., None] == labels.new_tensor(list(thing_labels))).any(-1) & (areas.gather(1, queries) > 0)
    scores = scores * sure.gather(1, queries)
    order = torch.where(valid, scores, -1).argsort(1, descending=True)
    scores, labels, queries, valid = (values.gather(1, order) for values in (scores, labels, queries, valid))
    rows, columns = masks.amax(3), masks.amax(2)
    ends = [width - columns.flip(2).argmax(2), height - rows.flip(2).argmax(2)]
    corners = torch.stack([columns.argmax(2), rows.argmax(2), *ends], 2).to(scores.dtype)
    boxes = corners.gather(1, queries[..., None].expand(-1, -1, 4)) * valid[..., None]
    first = number * torch.arange(images, device=queries.device)[:, None]
    regions = torch.cat([(first + queries)[..., None].to(boxes.dtype), boxes], 2).flatten(0, 1)
    averages = roi_align(masks.flatten(0, 1)[:, None], regions, _MASK_SIZE, aligned=True)
    averages = averages.view(*queries.shape, _MASK_SIZE, _MASK_SIZE) * valid[..., None, None]
    return Detections(boxes, scores * valid, labels.where(valid, -1), averages)


def stack_segments(images: Sequence[Segments]) -> dict[str, Tensor]:
    """Return the predictions of a batch: ``segmentation``, ``segments``, ``segment_labels``, ``segment_scores`` and
    ``image_size`` (:data:`opabinia.contracts.Predictions`), on the device of the segments but for the last."""
    sizes = torch.tensor([image.map.shape for image in images])
    count = max(len(image.labels) for image in images)
    maps = images[0].map.new_zeros(len(images), *sizes.amax(0).tolist())
    classes = maps.new_full(maps.shape, IGNORE_LABEL, dtype=torch.uint8)
    labels = images[0].labels.new_full((len(images), count), -1)
    scores = images[0].scores.new_zeros(len(images), count)
    for row, (segments, segment_labels, segment_scores) in enumerate(images):
        height, width = segments.shape
        maps[row, :height, :width] = segments
        labels[row, : len(segment_labels)], scores[row, : len(segment_scores)] = segment_labels, segment_scores
        class_of = torch.cat([segment_labels.new_tensor([IGNORE_LABEL]), segment_labels]).to(torch.uint8)
        classes[row, :height, :width] = class_of[segments]
    names = ("segmentation", "segments", "segment_labels", "segment_scores")
    return dict(zip(names, (classes, maps, labels, scores), strict=True)) | {"image_size": sizes}
