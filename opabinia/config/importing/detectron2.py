"""detectron2's configs of detectors on feature pyramids as configs of ours.

Where a config says nothing, detectron2's default is written into the recipe, not ours: :data:`DEFAULTS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.importing import yacs
from opabinia.config.importing.foreign import Foreign, leaves
from opabinia.config.importing.recipe import (
    Recipe,
    Reference,
    Rule,
    duration,
    first,
    lasting,
    of_one,
    one_of,
)

DEFAULTS: dict[str, Any] = {
    "VERSION": 2,
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
    "MODEL.MASK_ON": False,
    "MODEL.KEYPOINT_ON": False,
    "MODEL.WEIGHTS": "",
    "MODEL.PIXEL_MEAN": [103.530, 116.280, 123.675],
    "MODEL.PIXEL_STD": [1.0, 1.0, 1.0],
    "MODEL.BACKBONE.NAME": "build_resnet_backbone",
    "MODEL.BACKBONE.FREEZE_AT": 2,
    "MODEL.FPN.OUT_CHANNELS": 256,
    "MODEL.FPN.NORM": "",
    "MODEL.FPN.FUSE_TYPE": "sum",
    "MODEL.FPN.IN_FEATURES": [],
    "MODEL.PROPOSAL_GENERATOR.NAME": "RPN",
    "MODEL.PROPOSAL_GENERATOR.MIN_SIZE": 0,
    "MODEL.ANCHOR_GENERATOR.NAME": "DefaultAnchorGenerator",
    "MODEL.ANCHOR_GENERATOR.SIZES": [[32, 64, 128, 256, 512]],
    "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [[0.5, 1.0, 2.0]],
    "MODEL.ANCHOR_GENERATOR.OFFSET": 0.0,
    "MODEL.RPN.HEAD_NAME": "StandardRPNHead",
    "MODEL.RPN.BOUNDARY_THRESH": -1,
    "MODEL.RPN.IOU_THRESHOLDS": [0.3, 0.7],
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE": 256,
    "MODEL.RPN.POSITIVE_FRACTION": 0.5,
    "MODEL.RPN.BBOX_REG_LOSS_TYPE": "smooth_l1",
    "MODEL.RPN.BBOX_REG_LOSS_WEIGHT": 1.0,
    "MODEL.RPN.BBOX_REG_WEIGHTS": [1.0, 1.0, 1.0, 1.0],
    "MODEL.RPN.SMOOTH_L1_BETA": 0.0,
    "MODEL.RPN.LOSS_WEIGHT": 1.0,
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 12000,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 6000,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": 2000,
    "MODEL.RPN.POST_NMS_TOPK_TEST": 1000,
    "MODEL.RPN.NMS_THRESH": 0.7,
    "MODEL.RPN.CONV_DIMS": [-1],
    "MODEL.ROI_HEADS.NAME": "Res5ROIHeads",
    "MODEL.ROI_HEADS.IOU_THRESHOLDS": [0.5],
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 512,
    "MODEL.ROI_HEADS.POSITIVE_FRACTION": 0.25,
    "MODEL.ROI_HEADS.SCORE_THRESH_TEST": 0.05,
    "MODEL.ROI_HEADS.NMS_THRESH_TEST": 0.5,
    "MODEL.ROI_HEADS.PROPOSAL_APPEND_GT": True,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE": "smooth_l1",
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT": 1.0,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": [10.0, 10.0, 5.0, 5.0],
    "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 0.0,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 0,
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIAlignV2",
    "MODEL.ROI_BOX_HEAD.NUM_FC": 0,
    "MODEL.ROI_BOX_HEAD.FC_DIM": 1024,
    "MODEL.ROI_BOX_HEAD.NUM_CONV": 0,
    "MODEL.ROI_BOX_HEAD.CONV_DIM": 256,
    "MODEL.ROI_BOX_HEAD.NORM": "",
    "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG": False,
    "MODEL.ROI_BOX_HEAD.TRAIN_ON_PRED_BOXES": False,
    "MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS": [
        [10.0, 10.0, 5.0, 5.0],
        [20.0, 20.0, 10.0, 10.0],
        [30.0, 30.0, 15.0, 15.0],
    ],
    "MODEL.ROI_BOX_CASCADE_HEAD.IOUS": [0.5, 0.6, 0.7],
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_MASK_HEAD.NUM_CONV": 0,
    "MODEL.ROI_MASK_HEAD.CONV_DIM": 256,
    "MODEL.ROI_MASK_HEAD.NORM": "",
    "MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK": False,
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_DIMS": [512] * 8,
    "MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE": 1,
    "MODEL.ROI_KEYPOINT_HEAD.NORMALIZE_LOSS_BY_VISIBLE_KEYPOINTS": True,
    "MODEL.ROI_KEYPOINT_HEAD.LOSS_WEIGHT": 1.0,
    "MODEL.RETINANET.NUM_CONVS": 4,
    "MODEL.RETINANET.IOU_THRESHOLDS": [0.4, 0.5],
    "MODEL.RETINANET.PRIOR_PROB": 0.01,
    "MODEL.RETINANET.SCORE_THRESH_TEST": 0.05,
    "MODEL.RETINANET.TOPK_CANDIDATES_TEST": 1000,
    "MODEL.RETINANET.NMS_THRESH_TEST": 0.5,
    "MODEL.RETINANET.FOCAL_LOSS_GAMMA": 2.0,
    "MODEL.RETINANET.FOCAL_LOSS_ALPHA": 0.25,
    "MODEL.RETINANET.SMOOTH_L1_LOSS_BETA": 0.1,
    "MODEL.RETINANET.BBOX_REG_LOSS_TYPE": "smooth_l1",
    "MODEL.RETINANET.BBOX_REG_WEIGHTS": [1.0, 1.0, 1.0, 1.0],
    "MODEL.RETINANET.NORM": "",
    "MODEL.RESNETS.DEPTH": 50,
    "MODEL.RESNETS.NUM_GROUPS": 1,
    "MODEL.RESNETS.NORM": "FrozenBN",
    "MODEL.RESNETS.WIDTH_PER_GROUP": 64,
    "MODEL.RESNETS.STRIDE_IN_1X1": True,
    "MODEL.RESNETS.RES5_DILATION": 1,
    "MODEL.RESNETS.DEFORM_ON_PER_STAGE": [False, False, False, False],
    "INPUT.MIN_SIZE_TRAIN": [800],
    "INPUT.MIN_SIZE_TRAIN_SAMPLING": "choice",
    "INPUT.MAX_SIZE_TRAIN": 1333,
    "INPUT.MIN_SIZE_TEST": 800,
    "INPUT.MAX_SIZE_TEST": 1333,
    "INPUT.RANDOM_FLIP": "horizontal",
    "INPUT.CROP.ENABLED": False,
    "INPUT.CROP.TYPE": "relative_range",
    "INPUT.CROP.SIZE": [0.9, 0.9],
    "INPUT.FORMAT": "BGR",
    "DATASETS.TRAIN": [],
    "DATASETS.TEST": [],
    "DATALOADER.NUM_WORKERS": 4,
    "DATALOADER.ASPECT_RATIO_GROUPING": True,
    "DATALOADER.SAMPLER_TRAIN": "TrainingSampler",
    "DATALOADER.REPEAT_THRESHOLD": 0.0,
    "DATALOADER.REPEAT_SQRT": True,
    "DATALOADER.RANDOM_SUBSET_RATIO": 1.0,
    "DATALOADER.FILTER_EMPTY_ANNOTATIONS": True,
    "SOLVER.LR_SCHEDULER_NAME": "WarmupMultiStepLR",
    "SOLVER.MAX_ITER": 40000,
    "SOLVER.BASE_LR": 0.001,
    "SOLVER.BASE_LR_END": 0.0,
    "SOLVER.MOMENTUM": 0.9,
    "SOLVER.NESTEROV": False,
    "SOLVER.WEIGHT_DECAY": 0.0001,
    "SOLVER.WEIGHT_DECAY_NORM": 0.0,
    "SOLVER.WEIGHT_DECAY_BIAS": None,
    "SOLVER.BIAS_LR_FACTOR": 1.0,
    "SOLVER.GAMMA": 0.1,
    "SOLVER.STEPS": [30000],
    "SOLVER.WARMUP_FACTOR": 0.001,
    "SOLVER.WARMUP_ITERS": 1000,
    "SOLVER.WARMUP_METHOD": "linear",
    "SOLVER.RESCALE_INTERVAL": False,
    "SOLVER.CHECKPOINT_PERIOD": 5000,
    "SOLVER.IMS_PER_BATCH": 16,
    "SOLVER.REFERENCE_WORLD_SIZE": 0,
    "SOLVER.CLIP_GRADIENTS.ENABLED": False,
    "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": "value",
    "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": 1.0,
    "SOLVER.CLIP_GRADIENTS.NORM_TYPE": 2.0,
    "SOLVER.AMP.ENABLED": False,
    "TEST.EVAL_PERIOD": 0,
    "TEST.EXPECTED_RESULTS": [],
    "TEST.KEYPOINT_OKS_SIGMAS": [],
    "TEST.DETECTIONS_PER_IMAGE": 100,
    "TEST.AUG.ENABLED": False,
    "TEST.AUG.MIN_SIZES": [400, 500, 600, 700, 800, 900, 1000, 1100, 1200],
    "TEST.AUG.FLIP": True,
    "TEST.PRECISE_BN.ENABLED": False,
    "TEST.PRECISE_BN.NUM_ITER": 200,
    "SEED": -1,
    "CUDNN_BENCHMARK": False,
}
"""detectron2's defaults, of the keys that are read here, and of a few whose other values are told."""

REASONS = {
    "VERSION": "of detectron2's own keys",
    "MODEL.DEVICE": "train.device; auto takes a GPU where there is one",
    "MODEL.ROI_HEADS.NUM_CLASSES": "follows from the data",
    "MODEL.RETINANET.NUM_CLASSES": "follows from the data",
    "MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS": "follows from the data",
    "MODEL.ROI_HEADS.IN_FEATURES": "pooled from the neck's maps P2 to P5: task.detector.pooling.maps",
    "MODEL.RPN.IN_FEATURES": "all maps of the neck",
    "MODEL.RETINANET.IN_FEATURES": "all maps of the neck",
    "MODEL.FPN.IN_FEATURES": "the neck knows which maps it takes",
    "MODEL.RESNETS.OUT_FEATURES": "the neck knows which maps it takes",
    "MODEL.RPN.IOU_LABELS": "background, nothing and foreground, as here",
    "MODEL.ROI_HEADS.IOU_LABELS": "background and foreground, as here",
    "MODEL.RETINANET.IOU_LABELS": "background, nothing and foreground, as here",
    "MODEL.ROI_BOX_HEAD.NAME": "the detector has its box head",
    "MODEL.ROI_MASK_HEAD.NAME": "the detector has its mask head",
    "MODEL.ROI_KEYPOINT_HEAD.NAME": "the detector has its keypoint head",
    "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": "task.detector.pooling.samples is for all heads",
    "MODEL.ROI_MASK_HEAD.POOLER_TYPE": "task.detector.pooling.aligned is for all heads",
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO": "task.detector.pooling.samples is for all heads",
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_TYPE": "task.detector.pooling.aligned is for all heads",
    "MODEL.RESNETS.RES2_OUT_CHANNELS": "follows from the depth",
    "MODEL.RESNETS.STEM_OUT_CHANNELS": "follows from the backbone",
    "MODEL.RESNETS.DEFORM_MODULATED": "there are no deformable convolutions here",
    "MODEL.RESNETS.DEFORM_NUM_GROUPS": "there are no deformable convolutions here",
    "MODEL.SEM_SEG_HEAD": "there is no semantic segmentation here",
    "MODEL.PANOPTIC_FPN": "there is no panoptic segmentation here",
    "MODEL.LOAD_PROPOSALS": "proposals are computed here",
    "DATASETS.PROPOSAL_FILES_TRAIN": "proposals are computed here",
    "DATASETS.PROPOSAL_FILES_TEST": "proposals are computed here",
    "INPUT.MASK_FORMAT": "masks are read in either form",
    "TEST.AUG.MAX_SIZE": "sizes of task.views follow those of the transforms",
    "OUTPUT_DIR": "--out",
    "VIS_PERIOD": "opabinia predict RUN --split val",
    "GLOBAL": "nothing reads it",
}

RESNETS = {
    **{(depth, 1, 64): f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    (50, 32, 4): "resnext50_32x4d",
    (101, 32, 4): "resnext101_32x4d",
    (101, 32, 8): "resnext101_32x8d",
    (101, 64, 4): "resnext101_64x4d",
}
"""timm's names, by depth, groups and width of a group."""

BACKBONES = {"build_resnet_fpn_backbone": "fpn", "build_retinanet_resnet_fpn_backbone": "fpn_p3_p7"}
NORMS = {"": "none", "GN": "group", "BN": "batch", "SyncBN": "batch", "nnSyncBN": "batch", "naiveSyncBN": "batch"}
LOSSES = {name: name for name in ("smooth_l1", "giou", "diou", "ciou")}
METRICS = {"bbox": "", "segm": "mask_", "keypoints": "keypoint_"}

_LEVELS = 5


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a config of detectron2.

    Args:
        file: its YAML.
        overrides: ``SOLVER.BASE_LR=0.01``.

    Raises:
        ConfigError: it cannot be read, is of a network that is not here, or has values that cannot be taken over.
    """
    if file.suffix == ".py":
        raise ConfigError(Problem(str(file), "", f"is code, which is not run here; {LAZY}"))
    tree = yacs.read(file, overrides)
    recipe = Recipe(Foreign("detectron2", str(file), dict(leaves(tree)), DEFAULTS, REASONS))
    if any(path.endswith("._target_") for path, _ in leaves(tree)):
        raise ConfigError(Problem(str(file), "model", "is of the kind of LazyConfig, with parts of detectron2's code"))
    dense = _architecture(recipe)
    _pixels(recipe)
    _backbone(recipe, dense)
    recipe.take_all(_retinanet() if dense else _regions(recipe))
    _sizes(recipe, dense)
    _data(recipe)
    _training(recipe)
    _evaluation(recipe)
    _unusual(recipe)
    recipe.finish()
    return recipe


LAZY = (
    "its parts are Python objects. Recipes for common ones are packaged (opabinia config list); detectron2 itself "
    "writes a run's config as YAML (LazyConfig.save), which tells its numbers to a person"
)


# --- the network ------------------------------------------------------------------------------------------------------


def _architecture(recipe: Recipe) -> bool:
    """The detector and its neck; whether it is RetinaNet."""
    foreign = recipe.foreign
    name, neck = foreign("MODEL.META_ARCHITECTURE"), foreign("MODEL.BACKBONE.NAME")
    if name not in ("GeneralizedRCNN", "RetinaNet"):
        raise foreign.problem(
            "MODEL.META_ARCHITECTURE", f"{show(name)} is not here", "GeneralizedRCNN and RetinaNet are"
        )
    if neck not in BACKBONES:
        raise foreign.problem(
            "MODEL.BACKBONE.NAME",
            f"{show(neck)} is not here, and heads without a pyramid (C4, DC5) are not",
            f"taken over: {', '.join(BACKBONES)}",
        )
    dense: bool = name == "RetinaNet"
    recipe.put("task.name", "detection")
    recipe.put("task.backbone", {})
    detector = "retinanet" if dense else _regional(recipe)
    recipe.put("task.detector.name", detector, "MODEL.META_ARCHITECTURE")
    recipe.put("task.detector.neck.name", BACKBONES[neck], "MODEL.BACKBONE.NAME")
    recipe.take(Rule("MODEL.FPN.OUT_CHANNELS", "task.detector.neck.channels"))
    recipe.take(Rule("MODEL.FPN.NORM", "task.detector.neck.norm", one_of(NORMS)))
    return dense


def _regional(recipe: Recipe) -> str:
    """The R-CNN."""
    foreign = recipe.foreign
    masks, keypoints = foreign("MODEL.MASK_ON"), foreign("MODEL.KEYPOINT_ON")
    heads = foreign("MODEL.ROI_HEADS.NAME")
    if masks and keypoints:
        raise foreign.problem("MODEL.KEYPOINT_ON", "masks and keypoints in one detector are not here")
    if heads == "CascadeROIHeads":
        if keypoints:
            raise foreign.problem("MODEL.KEYPOINT_ON", "a cascade with keypoints is not here")
        return "cascade_rcnn"
    if heads != "StandardROIHeads":
        known = "StandardROIHeads and CascadeROIHeads are"
        raise foreign.problem("MODEL.ROI_HEADS.NAME", f"{show(heads)} is not here", known)
    return "mask_rcnn" if masks else "keypoint_rcnn" if keypoints else "faster_rcnn"


def _pixels(recipe: Recipe) -> None:
    order = recipe.foreign("INPUT.FORMAT")
    if order not in ("BGR", "RGB"):
        raise recipe.foreign.problem("INPUT.FORMAT", f"{show(order)} is not here", "BGR and RGB are")
    turn = -1 if order == "BGR" else 1
    recipe.take(Rule("MODEL.PIXEL_MEAN", "task.mean", lambda values: of_one(values)[::turn]))
    recipe.take(Rule("MODEL.PIXEL_STD", "task.std", lambda values: of_one(values)[::turn]))
    if order == "BGR":
        recipe.note(
            "pictures are RGB here, so task.mean and task.std are turned; init turns the first convolution of weights "
            "of detectron2, init.colours says otherwise"
        )


def _backbone(recipe: Recipe, dense: bool) -> None:
    foreign = recipe.foreign
    kind = [foreign(f"MODEL.RESNETS.{name}") for name in ("DEPTH", "NUM_GROUPS", "WIDTH_PER_GROUP")]
    sources = ("MODEL.RESNETS.DEPTH", "MODEL.RESNETS.NUM_GROUPS", "MODEL.RESNETS.WIDTH_PER_GROUP")
    if tuple(kind) not in RESNETS:
        known = ", ".join(sorted(set(RESNETS.values())))
        raise foreign.problem("MODEL.RESNETS.DEPTH", f"no ResNet here has depth, groups and width {show(kind)}", known)
    model, norm = RESNETS[kind[0], kind[1], kind[2]], foreign("MODEL.RESNETS.NORM")
    plain = model.startswith("resnet")
    backbone: dict[str, Any] = {"name": "resnet" if plain else "timm", "model": model}
    if plain:
        backbone |= {"last_stride": 2, "stride_in_1x1": foreign("MODEL.RESNETS.STRIDE_IN_1X1")}
    elif foreign("MODEL.RESNETS.STRIDE_IN_1X1"):
        recipe.leave("MODEL.RESNETS.STRIDE_IN_1X1", "ResNeXts stride in their 3 x 3 convolutions here")
    if norm == "GN" and plain:
        backbone["norm"] = "group"
    recipe.put("task.backbone", backbone, *sources, "MODEL.RESNETS.STRIDE_IN_1X1", "MODEL.RESNETS.NORM")
    recipe.take(Rule("MODEL.BACKBONE.FREEZE_AT", "task.freeze_stages"))
    recipe.put("task.freeze_norms", norm == "FrozenBN", "MODEL.RESNETS.NORM")
    if norm not in ("FrozenBN", "BN", "SyncBN", "nnSyncBN") and not (norm == "GN" and plain):
        recipe.leave("MODEL.RESNETS.NORM", "not with this backbone; batch norms are in its place")
    _weights(recipe)


def _weights(recipe: Recipe) -> None:
    if weights := recipe.foreign("MODEL.WEIGHTS"):
        name = weights.rsplit("/", 1)[-1]
        file = recipe.variable("weights", name if "://" in weights else weights, "MODEL.WEIGHTS")
        recipe.put("init.weights", file)
        if "://" in weights:
            recipe.note(f"nothing is downloaded: fetch {weights}, and say in vars.weights where it is")


def _regions(recipe: Recipe) -> list[Rule]:
    """Of an R-CNN."""
    foreign = recipe.foreign
    cascade = foreign("MODEL.ROI_HEADS.NAME") == "CascadeROIHeads"
    stages = "MODEL.ROI_BOX_CASCADE_HEAD"
    rpn, proposals = "MODEL.RPN", "task.detector.proposals"
    heads, head, box = "MODEL.ROI_HEADS", "MODEL.ROI_BOX_HEAD", "task.detector.box"
    rules = [
        Rule(f"{rpn}.IOU_THRESHOLDS", f"{proposals}.background", first),
        Rule(f"{rpn}.IOU_THRESHOLDS", f"{proposals}.foreground", _second),
        Rule(f"{rpn}.BATCH_SIZE_PER_IMAGE", f"{proposals}.samples"),
        Rule(f"{rpn}.POSITIVE_FRACTION", f"{proposals}.positive"),
        Rule(f"{rpn}.BBOX_REG_LOSS_TYPE", f"{proposals}.loss", one_of(LOSSES)),
        Rule(f"{rpn}.SMOOTH_L1_BETA", f"{proposals}.beta"),
        Rule(f"{rpn}.PRE_NMS_TOPK_TRAIN", f"{proposals}.before_training"),
        Rule(f"{rpn}.PRE_NMS_TOPK_TEST", f"{proposals}.before"),
        Rule(f"{rpn}.POST_NMS_TOPK_TRAIN", f"{proposals}.after_training"),
        Rule(f"{rpn}.POST_NMS_TOPK_TEST", f"{proposals}.after"),
        Rule(f"{rpn}.NMS_THRESH", f"{proposals}.nms"),
        Rule(f"{rpn}.CONV_DIMS", f"{proposals}.convolutions", len),
        Rule("MODEL.PROPOSAL_GENERATOR.MIN_SIZE", f"{proposals}.smallest"),
        Rule(f"{head}.POOLER_SAMPLING_RATIO", "task.detector.pooling.samples"),
        Rule(f"{head}.POOLER_TYPE", "task.detector.pooling.aligned", one_of({"ROIAlignV2": True, "ROIAlign": False})),
        Rule(f"{head}.POOLER_RESOLUTION", f"{box}.resolution"),
        Rule(f"{head}.NUM_CONV", f"{box}.convolutions"),
        Rule(f"{head}.NORM", f"{box}.norm", one_of(NORMS)),
        Rule(f"{head}.NUM_FC", f"{box}.layers"),
        Rule(f"{head}.FC_DIM", f"{box}.width"),
        Rule(f"{head}.CLS_AGNOSTIC_BBOX_REG", f"{box}.class_agnostic"),
        Rule(f"{heads}.BATCH_SIZE_PER_IMAGE", f"{box}.samples"),
        Rule(f"{heads}.POSITIVE_FRACTION", f"{box}.positive"),
        Rule(f"{stages}.IOUS" if cascade else f"{heads}.IOU_THRESHOLDS", f"{box}.foreground", first),
        Rule(f"{stages}.BBOX_REG_WEIGHTS", f"{box}.weights", first)
        if cascade
        else Rule(f"{head}.BBOX_REG_WEIGHTS", f"{box}.weights"),
        Rule(f"{head}.BBOX_REG_LOSS_TYPE", f"{box}.loss", one_of(LOSSES)),
        Rule(f"{head}.SMOOTH_L1_BETA", f"{box}.beta"),
        Rule(f"{heads}.SCORE_THRESH_TEST", f"{box}.threshold"),
        Rule(f"{heads}.NMS_THRESH_TEST", f"{box}.nms"),
        Rule("TEST.DETECTIONS_PER_IMAGE", f"{box}.most"),
    ]
    if cascade:
        rules += [
            Rule(f"{stages}.IOUS", "task.detector.later_overlaps", lambda values: values[1:]),
            Rule(f"{stages}.BBOX_REG_WEIGHTS", "task.detector.later_weights", lambda values: values[1:]),
        ]
    if foreign("MODEL.MASK_ON"):
        rules += _masks()
    return rules + (_keypoints() if foreign("MODEL.KEYPOINT_ON") else [])


def _masks() -> list[Rule]:
    head, ours = "MODEL.ROI_MASK_HEAD", "task.detector.mask"
    return [
        Rule(f"{head}.POOLER_RESOLUTION", f"{ours}.resolution"),
        Rule(f"{head}.NUM_CONV", f"{ours}.convolutions"),
        Rule(f"{head}.CONV_DIM", f"{ours}.channels"),
        Rule(f"{head}.NORM", f"{ours}.norm", one_of(NORMS)),
    ]


def _keypoints() -> list[Rule]:
    head, ours = "MODEL.ROI_KEYPOINT_HEAD", "task.detector.keypoint"
    return [
        Rule(f"{head}.POOLER_RESOLUTION", f"{ours}.resolution"),
        Rule(f"{head}.CONV_DIMS", f"{ours}.convolutions", len),
        Rule(f"{head}.CONV_DIMS", f"{ours}.channels", _all_the_same),
    ]


def _retinanet() -> list[Rule]:
    theirs, ours = "MODEL.RETINANET", "task.detector"
    return [
        Rule("MODEL.ANCHOR_GENERATOR.OFFSET", f"{ours}.offset"),
        Rule(f"{theirs}.NORM", f"{ours}.norm", one_of({"": "none", "GN": "group"})),
        Rule(f"{theirs}.PRIOR_PROB", f"{ours}.prior"),
        Rule(f"{theirs}.IOU_THRESHOLDS", f"{ours}.background", first),
        Rule(f"{theirs}.IOU_THRESHOLDS", f"{ours}.foreground", _second),
        Rule(f"{theirs}.FOCAL_LOSS_ALPHA", f"{ours}.alpha"),
        Rule(f"{theirs}.FOCAL_LOSS_GAMMA", f"{ours}.gamma"),
        Rule(f"{theirs}.BBOX_REG_LOSS_TYPE", f"{ours}.loss", one_of(LOSSES)),
        Rule(f"{theirs}.SMOOTH_L1_LOSS_BETA", f"{ours}.beta"),
        Rule(f"{theirs}.SCORE_THRESH_TEST", f"{ours}.threshold"),
        Rule(f"{theirs}.NMS_THRESH_TEST", f"{ours}.nms"),
        Rule(f"{theirs}.TOPK_CANDIDATES_TEST", f"{ours}.candidates"),
        Rule("TEST.DETECTIONS_PER_IMAGE", f"{ours}.most"),
    ]


def _second(values: Any) -> Any:
    if len(values) != 2:
        raise ValueError(f"{show(values)}: two numbers are needed")
    return values[1]


def _all_the_same(values: Any) -> Any:
    if not values or any(one != values[0] for one in values):
        raise ValueError(f"{show(values)}: all layers have the same width here")
    return values[0]


def _sizes(recipe: Recipe, dense: bool) -> None:
    """Anchors."""
    ours = "task.detector" if dense else "task.detector.proposals"
    theirs = "MODEL.ANCHOR_GENERATOR"
    if dense:
        recipe.take(Rule(f"{theirs}.SIZES", f"{ours}.scales", lambda levels: len(first(levels))))
        recipe.take(Rule(f"{theirs}.SIZES", f"{ours}.anchor_sizes", _octaves))
    else:
        recipe.take(Rule(f"{theirs}.SIZES", f"{ours}.anchor_sizes", _one_each))
    recipe.take(Rule(f"{theirs}.ASPECT_RATIOS", f"{ours}.ratios", lambda levels: _all_the_same(levels)))


def _one_each(levels: Any) -> list[Any]:
    if len(levels) != _LEVELS or any(not isinstance(sizes, list) or len(sizes) != 1 for sizes in levels):
        raise ValueError(f"{show(levels)}: one size for each of the {_LEVELS} maps is needed")
    return [sizes[0] for sizes in levels]


def _octaves(levels: Any) -> list[Any]:
    """The first size of each map, where the others divide the octave above it."""
    for sizes in levels:
        steps = len(sizes)
        expected = [sizes[0] * 2 ** (number / steps) for number in range(steps)]
        wrong = any(abs(size - right) > 1e-3 * right for size, right in zip(sizes, expected, strict=True))
        if not sizes or len(levels) != _LEVELS or wrong:
            raise ValueError(f"{show(levels)}: for each of {_LEVELS} maps sizes that divide an octave are needed")
    return [sizes[0] for sizes in levels]


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe) -> None:
    foreign = recipe.foreign
    training = [_source(recipe, name, "train") for name in foreign("DATASETS.TRAIN")]
    tests = [_source(recipe, name, "val") for name in foreign("DATASETS.TEST")]
    if not training:
        training = [_own(recipe, "train")]
    if not tests:
        tests = [_own(recipe, "val")]
    if foreign("DATALOADER.FILTER_EMPTY_ANNOTATIONS"):
        training = [{**source, "empty": "drop"} for source in training]
    if foreign("MODEL.KEYPOINT_ON"):
        least = foreign("MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE")
        training = [{**source, "min_keypoints": least} for source in training]
    source = training[0] if len(training) == 1 else {"name": "joined", "sources": training}
    recipe.put("data.train.source", source, "DATASETS.TRAIN", "DATALOADER.FILTER_EMPTY_ANNOTATIONS")
    recipe.put("data.train.transforms", _augmentations(recipe), "INPUT.MIN_SIZE_TRAIN", "INPUT.RANDOM_FLIP")
    looking = _resized(recipe, "TEST")
    sets = [{"source": source, "transforms": looking} for source in tests]
    if len(sets) > 1:
        sets = [{"prefix": f"val{number}", **one} for number, one in enumerate(sets)]
    recipe.put("data.val", sets[0] if len(sets) == 1 else sets, "DATASETS.TEST", "INPUT.MIN_SIZE_TEST")
    _sampler(recipe)
    recipe.take(Rule("SOLVER.IMS_PER_BATCH", "data.batch_size"))
    recipe.take(Rule("DATALOADER.NUM_WORKERS", "data.workers"))


def _source(recipe: Recipe, name: Any, split: str) -> dict[str, Any]:
    """A set that detectron2 knows by name; one of which nothing is known but the name is to be filled in."""
    found = re.fullmatch(r"(keypoints_)?coco_(2014|2017)_(train|val|valminusminival|minival)(_100)?", str(name))
    if found:
        points, year, part, few = found.groups()
        pictures = part if part in ("train", "val") else "val"
        file = f"{'person_keypoints' if points else 'instances'}_{part}{year}{few or ''}.json"
        root = recipe.variable("root", "path/to/coco")
        return _coco(recipe, Reference(f"{root}/{pictures}{year}"), Reference(f"{root}/annotations/{file}"))
    if found := re.fullmatch(r"lvis_(v0\.5|v1)_(train|val)", str(name)):
        root, lists = recipe.variable("root", "path/to/coco"), recipe.variable("lvis", "path/to/lvis")
        pictures = root if found[1] == "v1" else Reference(f"{root}/{found[2]}2017")
        recipe.put("task.evaluator", "lvis")
        return _coco(recipe, pictures, Reference(f"{lists}/lvis_{found[1]}_{found[2]}.json"))
    if found := re.fullmatch(r"voc_(2007|2012)_(train|val|trainval|test)", str(name)):
        folder = recipe.variable(f"voc{found[1]}", f"path/to/VOC{found[1]}")
        recipe.put("task.evaluator", {"name": "voc", "year": int(found[1])})
        return {"name": "voc", "root": folder, "split": found[2]}
    recipe.note(f"what {show(name)} is stands in code: say in vars where its pictures and its file are")
    return _own(recipe, split)


def _own(recipe: Recipe, split: str) -> dict[str, Any]:
    pictures = recipe.variable(f"{split}_pictures", f"path/to/{split}")
    return _coco(recipe, pictures, recipe.variable(f"{split}_file", f"path/to/instances_{split}.json"))


def _coco(recipe: Recipe, root: Reference, file: Reference) -> dict[str, Any]:
    kinds = {"masks": recipe.foreign("MODEL.MASK_ON"), "keypoints": recipe.foreign("MODEL.KEYPOINT_ON")}
    return {
        "name": "coco",
        "root": root,
        "file": file,
        **{kind: True for kind, on in kinds.items() if on},
        "broken": "clip",
    }


def _augmentations(recipe: Recipe) -> list[dict[str, Any]]:
    foreign = recipe.foreign
    steps = []
    if foreign("INPUT.CROP.ENABLED"):
        steps.append({"name": "random_crop", "kind": foreign("INPUT.CROP.TYPE"), "size": foreign("INPUT.CROP.SIZE")})
    steps += _resized(recipe, "TRAIN")
    flip = foreign("INPUT.RANDOM_FLIP")
    flips = {"horizontal": "RandomHorizontalFlip", "vertical": "RandomVerticalFlip", "none": None}
    if flip not in flips:
        raise foreign.problem("INPUT.RANDOM_FLIP", f"{show(flip)} is no way to flip", ", ".join(flips))
    return steps + ([{"name": flips[flip]}] if flips[flip] else [])


def _resized(recipe: Recipe, split: str) -> list[dict[str, Any]]:
    foreign = recipe.foreign
    short, longest = foreign(f"INPUT.MIN_SIZE_{split}"), foreign(f"INPUT.MAX_SIZE_{split}")
    if not short:
        return []
    step = {"name": "resize_shortest", "short": short[0] if isinstance(short, list) and len(short) == 1 else short}
    if split == "TRAIN" and foreign("INPUT.MIN_SIZE_TRAIN_SAMPLING") != "choice":
        step["sampling"] = foreign("INPUT.MIN_SIZE_TRAIN_SAMPLING")
    return [{**step, "longest": longest}]


def _sampler(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, inner = foreign("DATALOADER.SAMPLER_TRAIN"), None
    if name == "RepeatFactorTrainingSampler":
        threshold, root = foreign("DATALOADER.REPEAT_THRESHOLD"), foreign("DATALOADER.REPEAT_SQRT")
        inner = {"name": "repeat_factor", "threshold": threshold, "sqrt": root}
    elif name == "RandomSubsetTrainingSampler":
        inner = {"name": "subset", "share": foreign("DATALOADER.RANDOM_SUBSET_RATIO")}
    elif name != "TrainingSampler":
        recipe.leave("DATALOADER.SAMPLER_TRAIN", "see opabinia config list sampler")
    if foreign("DATALOADER.ASPECT_RATIO_GROUPING"):
        inner = {"name": "wide_or_tall", **({"sampler": inner} if inner else {})}
    if inner:
        recipe.put("data.sampler", inner, "DATALOADER.ASPECT_RATIO_GROUPING", "DATALOADER.SAMPLER_TRAIN")


# --- training ---------------------------------------------------------------------------------------------------------


def _training(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.put("optimizer.name", "sgd")
    recipe.take_all(
        [
            Rule("SOLVER.BASE_LR", "optimizer.lr"),
            Rule("SOLVER.MOMENTUM", "optimizer.momentum"),
            Rule("SOLVER.NESTEROV", "optimizer.nesterov"),
            Rule("SOLVER.WEIGHT_DECAY", "optimizer.weight_decay"),
            Rule("SOLVER.MAX_ITER", "train.length", lasting("it")),
            Rule("SOLVER.CHECKPOINT_PERIOD", "checkpoint.every", lasting("it")),
        ]
    )
    _groups(recipe)
    _schedule(recipe)
    if foreign("SOLVER.AMP.ENABLED"):
        recipe.put("train.precision", "fp16", "SOLVER.AMP.ENABLED")
    if "SyncBN" in foreign("MODEL.RESNETS.NORM") or "SyncBN" in foreign("MODEL.FPN.NORM"):
        recipe.put("train.sync_batch_norm", True, "MODEL.RESNETS.NORM", "MODEL.FPN.NORM")
    if foreign("CUDNN_BENCHMARK"):
        recipe.put("train.cudnn_benchmark", True, "CUDNN_BENCHMARK")
    if cards := foreign("SOLVER.REFERENCE_WORLD_SIZE"):
        recipe.put("train.tuned_for", cards, "SOLVER.REFERENCE_WORLD_SIZE")
    if clipped := clipping(recipe):
        recipe.put("train.step", clipped, "SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "SOLVER.CLIP_GRADIENTS.CLIP_VALUE")
    if foreign("SEED") >= 0:
        recipe.put("seed", foreign("SEED"), "SEED")


def _groups(recipe: Recipe) -> None:
    """Norms have a weight decay of their own, where there are norms that learn; biases, where it is said."""
    foreign = recipe.foreign
    learns = foreign("MODEL.RESNETS.NORM") != "FrozenBN" or bool(foreign("MODEL.FPN.NORM"))
    rules: list[dict[str, Any]] = []
    if learns and foreign("SOLVER.WEIGHT_DECAY_NORM") != foreign("SOLVER.WEIGHT_DECAY"):
        rules.append({"kind": "norm", "weight_decay": foreign("SOLVER.WEIGHT_DECAY_NORM")})
    factor, decay = foreign("SOLVER.BIAS_LR_FACTOR"), foreign("SOLVER.WEIGHT_DECAY_BIAS")
    if factor != 1 or decay is not None:
        bias = {"kind": "bias", "lr_factor": factor}
        rules.append(bias if decay is None else {**bias, "weight_decay": decay})
    if rules:
        recipe.put(
            "groups.rules", rules, "SOLVER.WEIGHT_DECAY_NORM", "SOLVER.BIAS_LR_FACTOR", "SOLVER.WEIGHT_DECAY_BIAS"
        )


def _schedule(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("SOLVER.LR_SCHEDULER_NAME")
    warmup, factor = foreign("SOLVER.WARMUP_ITERS"), foreign("SOLVER.WARMUP_FACTOR")
    if name == "WarmupMultiStepLR":
        end = foreign("SOLVER.MAX_ITER")
        steps = [duration(step, "it") for step in foreign("SOLVER.STEPS") if step < end]
        recipe.put("schedule", {"name": "multi_step", "milestones": steps}, "SOLVER.STEPS")
        recipe.take(Rule("SOLVER.GAMMA", "schedule.gamma"))
        if len(steps) < len(foreign("SOLVER.STEPS")):
            recipe.note("SOLVER.STEPS: what comes when the training is over is left out")
    elif name == "WarmupCosineLR":
        end = recipe.share("SOLVER.BASE_LR_END", "SOLVER.BASE_LR")
        recipe.put("schedule", {"name": "cosine", "end": end}, "SOLVER.LR_SCHEDULER_NAME", "SOLVER.BASE_LR_END")
    else:
        known = "WarmupMultiStepLR and WarmupCosineLR are"
        raise foreign.problem("SOLVER.LR_SCHEDULER_NAME", f"{show(name)} is not taken over", known)
    recipe.put("schedule.warmup", duration(warmup, "it"), "SOLVER.WARMUP_ITERS")
    recipe.put("schedule.warmup_factor", factor, "SOLVER.WARMUP_FACTOR")
    modes = {"linear": "linear", "constant": "constant"}
    recipe.take(Rule("SOLVER.WARMUP_METHOD", "schedule.warmup_mode", one_of(modes)))
    if not foreign("SOLVER.RESCALE_INTERVAL"):
        recipe.put("schedule.rule", "sliced", "SOLVER.RESCALE_INTERVAL")


def clipping(recipe: Recipe) -> dict[str, Any]:
    """The step that clips gradients; nothing where they are not. FastReID's keys are the same."""
    foreign = recipe.foreign
    section = "SOLVER.CLIP_GRADIENTS"
    if not foreign(f"{section}.ENABLED"):
        return {}
    kind, most, power = (foreign(f"{section}.{name}") for name in ("CLIP_TYPE", "CLIP_VALUE", "NORM_TYPE"))
    if kind == "value":
        return {"name": "standard", "clip_min": -most, "clip_max": most}
    ours = {"norm": "clip_each", "full_model": "clip_norm"}
    if kind not in ours:
        raise foreign.problem(f"{section}.CLIP_TYPE", f"{show(kind)} is not here", "value, norm and full_model are")
    return {"name": "standard", ours[kind]: most, "clip_norm_type": power}


def _evaluation(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.take(Rule("TEST.EVAL_PERIOD", "evaluate.every", lasting("it")))
    if sigmas := foreign("TEST.KEYPOINT_OKS_SIGMAS"):
        recipe.put("task.evaluator", {"name": "coco", "sigmas": sigmas}, "TEST.KEYPOINT_OKS_SIGMAS")
    if foreign("TEST.AUG.ENABLED"):
        usual = foreign("INPUT.MIN_SIZE_TEST") or 800
        scales = [round(size / usual, 4) for size in foreign("TEST.AUG.MIN_SIZES")]
        views = {"scales": scales, "flip": foreign("TEST.AUG.FLIP")}
        recipe.put("task.views", views, "TEST.AUG.MIN_SIZES", "INPUT.MIN_SIZE_TEST")
    if foreign("TEST.PRECISE_BN.ENABLED"):
        every = foreign("TEST.EVAL_PERIOD") or foreign("SOLVER.MAX_ITER")
        hook = {"every": duration(every, "it"), "batches": foreign("TEST.PRECISE_BN.NUM_ITER")}
        recipe.put("hooks.precise_norm", hook, "TEST.PRECISE_BN.NUM_ITER", "TEST.EVAL_PERIOD")
    if expected := foreign("TEST.EXPECTED_RESULTS"):
        recipe.put("hooks.expected.scores", _expected(recipe, expected), "TEST.EXPECTED_RESULTS")


def _expected(recipe: Recipe, results: list[Any]) -> dict[str, list[float]]:
    """Scores in hundredths here, in percent there."""
    scores = {}
    for one in results:
        match one:
            case [
                ("bbox" | "segm" | "keypoints") as kind,
                str(metric),
                int() | float() as score,
                int() | float() as most,
            ]:
                scores[f"val/{METRICS[kind]}{metric}"] = [round(score / 100, 6), round(most / 100, 6)]
            case _:
                message = f"{show(one)}: [task, metric, score, tolerance] is needed"
                raise recipe.foreign.problem("TEST.EXPECTED_RESULTS", message)
    return scores


UNUSUAL = {
    "MODEL.FPN.FUSE_TYPE": "maps are added here",
    "MODEL.RPN.HEAD_NAME": "there is one head for proposals here",
    "MODEL.PROPOSAL_GENERATOR.NAME": "proposals come from an RPN here",
    "MODEL.ANCHOR_GENERATOR.NAME": "anchors are upright boxes here",
    "MODEL.RPN.BOUNDARY_THRESH": "anchors outside the picture are kept here",
    "MODEL.RPN.LOSS_WEIGHT": "losses have no weights here",
    "MODEL.RPN.BBOX_REG_LOSS_WEIGHT": "losses have no weights here",
    "MODEL.RPN.BBOX_REG_WEIGHTS": "offsets of proposals have no weights here",
    "MODEL.ROI_HEADS.PROPOSAL_APPEND_GT": "things are always among the proposals here",
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT": "losses have no weights here",
    "MODEL.ROI_BOX_HEAD.CONV_DIM": "convolutions of the box head are as wide as the neck here",
    "MODEL.ROI_BOX_HEAD.TRAIN_ON_PRED_BOXES": "masks are learned on proposals here",
    "MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK": "masks have a class here",
    "MODEL.ROI_KEYPOINT_HEAD.NORMALIZE_LOSS_BY_VISIBLE_KEYPOINTS": "the loss is divided by visible points here",
    "MODEL.ROI_KEYPOINT_HEAD.LOSS_WEIGHT": "losses have no weights here",
    "MODEL.RETINANET.NUM_CONVS": "there are four convolutions here",
    "MODEL.RETINANET.BBOX_REG_WEIGHTS": "offsets have no weights here",
    "MODEL.RESNETS.RES5_DILATION": "there are no dilated backbones here",
    "MODEL.RESNETS.DEFORM_ON_PER_STAGE": "there are no deformable convolutions here",
}
"""Keys that only have their default's meaning here."""


def _unusual(recipe: Recipe) -> None:
    for path, why in UNUSUAL.items():
        if path in recipe.foreign and recipe.foreign(path) != DEFAULTS[path]:
            recipe.leave(path, why)
            recipe.note(f"{path}: what is written there is not done here: {why}")
