"""Mask2Former of the transformers library with random weights: the same classes and masks of queries in every task."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from opabinia.contracts import DatasetInfo
from opabinia.migration.weights import transformers as formats
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders.mask2former import Mask2Former
from opabinia.models.detectors.mask2former import MaskClassifier
from opabinia.models.weights.init import Init, initialize
from opabinia.tasks.detection import Detection
from opabinia.tasks.segmentation import Panoptic, Segmentation

assert formats  # registered when imported
INFO = DatasetInfo(
    samples=1, classes=("circle", "square", "sky"), boxes=True, masks=True, maps=True, thing_labels=(0, 1)
)
SWIN = {"embed_dim": 8, "depths": [2, 1, 1, 1], "num_heads": [1, 2, 2, 4]}
PREFIX = "model.pixel_level_module.encoder."


def library_model(backbone: Any) -> Any:
    library = pytest.importorskip("transformers", reason="the extra detr is not installed")
    torch.manual_seed(0)
    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "num_attention_heads": 4}
    layers = {"encoder_layers": 1, "decoder_layers": 3, "encoder_feedforward_dim": 48, "dim_feedforward": 48}
    config = library.Mask2FormerConfig(
        backbone_config=backbone(library), num_labels=3, num_queries=10, **sizes, **layers
    )
    model = library.Mask2FormerForUniversalSegmentation(config).eval()
    with torch.no_grad():
        for values in model.state_dict().values():
            if values.is_floating_point():
                values.add_(0.1 * torch.randn_like(values).abs())
    return model


def swin(library: Any) -> Any:
    return library.SwinConfig(window_size=7, out_features=[f"stage{number}" for number in range(1, 5)], **SWIN)


def of_version_4(name: str) -> str:
    """Return the name of a weight of Swin in a file written by version 4 of the library."""
    if not name.startswith(PREFIX):
        return name
    name = name.replace(f"{PREFIX}swin.", PREFIX).replace(".attention.o_proj.", ".attention.output.dense.")
    for letter, word in (("q", "query"), ("k", "key"), ("v", "value")):
        name = name.replace(f".attention.{letter}_proj.", f".attention.self.{word}.")
    name = name.replace(".attention.relative_position_bias.", ".attention.self.")
    return re.sub(r"\.mlp\.fc2\.", ".output.dense.", name.replace(".mlp.fc1.", ".intermediate.dense."))


DECODER = partial(
    Mask2Former,
    num_queries=10,
    channels=32,
    encoder_layers=1,
    decoder_layers=2,
    attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
)


@pytest.mark.parametrize("kind", ["swin", "timm"])
def test_queries_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    backbone: Any
    if kind == "swin":
        model = library_model(swin)
        backbone = partial(timm, model="swin_tiny_patch4_window7_224", options=SWIN)
    else:
        options = {"model_type": "timm_backbone", "features_only": True, "out_indices": [1, 2, 3, 4]}
        model = library_model(lambda library: library.TimmBackboneConfig(backbone="resnet18", **options))
        backbone = partial(timm, model="resnet18")
    decoder = partial(DECODER, input_norms=kind == "swin")
    parts: dict[str, Any] = {"backbone": backbone, "mean": [0.0], "std": [1.0]}
    tasks: list[Any] = [Segmentation(INFO, decoder=decoder, **parts)]
    if kind == "swin":
        tasks.append(Panoptic(INFO, decoder=decoder, detector=None, **parts))
        tasks.append(Detection(INFO, detector=partial(MaskClassifier, decoder=decoder), **parts))
    image, size = torch.rand(1, 3, 224, 224), [(224, 224)]  # whole windows; timm pads others after shifting them
    with torch.no_grad():
        expected = model(image)
        for task, rename in zip(tasks, (of_version_4, str, str), strict=False):
            weights = {rename(key): values.clone() for key, values in model.state_dict().items()}
            save_file(weights, tmp_path / "a.safetensors")
            report = initialize(task, Init(weights=tmp_path / "a.safetensors"))
            assert not report.missing and not report.other_shape, report
            assert not [key for key in report.unexpected if "num_batches" not in key and "model.norm." not in key]
            queries = getattr(task, "decoder", None) or task.detector.decoder
            logits, masks = queries.query_masks(task.eval().feature_maps(image, size))[0]
            torch.testing.assert_close(logits, expected.class_queries_logits, atol=1e-4, rtol=0)
            torch.testing.assert_close(masks, expected.masks_queries_logits, atol=1e-4, rtol=1e-4)


def test_other_backbones_are_reported() -> None:
    names = (f"{PREFIX}embedder.embedder.convolution.weight", "class_predictor.weight")
    with pytest.raises(ValueError, match=r"with a Swin or timm backbone; this one has model.pixel_level_module.enc"):
        formats.translate_mask2former(dict.fromkeys(names, torch.zeros(1)))
