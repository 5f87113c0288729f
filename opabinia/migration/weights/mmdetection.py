"""Weights of MMDetection 2 and 3: Faster, Mask and Cascade R-CNN, RetinaNet and FCOS on ResNets; of MMRotate 0.3:
rotated FCOS (``angle_version`` ``le90``).

Settings that no file contains: ``task.mean`` and ``task.std`` of its preprocessing; for models of style ``caffe``
``init.channel_order: bgr`` and ``stride_in_1x1: true`` of the backbone ``resnet``; for RetinaNet ``relu_before_p7:
false`` of the neck ``fpn_p3_p7``; for a cascade ``score_average: logits``, with masks also ``num_mask_heads``.

Tested with models of MMDetection 3.3.0 with random weights, which give the same detections here; no file of its model
zoo was available.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from opabinia.migration.weights.names import Rules, rename_weights
from opabinia.models.weights.translation import BACKBONE, WeightFormat, Weights, register_weight_format

_DETECTORS: Rules = (
    (r"^(backbone|roi_head\.shared_head)\.", BACKBONE),
    (rf"^({re.escape(BACKBONE)}.*)\bgn(?=\d\.)", r"\1bn"),  # group norms keep their names in ours
    (r"(?<=\.conv2)\.conv_offset\.", ".offset."),
    (r"^bbox_head\.(?=rpn_)", "rpn_head."),  # of an RPN alone
    (r"^neck\.lateral_convs\.(\d)", r"detector.neck.fpn.inner_blocks.\1"),
    (r"^neck\.fpn_convs\.(\d)", r"detector.neck.fpn.layer_blocks.\1"),
    (r"^rpn_head\.rpn_conv\.(?=weight|bias)", "detector.rpn.head.conv.0.0."),
    (r"^rpn_head\.rpn_conv\.(\d)", r"detector.rpn.head.conv.\1"),
    (r"^rpn_head\.rpn_cls\.", "detector.rpn.head.cls_logits."),
    (r"^rpn_head\.rpn_reg\.", "detector.rpn.head.bbox_pred."),
    (r"^roi_head\.bbox_head\.(\d)\.", r"detector.box.stages.\1."),
    (r"^roi_head\.bbox_head\.", "detector.box.layers."),
    (r"(?<=\.)fc_cls\.", "predictor.cls_score."),
    (r"(?<=\.)fc_reg\.", "predictor.bbox_pred."),
    (r"(?<=\.)shared_convs\.(\d)", r"head.\1"),
    (r"^roi_head\.mask_head\.(\d)\.", r"detector.others.mask.stages.\1."),
    (r"^roi_head\.mask_head\.", "detector.others.mask."),
    (r"(?<=\.)convs\.(\d)", r"layers.\1"),
    (r"(?<=\.)upsample\.", "predictor.conv5_mask."),
    (r"(?<=\.)conv_logits\.", "predictor.mask_fcn_logits."),
    (r"^bbox_head\.cls_convs\.(\d)", r"detector.head.classification_head.conv.\1"),
    (r"^bbox_head\.reg_convs\.(\d)", r"detector.head.regression_head.conv.\1"),
    (r"^bbox_head\.(retina|conv)_cls\.", "detector.head.classification_head.cls_logits."),
    (r"^bbox_head\.(retina|conv)_reg\.", "detector.head.regression_head.bbox_reg."),
    (r"^bbox_head\.conv_centerness\.", "detector.head.regression_head.bbox_ctrness."),
    (r"^bbox_head\.scales\.(\d)\.scale$", r"detector.head.scales.\1"),
    (r"^bbox_head\.conv_angle\.", "detector.head.angle."),
    (r"^bbox_head\.scale_angle\.scale$", "detector.head.angle_scale.0"),
)


def translate_mmdetection(weights: Weights) -> dict[str, Tensor]:
    """Translate a detector of MMDetection."""
    numbers = {kind: _numbers(weights, kind) for kind in ("lateral_convs", "shared_convs", "shared_fcs")}
    laterals, convs, fcs = (len(found) for found in numbers.values())
    # Two layers alone have names, others numbers, with a ReLU after each and a Flatten before the first.
    named = (convs, fcs) == (0, 2)

    def fc(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"head.fc{number + 6}" if named else f"head.{2 * number + convs + 1}"

    def branch(match: re.Match[str]) -> str:
        return f"{match[1]}.{3 * int(match[2]) + (match[3] == 'gn')}."  # a convolution, a norm, a ReLU

    fcos: Rules = ((r"^(bbox_head\.\w+_convs)\.(\d)\.(conv|gn)\.", branch),)
    rules: Rules = (
        *(fcos if "bbox_head.conv_centerness.weight" in weights else ()),
        *_DETECTORS,
        (r"(?<=\.)shared_fcs\.(\d)", fc),
        (r"(?<=neck\.fpn\.)layer_blocks\.(\d)\.conv\.", lambda match: _pyramid_layer(int(match[1]), laterals)),
        (r"^(detector\..*)\.conv\.(?=weight|bias)", r"\1.0."),
        (r"^(detector\..*)\.(?:bn|gn)\.", r"\1.1."),
    )
    renamed = rename_weights(weights, rules)
    boxes = renamed.get("detector.head.regression_head.bbox_reg.bias", renamed.get("detector.rpn.head.bbox_pred.bias"))
    for name, tensor in renamed.items():
        if boxes is not None and re.search(r"(head\.cls_logits|bbox_reg|rpn\.head\.bbox_pred)\.\w+$", name):
            renamed[name] = _scales_first(tensor, len(boxes) // 4)
    for name in [name for name in renamed if re.search(r"_head\.conv\.\d+\.weight$", name)]:  # of FCOS, before a norm
        if renamed[name].ndim == 4:
            renamed.setdefault(f"{name.removesuffix('weight')}bias", torch.zeros(len(renamed[name])))
    for name in renamed.keys() & {f"detector.head.angle.{kind}" for kind in ("weight", "bias")}:
        renamed[name] = -renamed[name]  # MMRotate's angles are clockwise
    return renamed


def _numbers(weights: Weights, kind: str) -> set[str]:
    return {number for name in weights for number in re.findall(rf"\.{kind}\.(\d)\.", name)}


def _pyramid_layer(number: int, laterals: int) -> str:
    """Return the name of a convolution of the pyramid; those after the laterals make its coarser levels."""
    return f"layer_blocks.{number}.0." if number < laterals else f"extra_blocks.p{number - laterals + 6}."


def _scales_first(tensor: Tensor, anchors: int) -> Tensor:
    """Order the rows of anchors, which are those of each of three aspect ratios in all sizes there, by size here."""
    if anchors % 3:  # points
        return tensor
    return tensor.view(3, anchors // 3, -1, *tensor.shape[1:]).transpose(0, 1).flatten(0, 2)


for prefix in ("neck.lateral_convs.", "rpn_head.rpn_conv."):
    register_weight_format(WeightFormat(prefix, "MMDetection's names", "rgb", translate_mmdetection))
