"""Weights of other systems under our names: detectron2's, Caffe2's ResNets, torchvision's detectors, RT-DETR's, and
those of self-supervised learning (:mod:`opabinia.models.weights.selfsup_names`).

Whose a file is shows in its names. What they are called here stands in the docstrings of the detectors; of backbones
only ResNets are known, those of timm (``timm``, ``resnet``), whose names are torchvision's.

What has to be set beside the weights, since no file tells it:

* detectron2's R-50 and R-101 and all that was trained from them: backbone ``resnet`` with ``stride_in_1x1: true`` and
  ``last_stride: 2``; ``task.mean: [0.485, 0.456, 0.406]`` and ``task.std: [0.00392157]`` (their pixels are those of 0
  to 255 less the mean, divided by 1). Its X-101: the stride as in timm, ``std: [0.229, 0.224, 0.225]``.
* torchvision's: what its conventions are called, see :mod:`opabinia.models.detectors.rcnn`.
* RT-DETR's R50 and R101: backbones ``resnet50d`` and ``resnet101d``, ``task.mean: [0]``, ``task.std: [1]``, images of
  640 x 640 without regard to their shape.

Tried: torchvision's detectors of this version with drawn weights, which find the same things here; RT-DETR of the
transformers library, likewise. There were no files of detectron2's model zoo to be tried: the names and shapes are
those of its public sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from opabinia.models.weights import selfsup_names as theirs
from opabinia.models.weights.selfsup_names import BACKBONE, Rules, Weights, renamed

Colours = Literal["rgb", "bgr"]


class Translation(NamedTuple):
    """Weights under our names, and what was done to them, for people; empty if they were left as they are."""

    weights: dict[str, Tensor]
    told: str


class _Language(NamedTuple):
    """How a system names weights.

    Attributes:
        mark: what the name of a weight begins with that only this system has.
        whose: names, for people.
        colours: the order that its first convolution takes colours in.
        translate: to our names.
    """

    mark: str
    whose: str
    colours: Colours
    translate: Callable[[Weights], dict[str, Tensor]]


def translated(weights: Weights, colours: Colours | None = None) -> Translation:
    """Weights under our names.

    Args:
        weights: by the names in their file.
        colours: the order that the first convolution takes them in; ours is RGB. None: BGR for detectron2's and
            Caffe2's, apart from backbones that were converted from torchvision's.
    """
    for language in _LANGUAGES:
        if any(name.startswith(language.mark) for name in weights):
            ours = language.translate(weights)
            return _in_rgb(ours, f"{language.whose} names", colours or language.colours)
    return _in_rgb(dict(weights), "", colours or "rgb")


def _in_rgb(weights: dict[str, Tensor], told: str, colours: Colours) -> Translation:
    """With convolutions of images, the only ones of three channels, for images in RGB."""
    if colours == "rgb":
        return Translation(weights, told)
    turned = {name: one.flip(1) for name, one in weights.items() if one.ndim == 4 and one.shape[1] == 3}
    changed = [told, *(f"{name} turned from BGR to RGB" for name in turned)]
    return Translation({**weights, **turned}, ", ".join(filter(None, changed)))


# --- detectron2 and Caffe2 --------------------------------------------------------------------------------------------


def _number(before: str, after: str, *, times: int = 1, plus: int = 0) -> Callable[[re.Match[str]], str]:
    """What takes the place of a name whose first group is a number that is counted otherwise here."""
    return lambda found: f"{before}{times * int(found[1]) + plus}{after}"


_RESNET: Rules = (
    (r"^(backbone\.bottom_up\.)?stem\.", BACKBONE),
    (r"^(?:backbone\.bottom_up\.)?res(\d)\.", _number(f"{BACKBONE}layer", ".", plus=-1)),
    (rf"^({re.escape(BACKBONE)}.*)conv(\d)\.norm\.", r"\1bn\2."),
    (rf"^({re.escape(BACKBONE)}.*)shortcut\.norm\.", r"\1downsample.1."),
    (rf"^({re.escape(BACKBONE)}.*)shortcut\.", r"\1downsample.0."),
)

_DETECTRON2: Rules = (
    *_RESNET,
    (r"^backbone\.top_block\.", "detector.neck.fpn.extra_blocks."),
    (r"^proposal_generator\.rpn_head\.conv\.", "detector.rpn.head.conv.0.0."),
    (r"^proposal_generator\.rpn_head\.objectness_logits\.", "detector.rpn.head.cls_logits."),
    (r"^proposal_generator\.rpn_head\.anchor_deltas\.", "detector.rpn.head.bbox_pred."),
    (r"^roi_heads\.box_(head|predictor)\.(\d)\.", r"detector.box.stages.\2.\1."),
    (r"^roi_heads\.box_(head|predictor)\.", r"detector.box.layers.\1."),
    (r"(?<=\.head\.)fc(\d)\.", _number("fc", ".", plus=5)),
    (r"^roi_heads\.mask_head\.mask_fcn(\d)\.", _number("detector.others.mask.layers.", ".0.", plus=-1)),
    (r"^roi_heads\.mask_head\.deconv\.", "detector.others.mask.predictor.conv5_mask."),
    (r"^roi_heads\.mask_head\.predictor\.", "detector.others.mask.predictor.mask_fcn_logits."),
    (r"^roi_heads\.keypoint_head\.conv_fcn(\d)\.", _number("detector.others.keypoint.layers.", ".", times=2, plus=-2)),
    (r"^roi_heads\.keypoint_head\.score_lowres\.", "detector.others.keypoint.predictor.kps_score_lowres."),
    (r"^head\.cls_score\.", "detector.head.classification_head.cls_logits."),
    (r"^head\.bbox_pred\.", "detector.head.regression_head.bbox_reg."),
    (r"^head\.ctrness\.", "detector.head.regression_head.bbox_ctrness."),
    (r"^head\.cls_subnet\.", "detector.head.classification_head.conv."),
    (r"^head\.bbox_subnet\.", "detector.head.regression_head.conv."),
)


def _of_detectron2(weights: Weights) -> dict[str, Tensor]:
    kept = {name: tensor for name, tensor in weights.items() if not re.search(r"^pixel_|\.cell_anchors\.", name)}
    finest = min(
        (int(level) for name in kept for level in re.findall(r"^backbone\.fpn_lateral(\d)\.", name)), default=0
    )
    pyramid = [
        (rf"^backbone\.fpn_{theirs}(\d)\.{norm}", _number(f"detector.neck.fpn.{ours}.", f".{place}.", plus=-finest))
        for theirs, ours in (("lateral", "inner_blocks"), ("output", "layer_blocks"))
        for norm, place in ((r"norm\.", 1), ("", 0))
    ]
    found = renamed(kept, (*pyramid, *_DETECTRON2))
    return found if any("bbox_ctrness" in name for name in found) else _in_blocks(found)


def _in_blocks(weights: Weights) -> dict[str, Tensor]:
    """With the layers of RetinaNet's branches, which stand in a row, as blocks of a convolution and what follows it."""
    row = re.compile(r"^(detector\.head\.\w+_head\.conv)\.(\d+)\.(\w+)$")
    places = {int(found[2]) for name in weights if (found := row.match(name))}
    # Convolution and ReLU, or with a norm between them.
    length = 3 if 1 in places else 2

    def block(found: re.Match[str]) -> str:
        number, place = divmod(int(found[2]), length)
        return f"{found[1]}.{number}.{place}.{found[3]}"

    return renamed(weights, [(row.pattern, block)])


_CAFFE2: Rules = (
    (r"_w$", ".weight"),
    (r"_b$", ".bias"),
    (r"_bn_s$", "_bn.weight"),
    (r"_bn_rm$", "_bn.running_mean"),
    (r"_bn_riv$", "_bn.running_var"),
    (r"^res_conv1_bn\.", "bn1."),
    (r"^fc1000\.", "fc."),
    (r"^res(\d)_(\d+)_", lambda found: f"layer{int(found[1]) - 1}.{found[2]}."),
    (r"branch1_bn\.", "downsample.1."),
    (r"branch1\.", "downsample.0."),
    (r"branch2([abc])_bn\.", lambda found: f"bn{'abc'.index(found[1]) + 1}."),
    (r"branch2([abc])\.", lambda found: f"conv{'abc'.index(found[1]) + 1}."),
    ("^", BACKBONE),
)


def _of_caffe2(weights: Weights) -> dict[str, Tensor]:
    """A ResNet that was trained for ImageNet. Its norms have statistics within their weights, or 0 and 1 in place of
    them, as in detectron2."""
    found = renamed({name: one for name, one in weights.items() if not name.endswith("_momentum")}, _CAFFE2)
    for name, tensor in list(found.items()):
        if re.search(r"(bn\d|downsample\.1)\.weight$", name):
            norm = name.removesuffix("weight")
            found.setdefault(f"{norm}running_mean", torch.zeros_like(tensor))
            found.setdefault(f"{norm}running_var", torch.ones_like(tensor) - 1e-5)  # 1 with the norm's epsilon
    return found


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


def _of_torchvision(weights: Weights) -> dict[str, Tensor]:
    """Its class 0, the background, is the last one here or, where no logit stands for it, none at all."""
    found = renamed(weights, _TORCHVISION)
    old = re.compile(r"classification_head\.conv\.\d\.weight$")
    if not any("bbox_ctrness" in name for name in found) and any(old.search(name) for name in found):
        found = _in_blocks(found)
    boxes = found.get("detector.head.regression_head.bbox_reg.bias")
    anchors = 1 if boxes is None else len(boxes) // 4
    for name, tensor in found.items():
        layer = name.split(".")[-2] if "." in name else ""
        if layer == "cls_score":
            found[name] = tensor.roll(-1, 0)
        elif layer == "bbox_pred" and ".predictor." in name:
            found[name] = tensor[4:]
        elif layer == "mask_fcn_logits":
            found[name] = tensor[1:]
        elif layer == "cls_logits" and ".classification_head." in name:
            found[name] = tensor.view(anchors, -1, *tensor.shape[1:])[:, 1:].flatten(0, 1)
    return found


# --- RT-DETR of the transformers library ------------------------------------------------------------------------------

_STEM = "model.backbone.model.embedder.embedder."
_RT_DETR: Rules = (
    # As the library itself renames what was saved before its version 5.
    (r"(?<=self_attn\.)out_proj\.", "o_proj."),
    (r"(layers\.\d+)\.(fc[12])\.", r"\1.mlp.\2."),
    (r"^model\.encoder\.encoder\.", "model.encoder.aifi."),
    # ResNet-D, which has three convolutions in its stem and pools in its shortcuts.
    (rf"^{re.escape(_STEM)}(\d)\.convolution\.", _number(f"{BACKBONE}conv1.", ".", times=3)),
    (rf"^{re.escape(_STEM)}([01])\.normalization\.", _number(f"{BACKBONE}conv1.", ".", times=3, plus=1)),
    (rf"^{re.escape(_STEM)}2\.normalization\.", f"{BACKBONE}bn1."),
    (r"^model\.backbone\.model\.encoder\.stages\.(\d)\.layers\.", _number(f"{BACKBONE}layer", ".", plus=1)),
    (r"(?<=\.)layer\.(\d)\.convolution\.", _number("conv", ".", plus=1)),
    (r"(?<=\.)layer\.(\d)\.normalization\.", _number("bn", ".", plus=1)),
    (r"\.shortcut\.(1\.)?convolution\.", ".downsample.1."),
    (r"\.shortcut\.(1\.)?normalization\.", ".downsample.2."),
    (r"^(class|bbox)_embed\.", r"model.decoder.\1_embed."),  # the same layers under a second name
    (r"^model\.", "detector."),
)


def _of_rt_detr(weights: Weights) -> dict[str, Tensor]:
    return renamed(weights, _RT_DETR)


_LANGUAGES = (
    _Language("backbone.bottom_up.", "detectron2's", "bgr", _of_detectron2),
    _Language("res2.0.", "detectron2's", "rgb", _of_detectron2),
    _Language("res_conv1_bn_", "Caffe2's", "bgr", _of_caffe2),
    _Language("backbone.body.", "torchvision's", "rgb", _of_torchvision),
    _Language("model.encoder_input_proj.", "the transformers library's", "rgb", _of_rt_detr),
    _Language("trunk.", "VISSL's", "rgb", partial(renamed, rules=theirs.VISSL)),
    _Language("encoder_q.", "MoCo's", "rgb", partial(renamed, rules=theirs.MOCO)),
    _Language("base_encoder.", "MoCo's", "rgb", partial(renamed, rules=theirs.MOCO)),
    _Language("projection_head.", "SwAV's", "rgb", partial(renamed, rules=theirs.SWAV)),
    _Language("student.module.backbone.", "DINO's", "rgb", partial(renamed, rules=theirs.DINO)),
    _Language("backbone.4.0.conv1.", "lightly's", "rgb", partial(renamed, rules=theirs.LIGHTLY)),
    _Language("register_tokens", "DINOv2's", "rgb", theirs.of_dinov2),
    _Language("blocks.0.mlp.w12.", "DINOv2's", "rgb", theirs.of_dinov2),
)

# --- classes of COCO --------------------------------------------------------------------------------------------------

_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
_COCO = [number - 1 for number in range(1, 91) if number not in _UNUSED]
"""Which of COCO's numbers from 1 to 90, counted from 0, its 80 classes have."""


def of_coco(name: str, tensor: Tensor, target: Tensor) -> Tensor | None:
    """The rows of COCO's 80 classes from a layer that tells all 90 numbers apart, as torchvision's do; None if
    ``tensor`` is no such layer, or ``target``, whose place it takes, not one of 80 classes."""
    layer = name.split(".")[-2] if "." in name else ""
    background = 1 if layer == "cls_score" else 0
    each = (len(target) - background) // 80
    if each == 0 or (len(tensor), len(target)) != (90 * each + background, 80 * each + background):
        return None
    told, rest = tensor[: len(tensor) - background], tensor[len(tensor) - background :]
    if layer == "cls_logits":  # one row of classes for each anchor
        return told.view(each, 90, *told.shape[1:])[:, _COCO].flatten(0, 1)
    if layer in ("cls_score", "bbox_pred", "mask_fcn_logits"):
        return torch.cat([told.view(90, each, *told.shape[1:])[_COCO].flatten(0, 1), rest])
    return None
