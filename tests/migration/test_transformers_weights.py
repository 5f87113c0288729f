"""Weights of the transformers library's detectors: everything is filled, and the detections are the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision.ops import roi_align

from opabinia.contracts import DatasetInfo, Detections
from opabinia.migration.weights import transformers as formats
from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.windowed_dinov2 import WindowedDinov2
from opabinia.models.detectors.d_fine import DFine
from opabinia.models.detectors.library_detectors import deformable_detr, detr, rf_detr
from opabinia.models.detectors.query_masks import QueryMaskOptions
from opabinia.models.detectors.rt_detr import RTDetr
from opabinia.models.weights.init import Init, initialize
from opabinia.tasks.detection import Detection

assert formats  # registered when imported
library = pytest.importorskip("transformers", reason="the extra detr is not installed")

CLASSES = ("circle", "square", "star")
INFO = DatasetInfo(samples=1, classes=CLASSES, boxes=True, masks=True)
COUNT = {"num_queries": 20, "num_labels": len(CLASSES), "decoder_layers": 2, "d_model": 32, "decoder_ffn_dim": 48}
ENCODER = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48}
HYBRID = {**COUNT, **ENCODER, "encoder_hidden_dim": 32, "decoder_in_channels": [32, 32, 32]}
SMALL = {"num_queries": 20, "decoder_layers": 2, "ffn_dim": 48, "channels": 32}
HEADS = {"attention_heads": 4}


def rt_detr_model() -> Any:
    """RT-DETR on a small ResNet-D."""
    body = library.RTDetrResNetConfig(
        embedding_size=64, hidden_sizes=[32, 32, 64, 64], depths=[2, 1, 1, 1], out_indices=[2, 3, 4]
    )
    config = library.RTDetrV2Config(backbone_config=body, encoder_in_channels=[32, 64, 64], **HYBRID)
    return library.RTDetrV2ForObjectDetection(config)


def rt_detr_v2_model() -> Any:
    """RT-DETRv2 with discrete sampling on a ResNet of basic blocks, as the S model."""
    body = library.RTDetrResNetConfig(
        embedding_size=64, hidden_sizes=[64, 72, 80, 96], depths=[1, 2, 1, 1], layer_type="basic", out_indices=[2, 3, 4]
    )
    sizes = {"encoder_in_channels": [72, 80, 96], "decoder_n_points": 3, "hidden_expansion": 0.5}
    config = library.RTDetrV2Config(backbone_config=body, decoder_method="discrete", **sizes, **HYBRID)
    return library.RTDetrV2ForObjectDetection(config)


def d_fine_model() -> Any:
    """D-FINE on HGNetV2-B0, as the S model."""
    body = library.HGNetV2Config(
        stem_channels=[3, 16, 16],
        stage_in_channels=[16, 64, 256, 512],
        stage_mid_channels=[16, 32, 64, 128],
        stage_out_channels=[64, 256, 512, 1024],
        stage_num_blocks=[1, 1, 2, 1],
        stage_numb_of_layers=[3, 3, 3, 3],
        hidden_sizes=[64, 256, 512, 1024],
        use_learnable_affine_block=True,
        out_indices=[2, 3, 4],
    )
    sizes = {"encoder_in_channels": [256, 512, 1024], "decoder_n_points": [3, 6, 3], "hidden_expansion": 0.5}
    config = library.DFineConfig(backbone_config=body, depth_mult=0.34, **sizes, **HYBRID)
    return library.DFineForObjectDetection(config)


def detr_model() -> Any:
    body = {"model_type": "timm_backbone", "backbone": "resnet18", "features_only": True, "out_indices": [1, 2, 3, 4]}
    return library.DetrForObjectDetection(
        library.DetrConfig(backbone_config=library.TimmBackboneConfig(**body), encoder_layers=1, **COUNT, **ENCODER)
    )


def deformable_detr_model() -> Any:
    body = {"model_type": "timm_backbone", "backbone": "resnet18", "features_only": True, "out_indices": [2, 3, 4]}
    backbone = library.TimmBackboneConfig(**body)
    return library.DeformableDetrForObjectDetection(
        library.DeformableDetrConfig(
            backbone_config=backbone, encoder_layers=1, with_box_refine=True, **COUNT, **ENCODER
        )
    )


def rf_detr_model() -> Any:
    body = library.RfDetrDinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        patch_size=8,
        image_size=32,
        num_windows=2,
        out_indices=[2, 4],
        use_mask_token=False,
    )
    heads = {"decoder_self_attention_heads": 4, "decoder_cross_attention_heads": 4, "decoder_n_points": 2}
    return library.RfDetrForObjectDetection(library.RfDetrConfig(backbone_config=body, group_detr=3, **heads, **COUNT))


def rf_detr_masks_model() -> Any:
    config = rf_detr_model().config
    config.intermediate_size = 24
    return library.RfDetrForInstanceSegmentation(config)


def of_version_4(name: str) -> str:
    """Return the name of a weight in a file written by version 4 of the library."""
    name = name.replace("attn.o_proj.", "attn.out_proj.").replace("model.encoder.aifi.", "model.encoder.encoder.")
    name = name.replace(".mlp.fc", ".fc").replace("layers.0.mlp.layers.", "layers.0.fc")
    return name.replace("model.backbone.model.", "model.backbone.conv_encoder.model.") if "layer1" in name else name


RF_DETR = {"num_groups": 3, "self_attention_heads": 4, "cross_attention_heads": 4}
RESNET_D = partial(timm, model="resnet50d", options={"layers": [2, 1, 1, 1], "channels": [8, 8, 16, 16]})
MODELS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "rt_detr": (rt_detr_model, RESNET_D, partial(RTDetr, **SMALL, **HEADS)),
    "rt_detr_v2": (
        rt_detr_v2_model,
        partial(
            resnet,
            model="resnet18d",
            last_stride=2,
            first_projection=True,
            options={"layers": [1, 2, 1, 1], "channels": [64, 72, 80, 96]},
        ),
        partial(RTDetr, sampling="discrete", decoder_n_points=3, hidden_expansion=0.5, **SMALL, **HEADS),
    ),
    "d_fine": (
        d_fine_model,
        partial(timm, model="hgnetv2_b0"),
        partial(DFine, hidden_expansion=0.5, depth_multiplier=0.34, **SMALL, **HEADS),
    ),
    "detr": (detr_model, partial(timm, model="resnet18"), partial(detr, encoder_layers=1, **SMALL, **HEADS)),
    "deformable_detr": (
        deformable_detr_model,
        partial(timm, model="resnet18"),
        partial(deformable_detr, encoder_layers=1, refine_boxes=True, **SMALL, **HEADS),
    ),
    "rf_detr": (
        rf_detr_model,
        partial(WindowedDinov2, width=32, depth=4, heads=2, patch_size=8, image_size=32, num_windows=2, layers=[2, 4]),
        partial(rf_detr, **RF_DETR, **SMALL),
    ),
    "rf_detr_masks": (
        rf_detr_masks_model,
        partial(WindowedDinov2, width=32, depth=4, heads=2, patch_size=8, image_size=32, num_windows=2, layers=[2, 4]),
        partial(rf_detr, mask=QueryMaskOptions(num_blocks=2, ffn_dim=24, resolution=24), **RF_DETR, **SMALL),
    ),
}


def detections_of_both(name: str, version: int, folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return our scores, the library's, our boxes and the library's in pixels, of the best detections."""
    build, backbone, detector = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    with torch.no_grad():
        for key, values in model.state_dict().items():
            if key.endswith("running_var"):
                values.uniform_(0.5, 1.5)
            elif values.is_floating_point() and "n_points" not in key and ".up" not in key and "reg_scale" not in key:
                values.add_(0.1 * torch.randn_like(values))
    rename = of_version_4 if version == 4 else str
    save_file({rename(key): values.clone() for key, values in model.state_dict().items()}, folder / "a.safetensors")
    task = Detection(INFO, backbone=backbone, detector=detector, mean=[0.0], std=[1.0]).eval()
    report = initialize(task, Init(weights=folder / "a.safetensors"))
    assert not report.missing and not report.other_shape, report
    assert all("position_ids" in key or "backbone" in key for key in report.unexpected), report.unexpected

    image, size = torch.rand(3, 96, 128), (96, 128)
    with torch.no_grad():
        expected = model(image[None])
        maps = task._pyramid(image[None], [size])
        (detections,) = task.detector.detect(maps, size, [size])
    logits, boxes = expected.logits[0], expected.pred_boxes[0]
    kinds = logits.softmax(-1)[:, :-1] if name == "detr" else logits.sigmoid()
    if name == "detr":
        kinds = kinds.where(kinds == kinds.amax(-1, keepdim=True), 0)
    scores, pairs = kinds.flatten().sort(descending=True)
    count = min(len(detections.scores), 20)
    if detections.masks is not None:
        compare_masks(detections, expected.pred_masks[0, pairs[:count] // len(CLASSES)])
    x, y, width, height = boxes[pairs[:count] // len(CLASSES)].unbind(-1)
    corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1).clamp(0, 1)
    in_pixels: Tensor = corners * torch.tensor([128.0, 96, 128, 96])
    return detections.scores[:count], scores[:count], detections.boxes[:count], in_pixels


def compare_masks(detections: Detections, logits: Tensor) -> None:
    """Compare masks with the library's logits of whole images (D x h x w, in cells of 4 pixels)."""
    assert detections.masks is not None
    (side,), corners = {*detections.masks.shape[1:]}, detections.boxes[: len(logits)]
    rois = torch.cat([torch.arange(len(logits))[:, None], corners / 4], 1)
    expected = roi_align(logits[:, None], rois, side, sampling_ratio=2, aligned=True)[:, 0].sigmoid()
    torch.testing.assert_close(detections.masks[: len(logits)], expected, atol=1e-4, rtol=0)


# Version 4 had no RF-DETR, and other names in many places of D-FINE.
NEW_IN_5 = ("rf_detr", "rf_detr_masks", "d_fine")
VERSIONS = [(name, v) for name in MODELS for v in (4, 5) if v == 5 or name not in NEW_IN_5]


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_the_detections_are_those_of_the_library(name: str, version: int, tmp_path: Path) -> None:
    scores, expected_scores, boxes, expected_boxes = detections_of_both(name, version, tmp_path)
    torch.testing.assert_close(scores, expected_scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(boxes, expected_boxes, atol=1e-2, rtol=0)
