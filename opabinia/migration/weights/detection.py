"""Weights of detectron2 (detectors, semantic and panoptic segmentation), Caffe2's ResNets, torchvision's detectors.

The names in Opabinia's detectors are listed in their docstrings; of backbones only ResNets are supported, those of timm
(``timm``, ``resnet``), whose names are torchvision's.

The following must be set in the config, since no file contains it:

* detectron2's R-50 and R-101 and models trained from them: backbone ``resnet`` with ``stride_in_1x1: true`` and
  ``last_stride: 2``; ``task.mean: [0.485, 0.456, 0.406]`` and ``task.std: [0.00392157]`` (their pixels are 0 to 255
  minus the mean, divided by 1). Its X-101: the stride as in timm, ``std: [0.229, 0.224, 0.225]``.
* torchvision's: its conventions, see :mod:`opabinia.models.detectors.rcnn`.

Tested: torchvision's detectors of this version with random weights, which give the same detections here. So do, checked
once, detectron2's own (R-CNNs on C4, DC5, FPN and X-101, cascade, RetinaNet, RPN); no file of its zoo was available.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from opabinia.migration.weights.names import Rules, rename_weights
from opabinia.models.weights.translation import (
    BACKBONE,
    WeightFormat,
    Weights,
    register_shape_adapter,
    register_weight_format,
)

# --- detectron2 and Caffe2 --------------------------------------------------------------------------------------------


def _number(before: str, after: str, *, times: int = 1, plus: int = 0) -> Callable[[re.Match[str]], str]:
    """Return a replacement for a match whose first group is a number, which is counted differently here."""
    return lambda match: f"{before}{times * int(match[1]) + plus}{after}"


_RESNET: Rules = (
    (r"^(backbone\.(bottom_up\.)?)?stem\.", BACKBONE),
    # Without a pyramid there is no bottom_up, and the last stage may be in roi_heads.
    (r"^(?:backbone\.(?:bottom_up\.)?|roi_heads\.)?res(\d)\.", _number(f"{BACKBONE}layer", ".", plus=-1)),
    (rf"^({re.escape(BACKBONE)}.*)conv(\d)\.norm\.", r"\1bn\2."),
    (rf"^({re.escape(BACKBONE)}.*)conv2_offset\.", r"\1conv2.offset."),
    (rf"^({re.escape(BACKBONE)}.*)shortcut\.norm\.", r"\1downsample.1."),
    (rf"^({re.escape(BACKBONE)}.*)shortcut\.", r"\1downsample.0."),
)

_DETECTRON2: Rules = (
    *_RESNET,
    (r"^backbone\.top_block\.", "detector.neck.fpn.extra_blocks."),
    (
        r"^proposal_generator\.rpn_head\.conv\.(?:conv(\d)\.)?",
        lambda match: f"detector.rpn.head.conv.{match[1] or 0}.0.",
    ),
    (r"^proposal_generator\.rpn_head\.objectness_logits\.", "detector.rpn.head.cls_logits."),
    (r"^proposal_generator\.rpn_head\.anchor_deltas\.", "detector.rpn.head.bbox_pred."),
    (r"^roi_heads\.box_(head|predictor)\.(\d)\.", r"detector.box.stages.\2.\1."),
    (r"^roi_heads\.box_(head|predictor)\.", r"detector.box.layers.\1."),
    (r"(?<=\.head\.)conv(\d)\.norm\.", _number("", ".1.", plus=-1)),
    (r"(?<=\.head\.)conv(\d)\.", _number("", ".0.", plus=-1)),
    (r"^roi_heads\.mask_head\.mask_fcn(\d)\.norm\.", _number("detector.others.mask.layers.", ".1.", plus=-1)),
    (r"^roi_heads\.mask_head\.mask_fcn(\d)\.", _number("detector.others.mask.layers.", ".0.", plus=-1)),
    (r"^roi_heads\.mask_head\.deconv\.", "detector.others.mask.predictor.conv5_mask."),
    (r"^roi_heads\.mask_head\.predictor\.", "detector.others.mask.predictor.mask_fcn_logits."),
    (r"^roi_heads\.keypoint_head\.conv_fcn(\d)\.", _number("detector.others.keypoint.layers.", ".", times=2, plus=-2)),
    (r"^roi_heads\.keypoint_head\.score_lowres\.", "detector.others.keypoint.predictor.kps_score_lowres."),
    (r"^sem_seg_head\.p(\d)\.(\d)\.norm\.", lambda match: f"decoder.scales.{int(match[1]) - 2}.{match[2]}.1."),
    (r"^sem_seg_head\.p(\d)\.(\d)\.", lambda match: f"decoder.scales.{int(match[1]) - 2}.{match[2]}.0."),
    (r"^sem_seg_head\.predictor\.", "decoder.classifier."),
    (r"^head\.cls_score\.", "detector.head.classification_head.cls_logits."),
    (r"^head\.bbox_pred\.", "detector.head.regression_head.bbox_reg."),
    (r"^head\.ctrness\.", "detector.head.regression_head.bbox_ctrness."),
    (r"^head\.cls_subnet\.", "detector.head.classification_head.conv."),
    (r"^head\.bbox_subnet\.", "detector.head.regression_head.conv."),
)


def translate_detectron2(weights: Weights) -> dict[str, Tensor]:
    """Translate detectors, semantic and panoptic segmentation, and ResNets of detectron2."""
    kept = {name: tensor for name, tensor in weights.items() if not re.search(r"^pixel_|\.cell_anchors\.", name)}
    finest = min(
        (int(level) for name in kept for level in re.findall(r"^backbone\.fpn_lateral(\d)\.", name)), default=0
    )
    names = " ".join(kept)
    owner = "decoder" if "sem_seg_head." in names and "roi_heads." not in names else "detector"
    pyramid = [
        (rf"^backbone\.fpn_{layer}(\d)\.{norm}", _number(f"{owner}.neck.fpn.{block}.", f".{index}.", plus=-finest))
        for layer, block in (("lateral", "inner_blocks"), ("output", "layer_blocks"))
        for norm, index in ((r"norm\.", 1), ("", 0))
    ]
    convs, fcs = (len(set(re.findall(rf"box_head\.(?:\d\.)?({kind}\d)\.", names))) for kind in ("conv", "fc"))
    # Two layers alone have names, others numbers, with a ReLU after each and a Flatten before the first.
    fc = _number("fc", ".", plus=5) if (convs, fcs) == (0, 2) else _number("", ".", times=2, plus=convs - 1)
    renamed = rename_weights(kept, (*pyramid, *_DETECTRON2, (r"(?<=\.head\.)fc(\d)\.", fc)))
    return renamed if any("bbox_ctrness" in name for name in renamed) else _group_into_blocks(renamed)


def _group_into_blocks(weights: Weights) -> dict[str, Tensor]:
    """Group the layers of RetinaNet's branches, which are one sequence, into blocks that begin with a convolution."""
    pattern = re.compile(r"^(detector\.head\.\w+_head\.conv)\.(\d+)\.(\w+)$")
    indices = {int(match[2]) for name in weights if (match := pattern.match(name))}
    # Convolution and ReLU, or with a norm between them.
    length = 3 if 1 in indices else 2

    def block(match: re.Match[str]) -> str:
        number, layer = divmod(int(match[2]), length)
        return f"{match[1]}.{number}.{layer}.{match[3]}"

    return rename_weights(weights, [(pattern.pattern, block)])


_CAFFE2: Rules = (
    (r"_w$", ".weight"),
    (r"_b$", ".bias"),
    (r"_bn_s$", "_bn.weight"),
    (r"_bn_rm$", "_bn.running_mean"),
    (r"_bn_riv$", "_bn.running_var"),
    (r"^res_conv1_bn\.", "bn1."),
    (r"^fc1000\.", "fc."),
    (r"^res(\d)_(\d+)_", lambda match: f"layer{int(match[1]) - 1}.{match[2]}."),
    (r"branch1_bn\.", "downsample.1."),
    (r"branch1\.", "downsample.0."),
    (r"branch2([abc])_bn\.", lambda match: f"bn{'abc'.index(match[1]) + 1}."),
    (r"branch2([abc])\.", lambda match: f"conv{'abc'.index(match[1]) + 1}."),
    ("^", BACKBONE),
)


def translate_caffe2(weights: Weights) -> dict[str, Tensor]:
    """Translate a ResNet trained on ImageNet. The statistics of its norms are folded into their weights, so they are 0
    and 1, as in detectron2."""
    kept = {name: tensor for name, tensor in weights.items() if not name.endswith("_momentum")}
    renamed = rename_weights(kept, _CAFFE2)
    for name, tensor in list(renamed.items()):
        if re.search(r"(bn\d|downsample\.1)\.weight$", name):
            norm = name.removesuffix("weight")
            renamed.setdefault(f"{norm}running_mean", torch.zeros_like(tensor))
            renamed.setdefault(f"{norm}running_var", torch.ones_like(tensor) - 1e-5)  # 1 with the norm's epsilon
    return renamed


# --- torchvision ------------------------------------------------------------------------------------------------------

_TORCHVISION: Rules = (
    (r"^backbone\.body\.", BACKBONE),
    (r"^backbone\.fpn\.(\w+_blocks)\.(\d)\.(weight|bias)$", r"backbone.fpn.\1.\2.0.\3"),
    (r"^backbone\.fpn\.", "detector.neck.fpn."),
    (r"^rpn\.head\.conv\.(weight|bias)$", r"rpn.head.conv.0.0.\1"),
    (r"^rpn\.", "detector.rpn."),
    (r"^roi_heads\.box_", "detector.box.layers."),
    (r"^roi_heads\.mask_head\.mask_fcn(\d)\.", _number("roi_heads.mask_head.", ".0.", plus=-1)),
    (r"^roi_heads\.mask_head\.", "detector.others.mask.layers."),
    (r"^roi_heads\.keypoint_head\.", "detector.others.keypoint.layers."),
    (r"^roi_heads\.(mask|keypoint)_predictor\.", r"detector.others.\1.predictor."),
    (r"^head\.", "detector.head."),
)


def translate_torchvision(weights: Weights) -> dict[str, Tensor]:
    """Translate torchvision's detectors. Their class 0, the background, becomes the last class or, without a logit of
    its own, is dropped."""
    renamed = rename_weights(weights, _TORCHVISION)
    unblocked = re.compile(r"classification_head\.conv\.\d\.weight$")
    if not any("bbox_ctrness" in name for name in renamed) and any(unblocked.search(name) for name in renamed):
        renamed = _group_into_blocks(renamed)
    boxes = renamed.get("detector.head.regression_head.bbox_reg.bias")
    anchors = 1 if boxes is None else len(boxes) // 4
    for name, tensor in renamed.items():
        layer = name.split(".")[-2] if "." in name else ""
        if layer == "cls_score":
            renamed[name] = tensor.roll(-1, 0)
        elif layer == "bbox_pred" and ".predictor." in name:
            renamed[name] = tensor[4:]
        elif layer == "mask_fcn_logits":
            renamed[name] = tensor[1:]
        elif layer == "cls_logits" and ".classification_head." in name:
            renamed[name] = tensor.view(anchors, -1, *tensor.shape[1:])[:, 1:].flatten(0, 1)
    return renamed


register_weight_format(
    WeightFormat("backbone.bottom_up.", "detectron2's names", "bgr", translate_detectron2),
    WeightFormat("backbone.res2.", "detectron2's names", "bgr", translate_detectron2),
    WeightFormat("res2.0.", "detectron2's names", "rgb", translate_detectron2),
    WeightFormat("res_conv1_bn_", "Caffe2's names", "bgr", translate_caffe2),
    WeightFormat("backbone.body.", "torchvision's names", "rgb", translate_torchvision),
)

# --- classes of COCO --------------------------------------------------------------------------------------------------

_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
_COCO_ROWS = [number - 1 for number in range(1, 91) if number not in _UNUSED]
"""The rows of COCO's 80 classes among its category ids from 1 to 90."""


@register_shape_adapter
def select_coco_classes(name: str, tensor: Tensor, target: Tensor) -> Tensor | None:
    """Select the rows of COCO's 80 classes from a layer with rows for all 90 category ids, as torchvision's have.

    Returns:
        None if ``tensor`` is not such a layer, or ``target`` does not have 80 classes.
    """
    layer = name.split(".")[-2] if "." in name else ""
    background = 1 if layer == "cls_score" else 0
    rows = (len(target) - background) // 80
    if rows == 0 or (len(tensor), len(target)) != (90 * rows + background, 80 * rows + background):
        return None
    classes, rest = tensor[: len(tensor) - background], tensor[len(tensor) - background :]
    if layer == "cls_logits":  # one row of classes for each anchor
        return classes.view(rows, 90, *classes.shape[1:])[:, _COCO_ROWS].flatten(0, 1)
    if layer in ("cls_score", "bbox_pred", "mask_fcn_logits"):
        return torch.cat([classes.view(90, rows, *classes.shape[1:])[_COCO_ROWS].flatten(0, 1), rest])
    return None
