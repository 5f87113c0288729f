"""Expected behavior of the runs in ``cases.py`` on the device: how often the host waits, and why.

A wait costs the time that the GPU idles until the host has queued the next kernels. Runs that are not listed do not
wait in a step, and in an evaluation batch only for its predictions. Detectors and decoders have batches of two images.
An evaluation batch of a detector includes the validation loss, and with it the waits of a step; with an EMA of the
weights (D-FINE, RF-DETR, RT-DETR) it is evaluated twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from tests.device.phases import EVALUATION, step_phase
from tests.device.records import Event
from tests.device.runs import Events

Waits = Mapping[str, int]
"""Number of host waits by function of the package and kind, such as ``true_indices: item``."""

PREDICTIONS = "to_host.<locals>.wait: event"
"""The wait for the predictions of an evaluation batch, which evaluators read on the host; it is not listed."""

REASONS = {
    "HybridDetector._encode: item": "transformers checks the sizes of its position embeddings",
    "HybridDetector._make_denoising: nonzero": "the queries of noised objects",
    "IdentityLabels.cluster: copy to the device": "clusters are made on the host, by scikit-learn; of every period",
    "IdentityLabels.cluster: nonzero": "the number of images that were seen; of every period",
    "IdentityLabels.count_clusters: copy to the host": "the number of clusters and their purity; of every period",
    "LibraryDetector._run: copy to the device": "transformers creates constants",
    "LibraryDetector._run: item": "transformers checks masks and sizes",
    "Mask2Former.query_masks: copy to the device": "transformers creates constants",
    "Mask2Former.query_masks: item": "transformers checks sizes",
    "MaskClassifier.detect: item": "the number of detections, for each image",
    "MaskCriterion.match: copy to the host": "queries are matched with segments on the host, by SciPy",
    "StandardStep.__call__: copy to the device": "torch's ASGD creates numbers, for each parameter",
    "StandardStep.__call__: item": "torch's ASGD and Adafactor read numbers of each parameter; in fp16 GradScaler "
    "reads whether an optimizer without fused kernels must be skipped",
    "UpdateGuard.update_unless: item": "an optimizer without fused kernels cannot be skipped on the device",
    "_FeatureSpace.__init__: item": "embeddings that are not finite; when images are clustered",
    "_FeatureSpace.__init__: nonzero": "embeddings that are not finite; when images are clustered",
    "_distances_in: copy to the host": "weights of neighbors are sparse rows on the host; when images are clustered",
    "_present_classes: nonzero": "the classes of a batch, whose losses are computed one by one",
    "_reciprocal_weights: copy to the host": "neighbors are sparse rows on the host; when images are clustered",
    "box_nms: nms": "the number of boxes that are kept, for each image",
    "first_image: item": "the number of detections, for each image",
    "heatmaps_to_keypoints: item": "the size of the largest region",
    "match_queries: copy to the host": "queries are matched with objects on the host, by SciPy",
    "postprocess: nonzero": "the number of boxes above the score threshold, for each image",
    "rotated_nms: boolean index": "the boxes of each class",
    "rotated_nms: equal": "the end of the rounds, in each",
    "rotated_nms: nonzero": "the number of pairs of boxes that overlap",
    "smallest: nonzero": "rows with ties; when images are clustered",
    "true_indices: item": "the numbers of selected boxes or regions of all images",
}
"""The number or constant for which the host waits, by wait."""

STEP: dict[str, Waits] = {
    "task/panoptic": {"true_indices: item": 5, "box_nms: nms": 2},
    "detector/cascade_rcnn": {"true_indices: item": 9, "box_nms: nms": 2},
    "detector/d_fine": {
        "HybridDetector._encode: item": 1,
        "HybridDetector._make_denoising: nonzero": 1,
        "match_queries: copy to the host": 1,
    },
    "detector/deformable_detr": {
        "LibraryDetector._run: copy to the device": 1,
        "LibraryDetector._run: item": 1,
        "match_queries: copy to the host": 1,
    },
    "detector/detr": {"LibraryDetector._run: item": 3, "match_queries: copy to the host": 1},
    "detector/faster_rcnn": {"true_indices: item": 3, "box_nms: nms": 2},
    "detector/keypoint_rcnn": {"true_indices: item": 5, "box_nms: nms": 2},
    "detector/mask2former": {
        "Mask2Former.query_masks: copy to the device": 2,
        "Mask2Former.query_masks: item": 1,
        "MaskCriterion.match: copy to the host": 1,
    },
    "detector/mask_rcnn": {"true_indices: item": 5, "box_nms: nms": 2},
    "detector/rf_detr": {"LibraryDetector._run: copy to the device": 1, "match_queries: copy to the host": 1},
    "detector/rt_detr": {
        "HybridDetector._encode: item": 1,
        "HybridDetector._make_denoising: nonzero": 1,
        "match_queries: copy to the host": 1,
    },
    "decoder/mask2former": {
        "Mask2Former.query_masks: copy to the device": 2,
        "Mask2Former.query_masks: item": 1,
        "true_indices: item": 1,
        "MaskCriterion.match: copy to the host": 1,
    },
    "segmentation_loss/boundary": {"_present_classes: nonzero": 1},
    "segmentation_loss/lovasz": {"_present_classes: nonzero": 1},
    "optimizer/adafactor": {"StandardStep.__call__: item": 16},
    "optimizer/asgd": {"StandardStep.__call__: item": 24, "StandardStep.__call__: copy to the device": 16},
    "setting/fp16_unfused": {"StandardStep.__call__: item": 1},
    "setting/fp16_detection": {"true_indices: item": 10, "box_nms: nms": 2},
    "setting/region_queries": {
        "HybridDetector._encode: item": 1,
        "HybridDetector._make_denoising: nonzero": 1,
        "match_queries: copy to the host": 1,
        "true_indices: item": 4,
    },
    "setting/oriented_queries": {
        "HybridDetector._encode: item": 1,
        "HybridDetector._make_denoising: nonzero": 1,
        "match_queries: copy to the host": 1,
    },
    "setting/semi_supervised_boxes": {"true_indices: item": 2, "box_nms: nms": 1},
    # Of a clustering alone, which is made in each step here.
    "setting/semi_supervised_identities": {
        "IdentityLabels.cluster: nonzero": 1,
        "IdentityLabels.cluster: copy to the device": 1,
        "IdentityLabels.count_clusters: copy to the host": 1,
        "_FeatureSpace.__init__: item": 1,
        "_FeatureSpace.__init__: nonzero": 1,
        "_distances_in: copy to the host": 1,
        "_reciprocal_weights: copy to the host": 2,
        "smallest: nonzero": 4,
    },
    "setting/skip_unfused": {"UpdateGuard.update_unless: item": 1},
}
"""Waits of a training step after the first; of other runs none."""

EVALUATION_BATCH: dict[str, Waits] = {
    "task/detection": {"true_indices: item": 1, "box_nms: nms": 2},
    "task/panoptic": {"true_indices: item": 9, "box_nms: nms": 6, "postprocess: nonzero": 2, "first_image: item": 2},
    "detector/cascade_rcnn": {"true_indices: item": 14, "box_nms: nms": 6, "postprocess: nonzero": 2},
    "detector/d_fine": {"HybridDetector._make_denoising: nonzero": 2, "match_queries: copy to the host": 2},
    "detector/deformable_detr": {"LibraryDetector._run: copy to the device": 2, "match_queries: copy to the host": 1},
    "detector/detr": {"LibraryDetector._run: item": 4, "match_queries: copy to the host": 1},
    "detector/faster_rcnn": {"true_indices: item": 5, "box_nms: nms": 6, "postprocess: nonzero": 2},
    "detector/fcos": {"true_indices: item": 1, "box_nms: nms": 2},
    "detector/keypoint_rcnn": {
        "true_indices: item": 8,
        "box_nms: nms": 6,
        "postprocess: nonzero": 2,
        "heatmaps_to_keypoints: item": 1,
    },
    "detector/mask2former": {
        "Mask2Former.query_masks: copy to the device": 4,
        "MaskClassifier.detect: item": 2,
        "MaskCriterion.match: copy to the host": 1,
    },
    "detector/mask_rcnn": {"true_indices: item": 8, "box_nms: nms": 6, "postprocess: nonzero": 2},
    "detector/retinanet": {"true_indices: item": 1},
    "detector/rf_detr": {"LibraryDetector._run: copy to the device": 4, "match_queries: copy to the host": 2},
    "detector/rotated_fcos": {
        "true_indices: item": 1,
        "rotated_nms: nonzero": 4,
        "rotated_nms: equal": 12,
        "rotated_nms: boolean index": 4,
    },
    "detector/rpn": {"true_indices: item": 1, "box_nms: nms": 2},
    "detector/rt_detr": {"HybridDetector._make_denoising: nonzero": 2, "match_queries: copy to the host": 2},
    "decoder/mask2former": {"Mask2Former.query_masks: copy to the device": 2},
    "segmentation_loss/boundary": {"_present_classes: nonzero": 1},
    "segmentation_loss/lovasz": {"_present_classes: nonzero": 1},
    "setting/fp16_detection": {"true_indices: item": 8, "box_nms: nms": 6, "postprocess: nonzero": 2},
    "setting/oriented_queries": {"HybridDetector._make_denoising: nonzero": 1, "match_queries: copy to the host": 1},
    "setting/region_queries": {
        "HybridDetector._make_denoising: nonzero": 2,
        "match_queries: copy to the host": 2,
        "true_indices: item": 12,
        "heatmaps_to_keypoints: item": 2,
    },
    "setting/semi_supervised_boxes": {"true_indices: item": 1, "box_nms: nms": 2},
}
"""Waits of an evaluation batch beside PREDICTIONS."""

NONDETERMINISTIC = dict.fromkeys(
    (
        *(
            "detector/d_fine",
            "detector/deformable_detr",
            "detector/mask2former",
            "detector/rf_detr",
            "detector/rt_detr",
            "setting/oriented_queries",
            "setting/region_queries",
        ),
        "decoder/mask2former",
    ),
    frozenset({"aten::grid_sampler_2d_backward"}),
)
"""Operations that ``train.deterministic`` refuses, as docs/checkpoints.md says."""

FLOAT64 = {
    "HybridDetector._encode": "position embeddings of transformers, in float32 on MPS",
    "StandardStep.__call__": "GradScaler inverts the loss scale, on MPS in float32",
}
"""Functions that may compute in float64, and what does so."""


# --- comparison -------------------------------------------------------------------------------------------------------


def problems(name: str, events: Events) -> list[str]:
    """Compare a run with what is expected of it; return what differs, with the places in the package."""
    expected = NONDETERMINISTIC.get(name, frozenset())
    return [
        *_other_waits("a step", events.waits.get(step_phase(2), {}), STEP.get(name, {})),
        *_other_waits("an evaluation batch", events.waits.get(EVALUATION, {}), EVALUATION_BATCH.get(name, {})),
        *_broken_rules(events, expected),
        *(
            f"{operation} is no longer used: remove it from NONDETERMINISTIC"
            for operation in expected - {event.kind for event in _all(events.nondeterministic)}
        ),
    ]


def problems_of_recipe(parts: Collection[str], events: Events) -> list[str]:
    """Return what a step of a recipe does that the runs of its parts do not, with the places in the package."""
    names = STEP.keys() & parts
    known = {wait for name in names for wait in STEP[name]}
    nondeterministic = frozenset[str]().union(*(NONDETERMINISTIC.get(name, ()) for name in parts))
    return [
        *(
            f"in a step the host waits in {event.function} at {event.where} for: {event.kind}"
            for event in events.waits.get(step_phase(2), {})
            if f"{event.function}: {event.kind}" not in known
        ),
        *_broken_rules(events, nondeterministic),
    ]


def _broken_rules(events: Events, nondeterministic: Collection[str]) -> list[str]:
    return [
        *(
            f"{event.kind} results in float64, which MPS does not have, in {event.function} at {event.where}"
            for event in _all(events.float64)
            if event.function not in FLOAT64
        ),
        *(
            f"{event.kind} has no deterministic implementation, in {event.function} at {event.where}"
            for event in _all(events.nondeterministic)
            if event.kind not in nondeterministic
        ),
        *(
            f"a batch is copied from memory that is not pinned, at {event.where}"
            for phase in (step_phase(2), EVALUATION)
            for event in events.pageable.get(phase, {})
            if "engine/loop/prefetch.py" in event.where
        ),
    ]


def _other_waits(unit: str, measured: Mapping[Event, int], expected: Waits) -> list[str]:
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
