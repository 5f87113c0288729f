"""Panoptic and semantic maps from the outputs of detectors, decoders and mask classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

from opabinia.contracts import IGNORE_LABEL, Detections
from opabinia.models.scan import scan
from opabinia.runtime.device import move_tensor

MAX_INSTANCES = 100
_MASK_SIZE = 112


class Segments(NamedTuple):
    """The segments of an image, or of B images with the same number of labels, -1 after those of their segments.

    Attributes:
        map: the number of the segment of each pixel, from 1; 0 belongs to none (int32, H x W).
        labels: class of segment 1, 2 ... (int64, S).
        scores: confidence of each (S); 1 where the model gives none.
    """

    map: Tensor
    labels: Tensor
    scores: Tensor


def paste_mask(mask: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """Stretch the masks of detections to their boxes and return which pixels of the image belong to the object (bool,
    ... x H x W), by the rule of detectron2's ``paste_masks_in_image``.

    Args:
        mask: probabilities, ... x S x S.
        box: left, top, right, bottom in pixels of the image (... x 4).
        size: height and width of the image.
    """
    weights = []
    for axis, side in enumerate(size):
        begin, end = box[..., 1 - axis, None], box[..., 3 - axis, None]
        cells = mask.shape[-1]
        centers = torch.arange(side, device=mask.device) + 0.5
        positions = (centers - begin) * (cells / (end - begin).clamp(min=1e-6)) - 0.5
        distances = (positions[..., None] - torch.arange(cells, device=mask.device)).abs()
        weights.append((1 - distances).clamp(min=0))
    rows, columns = weights
    with torch.autocast(mask.device.type, enabled=False):
        return rows @ mask.float() @ columns.transpose(-1, -2) >= 0.5


def combine_instances(
    detections: Detections,
    labels: Tensor,
    *,
    classes: int,
    min_score: float = 0.5,
    max_overlap: float = 0.5,
    min_area: int = 4096,
    area: Tensor | None = None,
) -> Segments:
    """Combine the detections of B images with the classes of their pixels (Kirillov et al. 2019, Panoptic Feature
    Pyramid Networks, section 3; detectron2's ``combine_semantic_and_instance_outputs``).

    Instances are placed one after the other, best first; one that is covered by more than ``max_overlap`` is dropped.
    The free pixels of each class are a segment if there are enough. In an exported graph this loop is a scan.

    Args:
        detections: with masks, in pixels of the image, best first (B x D ...); label -1 pads them.
        labels: class of each pixel of the image; 255 for pixels of objects (uint8, B x H x W).
        classes: K, the number of all classes. There are D + K segments at most.
        min_score: minimum score of instances.
        max_overlap: maximum share of an instance's pixels that belong to better ones.
        min_area: minimum pixels of the segments of other classes.
        area: the pixels of the images (bool, B x H x W); None: all.
    """
    boxes, scores, things, masks, _ = detections
    assert masks is not None
    valid = (scores >= min_score) & (things >= 0)
    inside = torch.ones_like(labels, dtype=torch.bool) if area is None else area
    empty = torch.zeros_like(labels, dtype=torch.int32)

    def place(carry: tuple[Tensor, Tensor], row: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        segments, count = carry
        pixels = paste_mask(row[0], row[1], (labels.shape[-2], labels.shape[-1])) & inside & row[2][:, None, None]
        free = pixels & (segments == 0)
        covered, total = (pixels & ~free).sum((1, 2)), pixels.sum((1, 2))
        kept = (total > 0) & (covered / total.clamp(min=1) <= max_overlap)
        count = count + kept
        return (torch.where(free & kept[:, None, None], count[:, None, None], segments), count), count * kept

    rows = tuple(values.detach().transpose(0, 1) for values in (masks, boxes, valid))
    carry = (empty, torch.zeros_like(labels[:, 0, 0], dtype=torch.int32))
    (segments, count), numbers = scan(place, carry, rows)
    free = (segments == 0) & inside & (labels != IGNORE_LABEL)
    cells = torch.where(free, labels, classes).long().flatten(1)
    areas = cells.new_zeros(cells.shape[0], classes + 1).scatter_add(1, cells, torch.ones_like(cells))[:, :-1]
    others = (areas > 0) & (areas >= min_area)
    others = (count[:, None] + others.cumsum(1)) * others
    stuff = F.pad(others, (0, 1)).gather(1, cells).view_as(segments)
    numbers = torch.cat([numbers.transpose(0, 1), others], 1)
    labels = torch.cat([things, torch.arange(classes, device=things.device).expand_as(others)], 1)
    return _compact(segments + stuff.int(), numbers, labels, torch.cat([scores, scores.new_ones(others.shape)], 1))


def _compact(segments: Tensor, numbers: Tensor, labels: Tensor, scores: Tensor) -> Segments:
    """Return labels and scores in the order of their segments' numbers (B x N, 0: no segment)."""
    columns = (F.pad(torch.full_like(labels, -1), (1, 0)), labels), (F.pad(torch.zeros_like(scores), (1, 0)), scores)
    ordered = [empty.scatter(1, numbers.long(), values)[:, 1:] for empty, values in columns]
    return Segments(segments, *ordered)


def first_image(segments: Segments) -> Segments:
    """Return the segments of the first of B images, without padding."""
    count = int((segments.labels[0] >= 0).sum())
    return Segments(segments.map[0], segments.labels[0, :count], segments.scores[0, :count])


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
    ``panoptic_inference``); see :func:`merge_queries`.

    Args:
        class_logits: Q x (K + 1), the last class is no object.
        mask_logits: logits of the pixels of the image (Q x H x W).
        thing_labels: labels of the classes with countable objects.
        min_score: minimum probability of the class of a query, exclusive.
        min_visible: minimum share of a mask's pixels that no other query takes.
    """
    scores, labels = class_logits.softmax(-1).max(-1)
    kept = ((labels != class_logits.shape[-1] - 1) & (scores > min_score)).nonzero().flatten()
    if not len(kept):  # the others are dropped here, since they take memory
        return Segments(torch.zeros_like(mask_logits[0], dtype=torch.int32), labels[:0], scores[:0])
    classes, masks = class_logits[None, kept], mask_logits[None, kept]
    return first_image(merge_queries(classes, masks, thing_labels, min_score=min_score, min_visible=min_visible))


def merge_queries(
    class_logits: Tensor,
    mask_logits: Tensor,
    thing_labels: Sequence[int],
    *,
    min_score: float = 0.8,
    min_visible: float = 0.8,
    area: Tensor | None = None,
) -> Segments:
    """Return the segments of B images from a mask classifier, at most one for each query.

    Each pixel belongs to the query with the highest product of class and mask probability. Queries of the same class
    without countable objects are one segment.

    Args:
        class_logits, mask_logits, thing_labels, min_score, min_visible: see :func:`merge_masks`; of B images.
        area: the pixels of the images (bool, B x H x W); None: all.
    """
    scores, labels = class_logits.softmax(-1).max(-1)
    kept = (labels != class_logits.shape[-1] - 1) & (scores > min_score)
    probabilities = mask_logits.sigmoid()
    owners = (torch.where(kept, scores, -1)[..., None, None] * probabilities).argmax(1, keepdim=True)
    inside = probabilities >= 0.5
    inside = inside if area is None else inside & area[:, None]
    visible = inside.gather(1, owners)
    queries = torch.arange(scores.shape[1], device=scores.device)
    owned = owners == queries[:, None, None]
    drawn = (owned & visible).sum((2, 3))
    owned = owned if area is None else owned & area[:, None]
    valid = kept & (drawn > 0) & (owned.sum((2, 3)) / inside.sum((2, 3)).clamp(min=1) >= min_visible)
    is_thing = _is_any_of(labels, thing_labels)
    same = (labels[:, :, None] == labels[:, None]) & ~is_thing[..., None] | (queries == queries[:, None])
    first = (same & valid[:, None]).int().argmax(2)
    numbers = (valid & (first == queries)).cumsum(1) * valid
    segments = numbers.gather(1, first) * valid
    pixels = segments.gather(1, owners.flatten(1)).view_as(owners) * visible
    return _compact(pixels[:, 0].int(), numbers * (first == queries), labels, scores)


def _is_any_of(labels: Tensor, classes: Sequence[int]) -> Tensor:
    """Return which labels are of some classes (bool, like ``labels``)."""
    return (labels[..., None] == move_tensor(torch.tensor(list(classes)), labels.device)).any(-1)


def top_instances(
    class_logits: Tensor, mask_logits: Tensor, thing_labels: Sequence[int], count: int = MAX_INSTANCES
) -> Detections:
    """Return the instances of B images from a mask classifier, best first, as Mask2Former's ``instance_inference``.

    The score is the probability of the class times the mean probability of the pixels of the mask. Only the ``count``
    best pairs of query and class are considered, of all classes; instances without pixels are dropped: they have label
    -1 and are the last ones. Masks are the pixels averaged over 112 x 112 cells of the box.

    Args:
        class_logits: B x Q x (K + 1), the last class is no object.
        mask_logits: logits of the pixels (B x Q x H x W); negative outside of the images.
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
    valid = _is_any_of(labels, thing_labels) & (areas.gather(1, queries) > 0)
    scores = scores * sure.gather(1, queries)
    order = torch.where(valid, scores, -1).argsort(1, descending=True)
    scores, labels, queries, valid = (values.gather(1, order) for values in (scores, labels, queries, valid))
    rows, columns = masks.amax(3), masks.amax(2)
    ends = [width - columns.flip(2).argmax(2), height - rows.flip(2).argmax(2)]
    corners = torch.stack([columns.argmax(2), rows.argmax(2), *ends], 2).to(scores.dtype)
    boxes = corners.gather(1, queries[..., None].expand(-1, -1, 4)) * valid[..., None]
    first = number * torch.arange(images, device=queries.device)[:, None]
    regions = torch.cat([(first + queries)[..., None].to(boxes.dtype), boxes], 2).flatten(0, 1)
    averages = roi_align(masks.flatten(0, 1)[:, None], regions, _MASK_SIZE, sampling_ratio=0, aligned=True)
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
        class_of = F.pad(segment_labels, (1, 0), value=IGNORE_LABEL).to(torch.uint8)
        classes[row, :height, :width] = class_of[segments]
    names = ("segmentation", "segments", "segment_labels", "segment_scores")
    return dict(zip(names, (classes, maps, labels, scores), strict=True)) | {"image_size": sizes}
