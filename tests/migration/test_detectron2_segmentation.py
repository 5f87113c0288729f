"""detectron2's semantic and panoptic segmentation: converted configs; weights that compute what they do there."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Level
from opabinia.migration.weights.detection import translate_detectron2
from opabinia.models.decoders import SemanticFpn
from opabinia.models.necks import fpn


def head_of_detectron2(weights: dict[str, Tensor], pyramid: list[Tensor]) -> Tensor:
    """The outputs of SemSegFPNHead, by its names of weights."""
    total = torch.zeros(())
    for level, features in enumerate(pyramid, 2):
        for place in range(0, 2 * max(1, level - 2), 2):
            name = f"sem_seg_head.p{level}.{place}"
            features = F.conv2d(features, weights[f"{name}.weight"], padding=1)
            features = F.group_norm(features, 32, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"]).relu()
            if level > 2:
                features = F.interpolate(features, scale_factor=2, mode="bilinear", align_corners=False)
        total = total + features
    return F.conv2d(total, weights["sem_seg_head.predictor.weight"], weights["sem_seg_head.predictor.bias"])


def test_weights_of_the_semantic_head_compute_the_same() -> None:
    levels = [Level(4, 4), Level(4, 8), Level(4, 16), Level(4, 32)]
    decoder = SemanticFpn(levels, 5, neck=partial(fpn, channels=16), channels=32).eval()
    draw = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}
    for level in range(2, 6):
        weights[f"backbone.fpn_lateral{level}.weight"] = torch.randn(16, 4, 1, 1, generator=draw)
        weights[f"backbone.fpn_output{level}.weight"] = torch.randn(16, 16, 3, 3, generator=draw) / 12
        for name in (f"backbone.fpn_lateral{level}", f"backbone.fpn_output{level}"):
            weights[f"{name}.bias"] = torch.randn(16, generator=draw)
        for place in range(0, 2 * max(1, level - 2), 2):
            name = f"sem_seg_head.p{level}.{place}"
            weights[f"{name}.weight"] = torch.randn(32, 32 if place else 16, 3, 3, generator=draw) / 12
            weights |= {f"{name}.norm.{kind}": torch.rand(32, generator=draw) for kind in ("weight", "bias")}
    weights["sem_seg_head.predictor.weight"] = torch.randn(5, 32, 1, 1, generator=draw)
    weights["sem_seg_head.predictor.bias"] = torch.randn(5, generator=draw)
    translated = translate_detectron2({**weights, "backbone.bottom_up.res2.0.conv1.weight": torch.zeros(1)})
    own = {name.removeprefix("decoder."): value for name, value in translated.items() if name.startswith("decoder.")}
    decoder.load_state_dict(own)  # strict: every tensor has its place
    maps = [torch.randn(2, 4, 128 // stride, 64 // stride, generator=draw) for _, stride in levels]
    assert decoder.neck is not None
    with torch.no_grad():
        expected = head_of_detectron2(weights, decoder.neck(maps)[:4])
        torch.testing.assert_close(decoder(maps), expected, atol=1e-4, rtol=1e-4)
    with_detector = translate_detectron2({**weights, "roi_heads.box_predictor.cls_score.bias": torch.zeros(6)})
    assert "detector.neck.fpn.inner_blocks.0.0.weight" in with_detector and "decoder.classifier.bias" in with_detector
