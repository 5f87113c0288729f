"""Expected behavior of the runs in ``cases.py`` on the device: how often the host waits, and why.

A wait costs the time that the GPU idles until the host has queued the next kernels. Runs that are not listed do not
wait in a step, and in an evaluation batch only for its predictions. Detectors and decoders have batches of two images.
An evaluation batch of a detector includes the validation loss, and with it the waits of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tests.device.phases import EVALUATION, step_phase
from tests.device.records import Event
from tests.device.runs import Events

Waits = Mapping[str, int]
"""Number of host waits by function of the package and kind, such as ``RegionPool.forward: nonzero``."""

PREDICTIONS = "to_host.<locals>.wait: event"
"""The wait for the predictions of an evaluation batch, which evaluators read on the host; it is not listed."""

REASONS = {
    # two-stage detectors
    "RegionPool.forward: nonzero": "the regions of each level of the pyramid",
    "RegionProposals.scored_proposals: boolean index": "proposals with a positive size",
    "RegionProposals.scored_proposals: copy to the device": "torchvision's batched_nms",
    "RegionProposals.scored_proposals: nms": "the kept proposals of each image",
    "Regions.at.<locals>.<genexpr>: boolean index": "the regions of each image with an object",
    "CascadeHead.losses.<locals>.<listcomp>: boolean index": "the regions of each image that are not empty",
    "sample_regions: boolean index": "the candidates of each image to draw from",
    "postprocess: nonzero": "boxes above the score threshold",
    "postprocess: copy to the device": "torchvision's batched_nms",
    "postprocess: nms": "the kept boxes of each image",
    "decode_boxes: copy to the device": "torchvision's constants, for each level",
    "KeypointHead.losses: nonzero": "the keypoints inside their regions",
    "KeypointHead.losses: copy to the device": "a constant",
    "heatmaps_to_keypoints: item": "the size of the largest region",
    # dense detectors
    "suppress.<locals>.<genexpr>: boolean index": "boxes above the score threshold",
    "box_nms: copy to the device": "torchvision's batched_nms",
    "box_nms: nms": "the kept boxes of each image",
    "box_corners: copy to the device": "a constant",
    "rotated_nms: boolean index": "the boxes that remain after each round",
    "rotated_nms: equal": "the end of the rounds",
    "rotated_nms: nonzero": "pairs of boxes that overlap",
    "rotated_nms.<locals>.<listcomp>: boolean index": "the boxes of each class",
    "scale_to_original: copy to the device": "the original size of each image",
    # detectors by queries
    "LibraryDetector._run: copy to the device": "transformers creates constants",
    "LibraryDetector._run: item": "transformers checks masks and sizes",
    "QueryDetector.detect_batch: copy to the device": "the sizes of the images",
    "QueryDetector.losses: copy to the device": "the number of objects",
    "StandardStep._accumulate: boolean index": "the backward pass of box_losses",
    "box_losses: boolean index": "torchvision's generalized_box_iou_loss",
    "collect_objects: copy to the device": "the sizes of the images",
    "match_queries: copy to the host": "queries are matched with objects on the host, by SciPy",
    "Mask2Former.query_masks: copy to the device": "transformers creates constants",
    "Mask2Former.query_masks: item": "transformers checks sizes",
    "MaskCriterion._layer: copy to the device": "weights of classes, for each layer",
    "MaskCriterion.match: copy to the host": "queries are matched with segments on the host, by SciPy",
    "MaskClassifier.detect.<locals>.<genexpr>: boolean index": "the detections of each image",
    "top_instances: copy to the device": "a constant, for each image",
    # segmentation
    "Panoptic._combined.<locals>.<genexpr>: boolean index": "the detections of each image",
    "first_image: item": "the number of detections of the first image",
    "stack_segments: copy to the device": "a constant",
    "semantic_segments: boolean index": "the classes of each map",
    "semantic_segments: unique": "the classes of each map",
    "_present_classes: nonzero": "the classes of a batch, whose losses are computed one by one",
    # optimizers and mixed precision
    "StandardStep.__call__: item": "torch's ASGD and Adafactor read numbers of each parameter; GradScaler reads "
    "whether an optimizer without fused kernels must be skipped",
    "StandardStep.__call__: copy to the device": "torch's ASGD creates numbers of each parameter",
    "UpdateGuard.update_unless: item": "an optimizer without fused kernels cannot be skipped on the device",
}
"""The number or constant for which the host waits, by wait."""

STEP: dict[str, Waits] = {
    "task/panoptic": {
        "decode_boxes: copy to the device": 10,
        "RegionProposals.scored_proposals: boolean index": 6,
        "RegionProposals.scored_proposals: copy to the device": 2,
        "RegionProposals.scored_proposals: nms": 2,
        "sample_regions: boolean index": 2,
        "RegionPool.forward: nonzero": 8,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
    "detector/cascade_rcnn": {
        "decode_boxes: copy to the device": 14,
        "RegionProposals.scored_proposals: boolean index": 6,
        "RegionProposals.scored_proposals: copy to the device": 2,
        "RegionProposals.scored_proposals: nms": 2,
        "sample_regions: boolean index": 2,
        "RegionPool.forward: nonzero": 16,
        "CascadeHead.losses.<locals>.<listcomp>: boolean index": 4,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
    "detector/deformable_detr": {
        "collect_objects: copy to the device": 1,
        "LibraryDetector._run: copy to the device": 1,
        "LibraryDetector._run: item": 1,
        "QueryDetector.losses: copy to the device": 1,
        "match_queries: copy to the host": 1,
        "box_losses: boolean index": 8,
        "StandardStep._accumulate: boolean index": 2,
    },
    "detector/detr": {
        "collect_objects: copy to the device": 1,
        "LibraryDetector._run: item": 3,
        "QueryDetector.losses: copy to the device": 1,
        "match_queries: copy to the host": 1,
        "box_losses: boolean index": 10,
        "StandardStep._accumulate: boolean index": 10,
    },
    "detector/faster_rcnn": {
        "decode_boxes: copy to the device": 10,
        "RegionProposals.scored_proposals: boolean index": 6,
        "RegionProposals.scored_proposals: copy to the device": 2,
        "RegionProposals.scored_proposals: nms": 2,
        "sample_regions: boolean index": 2,
        "RegionPool.forward: nonzero": 4,
    },
    "detector/keypoint_rcnn": {
        "decode_boxes: copy to the device": 10,
        "RegionProposals.scored_proposals: boolean index": 6,
        "RegionProposals.scored_proposals: copy to the device": 2,
        "RegionProposals.scored_proposals: nms": 2,
        "sample_regions: boolean index": 2,
        "RegionPool.forward: nonzero": 8,
        "Regions.at.<locals>.<genexpr>: boolean index": 16,
        "KeypointHead.losses: nonzero": 1,
        "KeypointHead.losses: copy to the device": 1,
    },
    "detector/mask2former": {
        "Mask2Former.query_masks: copy to the device": 2,
        "Mask2Former.query_masks: item": 1,
        "MaskCriterion.match: copy to the host": 1,
        "MaskCriterion._layer: copy to the device": 3,
    },
    "detector/mask_rcnn": {
        "decode_boxes: copy to the device": 10,
        "RegionProposals.scored_proposals: boolean index": 6,
        "RegionProposals.scored_proposals: copy to the device": 2,
        "RegionProposals.scored_proposals: nms": 2,
        "sample_regions: boolean index": 2,
        "RegionPool.forward: nonzero": 8,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
    "detector/rf_detr": {
        "collect_objects: copy to the device": 1,
        "LibraryDetector._run: copy to the device": 1,
        "QueryDetector.losses: copy to the device": 1,
        "match_queries: copy to the host": 1,
        "box_losses: boolean index": 15,
        "StandardStep._accumulate: boolean index": 15,
    },
    "detector/rotated_fcos": {"box_corners: copy to the device": 1},
    "decoder/mask2former": {
        "Mask2Former.query_masks: copy to the device": 2,
        "Mask2Former.query_masks: item": 1,
        "semantic_segments: unique": 2,
        "semantic_segments: boolean index": 2,
        "MaskCriterion.match: copy to the host": 1,
        "MaskCriterion._layer: copy to the device": 3,
    },
    "segmentation_loss/boundary": {"_present_classes: nonzero": 1},
    "segmentation_loss/lovasz": {"_present_classes: nonzero": 1},
    "optimizer/adafactor": {"StandardStep.__call__: item": 94},
    "optimizer/asgd": {"StandardStep.__call__: item": 141, "StandardStep.__call__: copy to the device": 94},
    "setting/fp16_unfused": {"StandardStep.__call__: item": 1},
    "setting/fp16_detection": {
        "decode_boxes: copy to the device": 20,
        "RegionProposals.scored_proposals: boolean index": 6,
        "RegionProposals.scored_proposals: copy to the device": 2,
        "RegionProposals.scored_proposals: nms": 2,
        "sample_regions: boolean index": 2,
        "RegionPool.forward: nonzero": 16,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
    "setting/skip_unfused": {"UpdateGuard.update_unless: item": 1},
}
"""Waits of a training step after the first; of other runs none."""

EVALUATION_BATCH: dict[str, Waits] = {
    "task/detection": {
        "suppress.<locals>.<genexpr>: boolean index": 6,
        "box_nms: copy to the device": 2,
        "box_nms: nms": 2,
        "scale_to_original: copy to the device": 4,
    },
    "task/multitask": {
        "suppress.<locals>.<genexpr>: boolean index": 6,
        "box_nms: copy to the device": 2,
        "box_nms: nms": 2,
        "scale_to_original: copy to the device": 4,
    },
    "task/panoptic": {
        "decode_boxes: copy to the device": 22,
        "RegionProposals.scored_proposals: boolean index": 12,
        "RegionProposals.scored_proposals: copy to the device": 4,
        "RegionProposals.scored_proposals: nms": 4,
        "RegionPool.forward: nonzero": 16,
        "postprocess: nonzero": 2,
        "postprocess: copy to the device": 2,
        "postprocess: nms": 2,
        "scale_to_original: copy to the device": 4,
        "Panoptic._combined.<locals>.<genexpr>: boolean index": 8,
        "first_image: item": 2,
        "stack_segments: copy to the device": 2,
        "sample_regions: boolean index": 2,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
    "detector/cascade_rcnn": {
        "decode_boxes: copy to the device": 30,
        "RegionProposals.scored_proposals: boolean index": 12,
        "RegionProposals.scored_proposals: copy to the device": 4,
        "RegionProposals.scored_proposals: nms": 4,
        "RegionPool.forward: nonzero": 32,
        "postprocess: nonzero": 2,
        "postprocess: copy to the device": 2,
        "postprocess: nms": 2,
        "scale_to_original: copy to the device": 4,
        "sample_regions: boolean index": 2,
        "CascadeHead.losses.<locals>.<listcomp>: boolean index": 4,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
    "detector/deformable_detr": {
        "LibraryDetector._run: copy to the device": 2,
        "QueryDetector.detect_batch: copy to the device": 1,
        "scale_to_original: copy to the device": 4,
        "collect_objects: copy to the device": 1,
        "QueryDetector.losses: copy to the device": 1,
        "match_queries: copy to the host": 1,
        "box_losses: boolean index": 8,
    },
    "detector/detr": {
        "LibraryDetector._run: item": 4,
        "QueryDetector.detect_batch: copy to the device": 1,
        "scale_to_original: copy to the device": 4,
        "collect_objects: copy to the device": 1,
        "QueryDetector.losses: copy to the device": 1,
        "match_queries: copy to the host": 1,
        "box_losses: boolean index": 8,
    },
    "detector/faster_rcnn": {
        "decode_boxes: copy to the device": 22,
        "RegionProposals.scored_proposals: boolean index": 12,
        "RegionProposals.scored_proposals: copy to the device": 4,
        "RegionProposals.scored_proposals: nms": 4,
        "RegionPool.forward: nonzero": 8,
        "postprocess: nonzero": 2,
        "postprocess: copy to the device": 2,
        "postprocess: nms": 2,
        "scale_to_original: copy to the device": 4,
        "sample_regions: boolean index": 2,
    },
    "detector/fcos": {
        "suppress.<locals>.<genexpr>: boolean index": 6,
        "box_nms: copy to the device": 2,
        "box_nms: nms": 2,
        "scale_to_original: copy to the device": 4,
    },
    "detector/keypoint_rcnn": {
        "decode_boxes: copy to the device": 22,
        "RegionProposals.scored_proposals: boolean index": 12,
        "RegionProposals.scored_proposals: copy to the device": 4,
        "RegionProposals.scored_proposals: nms": 4,
        "RegionPool.forward: nonzero": 16,
        "postprocess: nonzero": 2,
        "postprocess: copy to the device": 2,
        "postprocess: nms": 2,
        "heatmaps_to_keypoints: item": 1,
        "scale_to_original: copy to the device": 4,
        "sample_regions: boolean index": 2,
        "Regions.at.<locals>.<genexpr>: boolean index": 16,
        "KeypointHead.losses: nonzero": 1,
        "KeypointHead.losses: copy to the device": 1,
    },
    "detector/mask2former": {
        "Mask2Former.query_masks: copy to the device": 4,
        "top_instances: copy to the device": 2,
        "MaskClassifier.detect.<locals>.<genexpr>: boolean index": 8,
        "scale_to_original: copy to the device": 4,
        "MaskCriterion.match: copy to the host": 1,
        "MaskCriterion._layer: copy to the device": 3,
    },
    "detector/mask_rcnn": {
        "decode_boxes: copy to the device": 22,
        "RegionProposals.scored_proposals: boolean index": 12,
        "RegionProposals.scored_proposals: copy to the device": 4,
        "RegionProposals.scored_proposals: nms": 4,
        "RegionPool.forward: nonzero": 16,
        "postprocess: nonzero": 2,
        "postprocess: copy to the device": 2,
        "postprocess: nms": 2,
        "scale_to_original: copy to the device": 4,
        "sample_regions: boolean index": 2,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
    "detector/retinanet": {
        "decode_boxes: copy to the device": 10,
        "suppress.<locals>.<genexpr>: boolean index": 6,
        "scale_to_original: copy to the device": 4,
    },
    "detector/rf_detr": {
        "LibraryDetector._run: copy to the device": 4,
        "QueryDetector.detect_batch: copy to the device": 2,
        "scale_to_original: copy to the device": 8,
        "collect_objects: copy to the device": 2,
        "QueryDetector.losses: copy to the device": 2,
        "match_queries: copy to the host": 2,
        "box_losses: boolean index": 30,
    },
    "detector/rotated_fcos": {
        "suppress.<locals>.<genexpr>: boolean index": 12,
        "box_corners: copy to the device": 5,
        "rotated_nms: nonzero": 4,
        "rotated_nms.<locals>.<listcomp>: boolean index": 4,
        "rotated_nms: boolean index": 16,
        "rotated_nms: equal": 12,
        "scale_to_original: copy to the device": 8,
    },
    "detector/rpn": {
        "decode_boxes: copy to the device": 10,
        "RegionProposals.scored_proposals: boolean index": 6,
        "RegionProposals.scored_proposals: copy to the device": 2,
        "RegionProposals.scored_proposals: nms": 2,
        "scale_to_original: copy to the device": 4,
    },
    "decoder/mask2former": {"Mask2Former.query_masks: copy to the device": 2},
    "segmentation_loss/boundary": {"_present_classes: nonzero": 1},
    "segmentation_loss/lovasz": {"_present_classes: nonzero": 1},
    "setting/fp16_detection": {
        "decode_boxes: copy to the device": 22,
        "RegionProposals.scored_proposals: boolean index": 12,
        "RegionProposals.scored_proposals: copy to the device": 4,
        "RegionProposals.scored_proposals: nms": 4,
        "RegionPool.forward: nonzero": 16,
        "postprocess: nonzero": 2,
        "postprocess: copy to the device": 2,
        "postprocess: nms": 2,
        "scale_to_original: copy to the device": 4,
        "sample_regions: boolean index": 2,
        "Regions.at.<locals>.<genexpr>: boolean index": 8,
    },
}
"""Waits of an evaluation batch beside PREDICTIONS."""

NONDETERMINISTIC = {
    "detector/deformable_detr": frozenset(["aten::grid_sampler_2d_backward"]),
    "detector/mask2former": frozenset(["aten::grid_sampler_2d_backward", "aten::nll_loss2d_forward"]),
    "detector/rf_detr": frozenset(["aten::grid_sampler_2d_backward"]),
    "decoder/mask2former": frozenset(["aten::grid_sampler_2d_backward", "aten::nll_loss2d_forward"]),
}
"""Operations that ``train.deterministic`` refuses, as docs/checkpoints.md says."""

FLOAT64 = {
    "StandardStep.__call__: aten::_to_copy": "GradScaler inverts the loss scale in float64, except on MPS",
    "StandardStep.__call__: aten::reciprocal": "the same",
}
"""Operations that may result in float64, by function of the package and name."""


# --- comparison -------------------------------------------------------------------------------------------------------


def problems(name: str, events: Events) -> list[str]:
    """Compare a run with what is expected of it; return what differs, with the places in the package."""
    nondeterministic = NONDETERMINISTIC.get(name, frozenset())
    return [
        *_unexpected_waits("a step", events.waits.get(step_phase(2), {}), STEP.get(name, {})),
        *_unexpected_waits("an evaluation batch", events.waits.get(EVALUATION, {}), EVALUATION_BATCH.get(name, {})),
        *(
            f"{event.kind} results in float64, which MPS does not have, in {event.function} at {event.where}"
            for event in _all(events.float64)
            if f"{event.function}: {event.kind}" not in FLOAT64
        ),
        *(
            f"{event.kind} has no deterministic implementation, in {event.function} at {event.where}"
            for event in _all(events.nondeterministic)
            if event.kind not in nondeterministic
        ),
        *(
            f"{name}: {kind} is no longer used: remove it from NONDETERMINISTIC"
            for kind in nondeterministic - {event.kind for event in _all(events.nondeterministic)}
        ),
        *(
            f"a batch is copied from memory that is not pinned, at {event.where}"
            for phase in (step_phase(2), EVALUATION)
            for event in events.pageable.get(phase, {})
            if "engine/loop/prefetch.py" in event.where
        ),
    ]


def _unexpected_waits(unit: str, measured: Mapping[Event, int], expected: Waits) -> list[str]:
    counts = Counter[str]()
    for event, count in measured.items():
        counts[f"{event.function}: {event.kind}"] += count
    messages = []
    for wait in dict.fromkeys([*counts, *expected]):
        if counts[wait] == expected.get(wait, 0) or wait == PREDICTIONS:
            continue
        function, _, kind = wait.rpartition(": ")
        places = [f"    {count} at {event.where}" for event, count in measured.items() if event[:2] == (kind, function)]
        message = f"in {unit} the host waits {counts[wait]} times, not {expected.get(wait, 0)}, for: {wait}"
        messages.append("\n".join([message, *places]))
    return messages


def _all(phases: Mapping[str, Mapping[Event, int]]) -> Iterable[Event]:
    return dict.fromkeys(event for events in phases.values() for event in events)
