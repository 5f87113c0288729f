"""The contract of all detectors: gradients, modes, precision, and detections with and without static shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import DatasetInfo, Detector, InstanceMasks, Level, Target
from opabinia.models.decoders.mask2former import Mask2Former
from opabinia.models.detectors import DFine, Fcos, RetinaNet, RotatedFcos, RTDetr, deformable_detr, detr, rf_detr
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.keypoints import KeypointOptions
from opabinia.models.detectors.mask2former import MaskClassifier
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.query_keypoints import QueryKeypointOptions
from opabinia.models.detectors.query_masks import QueryMaskOptions
from opabinia.models.detectors.query_oriented import QueryOrientedOptions
from opabinia.models.detectors.rcnn import cascade_rcnn, faster_rcnn, keypoint_rcnn, mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.rpn import ProposalNetwork, ProposalOptions
from opabinia.models.necks import fpn, fpn_p3_p7_from_p5

LEVELS = (Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32))
SHAPE, SIZES = (64, 96), [(64, 96), (50, 40)]
INFO = DatasetInfo(samples=2, classes=("cat", "dog"), boxes=True, masks=True, keypoints=("nose", "left", "right"))

DENSE: dict[str, Any] = {"neck": partial(fpn_p3_p7_from_p5, channels=32), "score_threshold": 0, "max_detections": 9}
PROPOSALS = ProposalOptions(
    **{f"{when}_nms_topk_{phase}": 40 for when in ("pre", "post") for phase in ("train", "test")},  # type: ignore[arg-type]
    anchor_sizes=[8, 16, 32, 64, 128],
)
MASK = MaskOptions(channels=16, num_convs=1)
REGIONS: dict[str, Any] = {
    **{"neck": partial(fpn, channels=16), "proposals": PROPOSALS, "pooling": PoolingOptions()},
    "box": BoxOptions(fc_dim=32, score_threshold=0.01, batch_size_per_image=32, max_detections=9),
}
QUERIES: dict[str, Any] = {"num_queries": 12, "decoder_layers": 2, "ffn_dim": 24, "dropout": 0.0}
HEADS: dict[str, Any] = {"attention_heads": 4, "encoder_layers": 1}
GROUPS: dict[str, Any] = {"num_groups": 3, "self_attention_heads": 4, "cross_attention_heads": 4}
KEYPOINT, ORIENTED = QueryKeypointOptions(), QueryOrientedOptions()
ROI_HEADS = {"roi_mask": MASK, "roi_keypoint": KeypointOptions(channels=16, num_convs=1)}
QUERY_MASK = QueryMaskOptions(num_blocks=1, ffn_dim=16, num_points=64)
MASK_CLASSIFIER = partial(
    Mask2Former,
    **{"num_queries": 6, "channels": 32, "decoder_layers": 2, "num_points": 64, **HEADS},
    **{"encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
)
DETECTORS: Mapping[str, Callable[..., Detector]] = {
    "fcos": partial(Fcos, **DENSE),
    "retinanet": partial(RetinaNet, **DENSE),
    "rotated_fcos": partial(RotatedFcos, **DENSE),
    "rpn": partial(ProposalNetwork, neck=REGIONS["neck"], proposals=PROPOSALS),
    "faster_rcnn": partial(faster_rcnn, **REGIONS),
    "mask_rcnn": partial(mask_rcnn, **REGIONS, mask=MASK),
    "keypoint_rcnn": partial(keypoint_rcnn, **REGIONS, keypoint=KeypointOptions(channels=16, num_convs=1)),
    "cascade_rcnn": partial(cascade_rcnn, **REGIONS),
    "cascade_masks": partial(cascade_rcnn, **REGIONS, mask=MASK, num_mask_heads=3, score_average="logits"),
    "rt_detr": partial(RTDetr, channels=16, num_denoising=10, max_detections=5, **QUERIES, **HEADS),
    "d_fine": partial(DFine, channels=16, num_denoising=10, max_detections=5, **QUERIES, **HEADS),
    "detr": partial(detr, channels=16, **QUERIES, **HEADS),
    "deformable_detr": partial(deformable_detr, channels=32, refine_boxes=True, **QUERIES, **HEADS),
    "rf_detr": partial(rf_detr, channels=32, **{**QUERIES, "num_queries": 6}, **GROUPS),
    "rt_detr_masks": partial(RTDetr, channels=16, num_denoising=10, mask=QUERY_MASK, **QUERIES, **HEADS),
    "d_fine_masks": partial(DFine, channels=16, num_denoising=10, mask=QUERY_MASK, **QUERIES, **HEADS),
    "rt_detr_keypoints": partial(RTDetr, channels=16, num_denoising=10, keypoint=KEYPOINT, **QUERIES, **HEADS),
    "d_fine_keypoints": partial(DFine, channels=16, num_denoising=10, keypoint=KEYPOINT, **QUERIES, **HEADS),
    "rf_detr_keypoints": partial(rf_detr, channels=32, keypoint=KEYPOINT, **{**QUERIES, "num_queries": 6}, **GROUPS),
    "rf_detr_masks": partial(rf_detr, channels=32, mask=QUERY_MASK, **{**QUERIES, "num_queries": 6}, **GROUPS),
    "rt_detr_oriented": partial(RTDetr, channels=16, num_denoising=10, oriented=ORIENTED, **QUERIES, **HEADS),
    "d_fine_oriented": partial(DFine, channels=16, num_denoising=10, oriented=ORIENTED, **QUERIES, **HEADS),
    "rf_detr_oriented": partial(rf_detr, channels=32, oriented=ORIENTED, **{**QUERIES, "num_queries": 6}, **GROUPS),
    "rt_detr_regions": partial(RTDetr, channels=16, num_denoising=10, **ROI_HEADS, **QUERIES, **HEADS),
    "d_fine_regions": partial(DFine, channels=16, num_denoising=10, **ROI_HEADS, **QUERIES, **HEADS),
    "mask2former": partial(MaskClassifier, decoder=MASK_CLASSIFIER, max_detections=7),
}
LIBRARY = (
    *("rt_detr", "d_fine", "detr", "deformable_detr", "rf_detr", "mask2former"),
    *(f"{name}_{head}" for name in ("rt_detr", "d_fine", "rf_detr") for head in ("masks", "keypoints", "oriented")),
    *("rt_detr_regions", "d_fine_regions"),
)
needs_library = pytest.mark.skipif(find_spec("transformers") is None, reason="the extra detr is not installed")


def is_oriented(name: str) -> bool:
    return name == "rotated_fcos" or name.endswith("_oriented")


def every_detector(*omitted: str) -> pytest.MarkDecorator:
    names = [name for name in DETECTORS if name not in omitted]
    return pytest.mark.parametrize("name", [pytest.param(x, marks=[needs_library] * (x in LIBRARY)) for x in names])


def make_detector(name: str) -> tuple[Detector, list[Tensor]]:
    """Return a detector, and feature maps for it."""
    torch.manual_seed(0)
    detector = DETECTORS[name](LEVELS, replace(INFO, oriented=is_oriented(name)))
    maps = [torch.randn(2, level.channels, SHAPE[0] // level.stride, SHAPE[1] // level.stride) for level in LEVELS]
    return detector, maps


def make_target(name: str, count: int) -> Target:
    boxes = torch.tensor([[8.0, 8, 40, 38], [10, 12, 36, 45]])[:count]
    if is_oriented(name):
        boxes = torch.cat([boxes[:, :2] + 12, boxes[:, 2:] / 2, torch.full((count, 1), 20.0)], 1)
    masks = torch.zeros(count, *SHAPE, dtype=torch.uint8)
    masks[:, 10:30, 12:34] = 1
    points = torch.tensor([[[10.0, 10, 2], [20, 20, 1], [0, 0, 0]]]).expand(count, -1, -1)
    return Target(boxes, torch.arange(count), InstanceMasks.encode(masks), points)


def compute_losses(detector: Detector, maps: list[Tensor], name: str, *counts: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    targets = [make_target(name, count) for count in counts or (2, 1)]
    return detector.losses(detector.pyramid(maps), SHAPE, SIZES, targets)


def total_loss(losses: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([value for name, value in losses.items() if "loss" in name]).sum()


def set_mode(detector: Detector, mode: bool) -> None:
    """Set the mode of everything but batch norms, which are to use their statistics."""
    detector.train(mode)
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


@every_detector()
@pytest.mark.parametrize("counts", [(2, 1), (2, 0), (0, 0)], ids=["objects", "one empty", "empty"])
def test_every_parameter_has_a_gradient_in_every_step(name: str, counts: tuple[int, int]) -> None:
    detector, maps = make_detector(name)
    losses = compute_losses(detector, maps, name, *counts)
    assert all(value.shape == () and value.isfinite() for value in losses.values())
    assert not any(value.requires_grad for key, value in losses.items() if "loss" not in key)
    total_loss(losses).backward()  # type: ignore[no-untyped-call]
    gradients = {key: param.grad for key, param in detector.named_parameters() if param.requires_grad}
    assert [key for key, grad in gradients.items() if grad is None or not grad.isfinite().all()] == []


@every_detector(*(name for name in DETECTORS if "rf_detr" in name))  # it has other groups of queries in training only
def test_training_mode_changes_nothing(name: str) -> None:
    detector, maps = make_detector(name)
    results = []
    for mode in (True, False):
        set_mode(detector, mode)
        losses = compute_losses(detector, maps, name)
        results.append((losses, [image[:3] for image in detector.detect(detector.pyramid(maps), SHAPE, SIZES)]))
    torch.testing.assert_close(*results)


@every_detector()
def test_half_precision_computes_losses_and_boxes_in_full(name: str) -> None:
    detector, maps = make_detector(name)
    set_mode(detector, False)
    exact = total_loss(compute_losses(detector, maps, name)).item()
    with torch.autocast("cpu", torch.bfloat16):
        losses = compute_losses(detector, maps, name)
        detections = detector.detect(detector.pyramid(maps), SHAPE, SIZES)
    assert all(value.dtype == torch.float32 for key, value in losses.items() if "loss" in key)
    assert total_loss(losses).item() == pytest.approx(exact, rel=0.2)
    assert all(image.boxes.dtype == image.scores.dtype == torch.float32 for image in detections)
    total_loss(losses).backward()  # type: ignore[no-untyped-call]
    assert all(param.grad is None or param.grad.isfinite().all() for param in detector.parameters())


@every_detector()
@torch.no_grad()
def test_detections(name: str) -> None:
    """They are sorted, limited and clipped, with masks and keypoints; the same from a copy, and with static shapes."""
    detector, maps = make_detector(name)
    detector.eval()
    copied: Any = copy.deepcopy(detector)
    pyramid = detector.pyramid(maps)
    detections = detector.describe(pyramid, SHAPE, SIZES, detector.detect(pyramid, SHAPE, SIZES))
    static = copied.detect_batch(copied.pyramid(maps), SHAPE, torch.tensor(SIZES))._asdict()
    for row, (image, (height, width)) in enumerate(zip(detections, SIZES, strict=True)):
        count = len(image.scores)
        assert 0 < count <= detector.max_detections and (image.scores.diff() <= 0).all()
        assert {*image.labels.tolist()} <= {0, 1}
        if not detector.oriented:
            assert (image.boxes >= 0).all() and (image.boxes <= torch.tensor([width, height] * 2)).all()
        assert (image.masks is not None, image.keypoints is not None) == (detector.masks, detector.keypoints)
        assert (static["labels"][row, count:] == -1).all()
        for key, values in image._asdict().items():
            if values is not None:
                torch.testing.assert_close(static[key][row, :count], values, msg=f"{name} {key}")
