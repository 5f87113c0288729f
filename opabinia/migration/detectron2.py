"""Conversion of detectron2's configs of RetinaNets, R-CNNs, semantic and panoptic segmentation.

For keys that a config does not set, the recipe gets detectron2's defaults (:data:`DEFAULTS`), not Opabinia's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.migration import yacs
from opabinia.migration.detectron2_segmentation import (
    NO_DETECTOR,
    convert_panoptic,
    convert_semantic,
    segmentation_source,
)
from opabinia.migration.foreign_config import ForeignConfig, leaves
from opabinia.migration.recipe import (
    Recipe,
    Reference,
    Table,
    convert_pixel_stats,
    duration,
    duration_in,
    first_item,
    lookup,
)
from opabinia.migration.tables.detectron2 import (
    DEFAULTS,
    DEPTHS,
    HEADS,
    LOSSES,
    METRICS,
    NECKS,
    NORMS,
    REASONS,
    RESNETS,
    UNSUPPORTED_VALUES,
)


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of detectron2.

    Args:
        file: the YAML file.
        overrides: changes such as ``SOLVER.BASE_LR=0.01``.

    Raises:
        ConfigError: the config cannot be read, or its model or a value is not supported.
    """
    if file.suffix == ".py":
        raise ConfigError(Problem(str(file), "", f"is Python code, which is not executed; {LAZY}"))
    tree = yacs.read(file, overrides)
    written = dict(leaves(tree))
    if any(path.endswith("._target_") for path in written):
        raise ConfigError(Problem(str(file), "model", "is a LazyConfig, which refers to detectron2's code"))
    architecture = written.get("MODEL.META_ARCHITECTURE")
    reasons = REASONS | NO_DETECTOR if architecture and architecture.value == "SemanticSegmentor" else REASONS
    recipe = Recipe(ForeignConfig("detectron2", str(file), written, DEFAULTS, reasons))
    detector = _architecture(recipe)
    _unsupported(recipe)
    convert_pixel_stats(
        recipe,
        *("INPUT.FORMAT", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"),
        weights="init reverses the input channels of detectron2's weights; init.channel_order overrides this",
    )
    _backbone(recipe)
    if detector:
        _anchors(recipe, detector)
    if detector == "retinanet":
        recipe.convert_section("MODEL.RETINANET", "task.detector", RETINANET)
        recipe.put("task.detector.loss_normalizer", "running_mean")
        recipe.convert("TEST.DETECTIONS_PER_IMAGE", "task.detector.max_detections")
    elif detector:
        _regions(recipe, detector)
    _data(recipe)
    _training(recipe)
    _evaluation(recipe)
    recipe.finish()
    return recipe


LAZY = (
    "its parts are Python objects. Recipes of common models are packaged (opabinia config list); detectron2 "
    "writes a run's config as readable YAML with LazyConfig.save"
)


# --- model ------------------------------------------------------------------------------------------------------------


def _architecture(recipe: Recipe) -> str:
    """Convert the detector's type and its neck; return its name, which is empty for semantic segmentation."""
    foreign = recipe.foreign
    name, neck = foreign("MODEL.META_ARCHITECTURE"), foreign("MODEL.BACKBONE.NAME")
    if name == "SemanticSegmentor":
        convert_semantic(recipe)
        return ""
    detectors = {"RetinaNet": "retinanet", "ProposalNetwork": "rpn"}
    if name not in ("GeneralizedRCNN", "PanopticFPN", *detectors):
        supported = f"supported: GeneralizedRCNN, PanopticFPN, SemanticSegmentor, {', '.join(detectors)}"
        raise foreign.problem("MODEL.META_ARCHITECTURE", f"{show(name)} is not supported", supported)
    if neck not in NECKS:
        raise foreign.problem("MODEL.BACKBONE.NAME", f"{show(neck)} is not supported", f"supported: {', '.join(NECKS)}")
    detector = detectors.get(name) or _rcnn_name(recipe)
    recipe.put("task.name", "detection")
    recipe.put("task.backbone", {})
    recipe.put("task.detector.name", detector, "MODEL.META_ARCHITECTURE")
    recipe.put("task.detector.neck.name", NECKS[neck], "MODEL.BACKBONE.NAME")
    if NECKS[neck] != "no_neck":
        recipe.convert("MODEL.FPN.OUT_CHANNELS", "task.detector.neck.channels")
        recipe.convert("MODEL.FPN.NORM", "task.detector.neck.norm", lookup(NORMS))
    if name == "PanopticFPN":
        convert_panoptic(recipe)
    return detector


def _rcnn_name(recipe: Recipe) -> str:
    """Return the name of the R-CNN variant."""
    foreign = recipe.foreign
    masks, keypoints = foreign("MODEL.MASK_ON"), foreign("MODEL.KEYPOINT_ON")
    heads = foreign("MODEL.ROI_HEADS.NAME")
    if masks and keypoints:
        raise foreign.problem("MODEL.KEYPOINT_ON", "masks and keypoints in one detector are not supported")
    if heads not in ("StandardROIHeads", "CascadeROIHeads", "Res5ROIHeads") or (
        keypoints and heads != "StandardROIHeads"
    ):
        supported = "supported: StandardROIHeads; CascadeROIHeads and Res5ROIHeads, without keypoints"
        raise foreign.problem("MODEL.ROI_HEADS.NAME", f"{show(heads)} is not supported", supported)
    box_head = foreign("MODEL.ROI_BOX_HEAD.NAME")
    if heads != "Res5ROIHeads" and box_head not in ("FastRCNNConvFCHead", ""):
        supported = "supported: FastRCNNConvFCHead"
        raise foreign.problem("MODEL.ROI_BOX_HEAD.NAME", f"{show(box_head)} is not supported", supported)
    if heads == "CascadeROIHeads":
        return "cascade_rcnn"
    return "mask_rcnn" if masks else "keypoint_rcnn" if keypoints else "faster_rcnn"


def _backbone(recipe: Recipe) -> None:
    foreign = recipe.foreign
    size_keys = ("MODEL.RESNETS.DEPTH", "MODEL.RESNETS.NUM_GROUPS", "MODEL.RESNETS.WIDTH_PER_GROUP")
    depth, groups, width = (foreign(key) for key in size_keys)
    if depth not in DEPTHS:
        raise foreign.problem(size_keys[0], f"{show(depth)} is not supported", f"supported: {show(list(DEPTHS))}")
    model = RESNETS.get((depth, groups, width))
    backbone: dict[str, Any] = {"name": "resnet", "model": model or f"resnet{depth}", "last_stride": 2}
    if model is None and (groups, width) != (1, 64):
        backbone["options"] = {"cardinality": groups, "base_width": width}
    if foreign("MODEL.RESNETS.RES5_DILATION") == 2:
        backbone |= {"last_stride": 1, "last_dilation": 2}
    if depth >= 50:
        backbone["stride_in_1x1"] = foreign("MODEL.RESNETS.STRIDE_IN_1X1")
    norm = foreign("MODEL.RESNETS.NORM")
    if norm == "GN":
        backbone["norm"] = "group"
    elif norm not in ("FrozenBN", "BN", "SyncBN", "nnSyncBN", "naiveSyncBN"):
        recipe.refuse("MODEL.RESNETS.NORM", f"{show(norm)} is not supported")
    if foreign("MODEL.RESNETS.RES2_OUT_CHANNELS") != (256 if depth >= 50 else 64):
        recipe.refuse("MODEL.RESNETS.RES2_OUT_CHANNELS", "other widths of ResNets are not supported")
    keys = ("MODEL.RESNETS.RES5_DILATION", "MODEL.RESNETS.STRIDE_IN_1X1", "MODEL.RESNETS.NORM")
    recipe.put("task.backbone", backbone, *size_keys, *keys)
    _deformable(recipe)
    recipe.convert("MODEL.BACKBONE.FREEZE_AT", "task.freeze_stages")
    recipe.put("task.freeze_norms", norm == "FrozenBN", "MODEL.RESNETS.NORM")
    _weights(recipe)


def _deformable(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "MODEL.RESNETS"
    stages = [number for number, deform in enumerate(foreign(f"{section}.DEFORM_ON_PER_STAGE"), 1) if deform]
    if stages:
        recipe.put("task.backbone.deformable.stages", stages, f"{section}.DEFORM_ON_PER_STAGE")
        recipe.convert(f"{section}.DEFORM_MODULATED", "task.backbone.deformable.modulated")
        recipe.convert(f"{section}.DEFORM_NUM_GROUPS", "task.backbone.deformable.groups")


def _weights(recipe: Recipe) -> None:
    if weights := recipe.foreign("MODEL.WEIGHTS"):
        name = weights.rsplit("/", 1)[-1]
        file = recipe.variable("weights", name if "://" in weights else weights, "MODEL.WEIGHTS")
        recipe.put("init.weights", file)
        if "://" in weights:
            recipe.note(f"weights are not downloaded: fetch {weights}, and set vars.weights to the file")


def _regions(recipe: Recipe, detector: str) -> None:
    """Convert proposals, pooling and heads of an R-CNN."""
    foreign = recipe.foreign
    recipe.convert_section("MODEL.RPN", "task.detector.proposals", PROPOSALS)
    recipe.convert("MODEL.PROPOSAL_GENERATOR.MIN_SIZE", "task.detector.proposals.min_size")
    if detector == "rpn":
        return
    recipe.convert("MODEL.ROI_HEADS.IN_FEATURES", "task.detector.pooling.num_levels", len)
    recipe.convert_section("MODEL.ROI_BOX_HEAD", "task.detector.pooling", POOLING)
    recipe.convert_section("MODEL", "task.detector.box", BOX)
    _class_loss(recipe)
    last_stage = foreign("MODEL.ROI_HEADS.NAME") == "Res5ROIHeads"
    if last_stage:
        recipe.put("task.detector.pooling.last_stage", True, "MODEL.ROI_HEADS.NAME")
        recipe.put("task.detector.box.num_fc", 0, "MODEL.ROI_HEADS.NAME")
    else:
        recipe.convert_section("MODEL.ROI_BOX_HEAD", "task.detector.box", BOX_LAYERS)
    recipe.convert("TEST.DETECTIONS_PER_IMAGE", "task.detector.box.max_detections")
    if detector == "cascade_rcnn":
        recipe.convert_section("MODEL", "task.detector.box", FIRST_CASCADE_STAGE)
        recipe.convert_section("MODEL.ROI_BOX_CASCADE_HEAD", "task.detector", LATER_CASCADE_STAGES)
    if foreign("MODEL.MASK_ON"):
        recipe.convert_section("MODEL.ROI_MASK_HEAD", "task.detector.mask", MASK)
        if last_stage:  # masks have the features of the boxes
            recipe.convert("MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", "task.detector.mask.resolution")
            recipe.put("task.detector.mask.sampling_ratio", None)
        else:
            _same_pooling(recipe, "MODEL.ROI_MASK_HEAD")
    if foreign("MODEL.KEYPOINT_ON"):
        _keypoints(recipe)


def _class_loss(recipe: Recipe) -> None:
    section = "MODEL.ROI_BOX_HEAD"
    federated, sigmoid = recipe.foreign(f"{section}.USE_FED_LOSS"), recipe.foreign(f"{section}.USE_SIGMOID_CE")
    loss = "federated" if federated else "sigmoid" if sigmoid else "softmax"
    recipe.put("task.detector.box.class_loss", loss, f"{section}.USE_FED_LOSS", f"{section}.USE_SIGMOID_CE")
    if federated:
        recipe.convert_section(section, "task.detector.box", FEDERATED)
        if not sigmoid:
            recipe.refuse(f"{section}.USE_FED_LOSS", "needs USE_SIGMOID_CE=True, as in detectron2")


def _keypoints(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "MODEL.ROI_KEYPOINT_HEAD"
    recipe.convert_section(section, "task.detector.keypoint", KEYPOINT)
    _same_pooling(recipe, section)
    key = f"{section}.NORMALIZE_LOSS_BY_VISIBLE_KEYPOINTS"
    if not foreign(key):
        samples = foreign("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE") * foreign("MODEL.ROI_HEADS.POSITIVE_FRACTION")
        keypoints = samples * foreign(f"{section}.NUM_KEYPOINTS")
        recipe.put("task.detector.keypoint.keypoints_per_image", keypoints, key, f"{section}.NUM_KEYPOINTS")


def _same_pooling(recipe: Recipe, section: str) -> None:
    """Refuse a head that pools in another way than the box head."""
    key = f"{section}.POOLER_TYPE"
    if recipe.foreign(key) != recipe.foreign("MODEL.ROI_BOX_HEAD.POOLER_TYPE"):
        recipe.refuse(key, "must be that of ROI_BOX_HEAD: task.detector.pooling.aligned is of all heads")


def _second_item(values: Any) -> Any:
    if len(values) != 2:
        raise ValueError(f"{show(values)}: expected two numbers")
    return values[1]


def _common_value(values: Any) -> Any:
    if not values or any(value != values[0] for value in values):
        raise ValueError(f"{show(values)}: expected one value for all layers")
    return values[0]


PROPOSALS: Table = {
    "background_iou": ("IOU_THRESHOLDS", first_item),
    "foreground_iou": ("IOU_THRESHOLDS", _second_item),
    "batch_size_per_image": "BATCH_SIZE_PER_IMAGE",
    "positive_fraction": "POSITIVE_FRACTION",
    "box_loss": ("BBOX_REG_LOSS_TYPE", lookup(LOSSES)),
    "smooth_l1_beta": "SMOOTH_L1_BETA",
    "pre_nms_topk_train": "PRE_NMS_TOPK_TRAIN",
    "pre_nms_topk_test": "PRE_NMS_TOPK_TEST",
    "post_nms_topk_train": "POST_NMS_TOPK_TRAIN",
    "post_nms_topk_test": "POST_NMS_TOPK_TEST",
    "nms_threshold": "NMS_THRESH",
    "num_convs": ("CONV_DIMS", len),
    "bbox_reg_weights": "BBOX_REG_WEIGHTS",
    "loss_weight": "LOSS_WEIGHT",
    "box_loss_weight": "BBOX_REG_LOSS_WEIGHT",
}
POOLING: Table = {
    "sampling_ratio": "POOLER_SAMPLING_RATIO",
    "aligned": ("POOLER_TYPE", lookup({"ROIAlignV2": True, "ROIAlign": False})),
}
BOX: Table = {
    "resolution": "ROI_BOX_HEAD.POOLER_RESOLUTION",
    "class_agnostic": "ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG",
    "batch_size_per_image": "ROI_HEADS.BATCH_SIZE_PER_IMAGE",
    "positive_fraction": "ROI_HEADS.POSITIVE_FRACTION",
    "foreground_iou": ("ROI_HEADS.IOU_THRESHOLDS", first_item),
    "bbox_reg_weights": "ROI_BOX_HEAD.BBOX_REG_WEIGHTS",
    "box_loss": ("ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE", lookup(LOSSES)),
    "smooth_l1_beta": "ROI_BOX_HEAD.SMOOTH_L1_BETA",
    "box_loss_weight": "ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT",
    "train_on_predictions": "ROI_BOX_HEAD.TRAIN_ON_PRED_BOXES",
    "score_threshold": "ROI_HEADS.SCORE_THRESH_TEST",
    "nms_threshold": "ROI_HEADS.NMS_THRESH_TEST",
}
FEDERATED: Table = {
    "federated_classes": "FED_LOSS_NUM_CLASSES",
    "federated_power": "FED_LOSS_FREQ_WEIGHT_POWER",
}
BOX_LAYERS: Table = {
    "num_convs": "NUM_CONV",
    "conv_dim": "CONV_DIM",
    "norm": ("NORM", lookup(NORMS)),
    "num_fc": "NUM_FC",
    "fc_dim": "FC_DIM",
}
FIRST_CASCADE_STAGE: Table = {
    "foreground_iou": ("ROI_BOX_CASCADE_HEAD.IOUS", first_item),
    "bbox_reg_weights": ("ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS", first_item),
}
LATER_CASCADE_STAGES: Table = {
    "later_ious": ("IOUS", lambda values: values[1:]),
    "later_bbox_reg_weights": ("BBOX_REG_WEIGHTS", lambda values: values[1:]),
}
MASK: Table = {
    "sampling_ratio": "POOLER_SAMPLING_RATIO",
    "resolution": "POOLER_RESOLUTION",
    "num_convs": "NUM_CONV",
    "channels": "CONV_DIM",
    "norm": ("NORM", lookup(NORMS)),
    "class_agnostic": "CLS_AGNOSTIC_MASK",
}
KEYPOINT: Table = {
    "sampling_ratio": "POOLER_SAMPLING_RATIO",
    "resolution": "POOLER_RESOLUTION",
    "num_convs": ("CONV_DIMS", len),
    "channels": ("CONV_DIMS", _common_value),
    "loss_weight": "LOSS_WEIGHT",
}
RETINANET: Table = {
    "norm": ("NORM", lookup({"": "none", "GN": "group"})),
    "prior_probability": "PRIOR_PROB",
    "background_iou": ("IOU_THRESHOLDS", first_item),
    "foreground_iou": ("IOU_THRESHOLDS", _second_item),
    "alpha": "FOCAL_LOSS_ALPHA",
    "gamma": "FOCAL_LOSS_GAMMA",
    "box_loss": ("BBOX_REG_LOSS_TYPE", lookup(LOSSES)),
    "smooth_l1_beta": "SMOOTH_L1_LOSS_BETA",
    "score_threshold": "SCORE_THRESH_TEST",
    "nms_threshold": "NMS_THRESH_TEST",
    "pre_nms_topk": "TOPK_CANDIDATES_TEST",
}
SOLVER: Table = {
    "lr": "BASE_LR",
    "momentum": "MOMENTUM",
    "nesterov": "NESTEROV",
    "weight_decay": "WEIGHT_DECAY",
}


_FEATURES = {
    "fpn": ["p2", "p3", "p4", "p5", "p6"],
    "fpn_p3_p7": ["p3", "p4", "p5", "p6", "p7"],
}
"""Names of the output levels of necks."""


def _anchors(recipe: Recipe, detector: str) -> None:
    """Convert anchors, and check the feature maps that they and the regions belong to."""
    neck = recipe.config["task"]["detector"]["neck"]["name"]
    dense, source = detector == "retinanet", "MODEL.ANCHOR_GENERATOR"
    if not dense:
        _features(recipe, detector, neck)
    section = "task.detector" if dense else "task.detector.proposals"
    levels = len(_FEATURES.get(neck, [""]))
    if dense:
        recipe.convert(f"{source}.SIZES", f"{section}.scales_per_octave", lambda sizes: len(first_item(sizes)))
    convert_sizes = _octaves if dense else _sizes_of_levels
    recipe.convert(f"{source}.SIZES", f"{section}.anchor_sizes", lambda sizes: convert_sizes(_each(sizes, levels)))
    recipe.convert(f"{source}.ASPECT_RATIOS", f"{section}.aspect_ratios", _common_value)
    recipe.convert(f"{source}.OFFSET", f"{section}.offset")


def _features(recipe: Recipe, detector: str, neck: str) -> None:
    """Refuse feature maps that the neck does not give to proposals or regions."""
    foreign = recipe.foreign
    key, region_key = "MODEL.RPN.IN_FEATURES", "MODEL.ROI_HEADS.IN_FEATURES"
    proposals, regions = foreign(key), foreign(region_key)
    has_heads = detector != "rpn"
    if neck == "no_neck":
        c4 = foreign("MODEL.ROI_HEADS.NAME") == "Res5ROIHeads" if has_heads else proposals == ["res4"]
        expected = ["res4" if c4 else "res5"]
        if not has_heads:
            recipe.put("task.detector.last_stage", not c4, key)
    else:
        expected = _FEATURES[neck]
        if has_heads and foreign("MODEL.ROI_HEADS.NAME") == "Res5ROIHeads":
            recipe.refuse("MODEL.ROI_HEADS.NAME", "'Res5ROIHeads' does not fit a feature pyramid")
    if proposals != expected:
        recipe.refuse(key, f"{show(proposals)} is not supported", f"supported with this backbone: {show(expected)}")
    if has_heads and (not regions or regions != expected[: len(regions)]):
        recipe.refuse(region_key, f"{show(regions)}: expected the first of {show(expected)}")


def _each(values: Any, levels: int) -> Any:
    """Return the values of each level; those of a single one are for all levels."""
    if not isinstance(values, list) or len(values) not in (1, levels) or not all(isinstance(v, list) for v in values):
        raise ValueError(f"{show(values)}: expected a list for each of the {levels} feature maps, or one for all")
    return values * levels if len(values) == 1 else values


def _sizes_of_levels(levels: Any) -> Any:
    return [sizes[0] for sizes in levels] if all(len(sizes) == 1 for sizes in levels) else levels


def _octaves(levels: Any) -> list[Any]:
    """Return the smallest size of each feature map; its other sizes must divide the octave above it evenly."""
    if not all(levels):
        raise ValueError(f"{show(levels)}: expected at least one size for each feature map")
    for sizes in levels:
        steps = len(sizes)
        expected = [sizes[0] * 2 ** (number / steps) for number in range(steps)]
        wrong = any(abs(size - target) > 1e-3 * target for size, target in zip(sizes, expected, strict=True))
        if wrong:
            raise ValueError(f"{show(levels)}: expected sizes that divide an octave")
    return [sizes[0] for sizes in levels]


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe) -> None:
    foreign = recipe.foreign
    train_sources = [_source(recipe, name, "train") for name in foreign("DATASETS.TRAIN")]
    val_sources = [_source(recipe, name, "val") for name in foreign("DATASETS.TEST")]
    train_sources = train_sources or [_custom_source(recipe, "train")]
    val_sources = val_sources or [_custom_source(recipe, "val")]
    if foreign("DATALOADER.FILTER_EMPTY_ANNOTATIONS"):
        train_sources = [
            {**source, "empty": "drop"} if source["name"] == "coco" else source for source in train_sources
        ]
    if foreign("MODEL.KEYPOINT_ON"):
        min_keypoints = foreign("MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE")
        train_sources = [{**source, "min_keypoints": min_keypoints} for source in train_sources]
    source = train_sources[0] if len(train_sources) == 1 else {"name": "concat", "sources": train_sources}
    recipe.put("data.train.source", source, "DATASETS.TRAIN", "DATALOADER.FILTER_EMPTY_ANNOTATIONS")
    recipe.put("data.train.transforms", _augmentations(recipe), "INPUT.MIN_SIZE_TRAIN", "INPUT.RANDOM_FLIP")
    val_transforms = _resize(recipe, "TEST")
    val_sets = [{"source": source, "transforms": val_transforms} for source in val_sources]
    if len(val_sets) > 1:
        val_sets = [{"prefix": f"val{number}", **val_set} for number, val_set in enumerate(val_sets)]
    recipe.put("data.val", val_sets[0] if len(val_sets) == 1 else val_sets, "DATASETS.TEST", "INPUT.MIN_SIZE_TEST")
    _sampler(recipe)
    recipe.convert("SOLVER.IMS_PER_BATCH", "data.batch_size")
    recipe.convert("DATALOADER.NUM_WORKERS", "data.num_workers")


def _source(recipe: Recipe, name: Any, split: str) -> dict[str, Any]:
    """Convert a dataset that detectron2 registers itself; for others, add variables that the user fills in."""
    if recipe.config["task"]["name"] != "detection":
        return segmentation_source(recipe, str(name), "DATASETS.TRAIN" if split == "train" else "DATASETS.TEST")
    match = re.fullmatch(r"(keypoints_)?coco_(2014|2017)_(train|val|valminusminival|minival)(_100)?", str(name))
    if match:
        keypoints, year, subset, suffix = match.groups()
        folder = subset if subset in ("train", "val") else "val"
        file = f"{'person_keypoints' if keypoints else 'instances'}_{subset}{year}{suffix or ''}.json"
        root = recipe.variable("root", "path/to/coco")
        return _coco(recipe, Reference(f"{root}/{folder}{year}"), Reference(f"{root}/annotations/{file}"))
    if match := re.fullmatch(r"lvis_(v0\.5|v1)_(train|val)", str(name)):
        root, annotations = recipe.variable("root", "path/to/coco"), recipe.variable("lvis", "path/to/lvis")
        images = root if match[1] == "v1" else Reference(f"{root}/{match[2]}2017")
        recipe.put("task.evaluator", "lvis")
        return _coco(recipe, images, Reference(f"{annotations}/lvis_{match[1]}_{match[2]}.json"))
    if match := re.fullmatch(r"voc_(2007|2012)_(train|val|trainval|test)", str(name)):
        folder = recipe.variable(f"voc{match[1]}", f"path/to/VOC{match[1]}")
        recipe.put("task.evaluator", {"name": "voc", "year": int(match[1])})
        return {"name": "voc", "root": folder, "split": match[2]}
    if str(name).startswith("cityscapes_fine_instance_seg"):
        recipe.note("instances of Cityscapes are evaluated by COCO's AP, which is not that of cityscapesScripts")
    recipe.note(f"the dataset {show(name)} is registered in code: set its image folder and annotation file in vars")
    return _custom_source(recipe, split)


def _custom_source(recipe: Recipe, split: str) -> dict[str, Any]:
    images = recipe.variable(f"{split}_images", f"path/to/{split}")
    return _coco(recipe, images, recipe.variable(f"{split}_file", f"path/to/instances_{split}.json"))


def _coco(recipe: Recipe, root: Reference, file: Reference) -> dict[str, Any]:
    annotations = {"masks": recipe.foreign("MODEL.MASK_ON"), "keypoints": recipe.foreign("MODEL.KEYPOINT_ON")}
    return {
        "name": "coco",
        "root": root,
        "file": file,
        **{kind: True for kind, enabled in annotations.items() if enabled},
        "broken": "clip",
    }


def _augmentations(recipe: Recipe) -> list[dict[str, Any]]:
    foreign = recipe.foreign
    steps = []
    if foreign("INPUT.CROP.ENABLED"):
        steps.append({"name": "random_crop", "kind": foreign("INPUT.CROP.TYPE"), "size": foreign("INPUT.CROP.SIZE")})
    steps += _resize(recipe, "TRAIN")
    flip = foreign("INPUT.RANDOM_FLIP")
    flips = {"horizontal": "RandomHorizontalFlip", "vertical": "RandomVerticalFlip", "none": None}
    if flip not in flips:
        raise foreign.problem("INPUT.RANDOM_FLIP", f"{show(flip)} is not supported", f"supported: {', '.join(flips)}")
    return steps + ([{"name": flips[flip]}] if flips[flip] else [])


def _resize(recipe: Recipe, split: str) -> list[dict[str, Any]]:
    foreign = recipe.foreign
    short, longest = foreign(f"INPUT.MIN_SIZE_{split}"), foreign(f"INPUT.MAX_SIZE_{split}")
    if not short:
        return []
    step = {
        "name": "resize_shortest_edge",
        "short_edge_length": short[0] if isinstance(short, list) and len(short) == 1 else short,
    }
    if split == "TRAIN" and foreign("INPUT.MIN_SIZE_TRAIN_SAMPLING") != "choice":
        step["sampling"] = foreign("INPUT.MIN_SIZE_TRAIN_SAMPLING")
    return [{**step, "max_size": longest}]


def _sampler(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, sampler = foreign("DATALOADER.SAMPLER_TRAIN"), None
    if name == "RepeatFactorTrainingSampler":
        threshold, sqrt = foreign("DATALOADER.REPEAT_THRESHOLD"), foreign("DATALOADER.REPEAT_SQRT")
        sampler = {"name": "repeat_factor", "threshold": threshold, "sqrt": sqrt}
    elif name == "RandomSubsetTrainingSampler":
        sampler = {"name": "subset", "fraction": foreign("DATALOADER.RANDOM_SUBSET_RATIO")}
    elif name != "TrainingSampler":
        supported = "supported: TrainingSampler, RepeatFactorTrainingSampler, RandomSubsetTrainingSampler"
        recipe.refuse("DATALOADER.SAMPLER_TRAIN", f"{show(name)} is not supported", supported)
    if foreign("DATALOADER.ASPECT_RATIO_GROUPING"):
        sampler = {"name": "aspect_ratio_batches", **({"sampler": sampler} if sampler else {})}
    if sampler:
        recipe.put("data.sampler", sampler, "DATALOADER.ASPECT_RATIO_GROUPING", "DATALOADER.SAMPLER_TRAIN")


# --- training ---------------------------------------------------------------------------------------------------------


def _training(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.put("optimizer.name", "sgd")
    recipe.convert_section("SOLVER", "optimizer", SOLVER)
    recipe.convert("SOLVER.MAX_ITER", "train.length", duration_in("it"))
    recipe.convert("SOLVER.CHECKPOINT_PERIOD", "checkpoint.every", duration_in("it"))
    recipe.put("checkpoint.keep", _checkpoints(recipe), "SOLVER.CHECKPOINT_PERIOD", "SOLVER.MAX_ITER")
    _groups(recipe)
    _schedule(recipe)
    if foreign("SOLVER.AMP.ENABLED"):
        recipe.put("train.precision", "fp16", "SOLVER.AMP.ENABLED")
    if synchronized := [key for key in _norm_keys(recipe) if "SyncBN" in foreign(key)]:
        recipe.put("train.sync_batch_norm", True, *synchronized)
    if foreign("CUDNN_BENCHMARK"):
        recipe.put("train.cudnn_benchmark", True, "CUDNN_BENCHMARK")
    if world_size := foreign("SOLVER.REFERENCE_WORLD_SIZE"):
        recipe.put("train.reference_world_size", world_size, "SOLVER.REFERENCE_WORLD_SIZE")
    if step := clipping(recipe):
        recipe.put("train.step", step, "SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "SOLVER.CLIP_GRADIENTS.CLIP_VALUE")
    if foreign("SEED") >= 0:
        recipe.put("seed", foreign("SEED"), "SEED")


def _checkpoints(recipe: Recipe) -> int:
    """Return the number of checkpoints of a training, all of which detectron2 keeps."""
    period, length = recipe.foreign("SOLVER.CHECKPOINT_PERIOD"), recipe.foreign("SOLVER.MAX_ITER")
    return max(1, math.ceil(length / period)) if period > 0 else 1


def _norm_keys(recipe: Recipe) -> list[str]:
    """Return the keys of the norms that the model has."""
    foreign = recipe.foreign
    task = recipe.config["task"]
    detector = task.get("detector", {})
    neck = detector.get("neck") or task["decoder"]["neck"]
    keys = {
        "MODEL.RESNETS.NORM": True,
        "MODEL.FPN.NORM": neck["name"] != "no_neck",
        "MODEL.SEM_SEG_HEAD.NORM": "decoder" in task,
        "MODEL.RETINANET.NORM": detector.get("name") == "retinanet",
        "MODEL.ROI_BOX_HEAD.NORM": detector.get("box", {}).get("num_convs", 0) > 0,
        "MODEL.ROI_MASK_HEAD.NORM": detector.get("mask", {}).get("num_convs", 0) > 0,
    }
    return [key for key, present in keys.items() if present and foreign(key)]


def _groups(recipe: Recipe) -> None:
    """Convert weight decay and learning rates of norms, unless all norms are frozen, and of biases."""
    foreign = recipe.foreign
    has_trained_norms = any(foreign(key) != "FrozenBN" for key in _norm_keys(recipe))
    rules: list[dict[str, Any]] = []
    if has_trained_norms and foreign("SOLVER.WEIGHT_DECAY_NORM") != foreign("SOLVER.WEIGHT_DECAY"):
        rules.append({"kind": "norm", "weight_decay": foreign("SOLVER.WEIGHT_DECAY_NORM")})
    factor, decay = foreign("SOLVER.BIAS_LR_FACTOR"), foreign("SOLVER.WEIGHT_DECAY_BIAS")
    if factor != 1 or decay is not None:
        bias = {"kind": "bias", "lr_factor": factor}
        rules.append(bias if decay is None else {**bias, "weight_decay": decay})
    if rules:
        recipe.put(
            "param_groups.rules", rules, "SOLVER.WEIGHT_DECAY_NORM", "SOLVER.BIAS_LR_FACTOR", "SOLVER.WEIGHT_DECAY_BIAS"
        )


def _schedule(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("SOLVER.LR_SCHEDULER_NAME")
    warmup, factor = foreign("SOLVER.WARMUP_ITERS"), foreign("SOLVER.WARMUP_FACTOR")
    if name == "WarmupMultiStepLR":
        end = foreign("SOLVER.MAX_ITER")
        steps = [duration(step, "it") for step in foreign("SOLVER.STEPS") if step < end]
        recipe.put("schedule", {"name": "multi_step", "milestones": steps}, "SOLVER.STEPS")
        recipe.convert("SOLVER.GAMMA", "schedule.gamma")
        if len(steps) < len(foreign("SOLVER.STEPS")):
            recipe.note("SOLVER.STEPS: milestones after the end of the training are dropped")
    elif name == "WarmupStepWithFixedGammaLR":
        decays, end = foreign("SOLVER.NUM_DECAYS"), foreign("SOLVER.MAX_ITER")
        steps = [duration(number * math.ceil(end / (decays + 1)), "it") for number in range(1, decays + 1)]
        recipe.put("schedule", {"name": "multi_step", "milestones": steps}, "SOLVER.NUM_DECAYS", "SOLVER.MAX_ITER")
        recipe.convert("SOLVER.GAMMA", "schedule.gamma")
    elif name == "WarmupCosineLR":
        end = recipe.ratio("SOLVER.BASE_LR_END", "SOLVER.BASE_LR")
        recipe.put("schedule", {"name": "cosine", "end": end}, "SOLVER.LR_SCHEDULER_NAME", "SOLVER.BASE_LR_END")
    else:
        supported = "supported: WarmupMultiStepLR, WarmupCosineLR, WarmupStepWithFixedGammaLR"
        raise foreign.problem("SOLVER.LR_SCHEDULER_NAME", f"{show(name)} is not supported", supported)
    warmup = min(warmup, math.ceil(foreign("SOLVER.MAX_ITER")))
    recipe.put("schedule.warmup", duration(warmup, "it"), "SOLVER.WARMUP_ITERS", "SOLVER.MAX_ITER")
    recipe.put("schedule.warmup_factor", factor, "SOLVER.WARMUP_FACTOR")
    recipe.convert("SOLVER.WARMUP_METHOD", "schedule.warmup_mode", lookup({"linear": "linear", "constant": "constant"}))
    if not foreign("SOLVER.RESCALE_INTERVAL"):
        recipe.put("schedule.warmup_rule", "sliced", "SOLVER.RESCALE_INTERVAL")


def clipping(recipe: Recipe) -> dict[str, Any]:
    """Return a ``train.step`` with gradient clipping; empty if it is disabled. FastReID has the same keys."""
    foreign = recipe.foreign
    section = "SOLVER.CLIP_GRADIENTS"
    if not foreign(f"{section}.ENABLED"):
        return {}
    kind, limit, norm_type = (foreign(f"{section}.{name}") for name in ("CLIP_TYPE", "CLIP_VALUE", "NORM_TYPE"))
    if kind == "value":
        return {"name": "standard", "clip_value": limit}
    clip_keys = {"norm": "clip_each", "full_model": "clip_norm"}
    if kind not in clip_keys:
        raise foreign.problem(
            f"{section}.CLIP_TYPE", f"{show(kind)} is not supported", "supported: value, norm, full_model"
        )
    return {"name": "standard", clip_keys[kind]: limit, "clip_norm_type": norm_type}


def _evaluation(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.convert("TEST.EVAL_PERIOD", "evaluate.every", duration_in("it"))
    if recipe.config["task"].get("detector", {}).get("name") == "rpn":
        recipe.put("task.evaluator", "proposal_recall", "MODEL.META_ARCHITECTURE")
    elif sigmas := foreign("TEST.KEYPOINT_OKS_SIGMAS"):
        recipe.put("task.evaluator", {"name": "coco", "sigmas": sigmas}, "TEST.KEYPOINT_OKS_SIGMAS")
    if foreign("TEST.AUG.ENABLED"):
        base_size = foreign("INPUT.MIN_SIZE_TEST") or 800
        scales = [round(size / base_size, 4) for size in foreign("TEST.AUG.MIN_SIZES")]
        views = {"scales": scales, "flip": foreign("TEST.AUG.FLIP")}
        recipe.put("task.test_time_augmentation", views, "TEST.AUG.MIN_SIZES", "INPUT.MIN_SIZE_TEST")
    if foreign("TEST.PRECISE_BN.ENABLED"):
        every = foreign("TEST.EVAL_PERIOD") or foreign("SOLVER.MAX_ITER")
        hook = {"every": duration(every, "it"), "batches": foreign("TEST.PRECISE_BN.NUM_ITER")}
        recipe.put("hooks.precise_bn", hook, "TEST.PRECISE_BN.NUM_ITER", "TEST.EVAL_PERIOD")
    if expected := _expected(recipe, foreign("TEST.EXPECTED_RESULTS")):
        recipe.put("hooks.expected_scores.scores", expected, "TEST.EXPECTED_RESULTS")


def _expected(recipe: Recipe, results: list[Any]) -> dict[str, list[float]]:
    """Convert expected scores and their tolerances from percent to fractions.

    With test-time augmentation these are the scores with it (``bbox_TTA``), otherwise those without.
    """
    key = "TEST.EXPECTED_RESULTS"
    augmented = recipe.foreign("TEST.AUG.ENABLED")
    prefix = "val0" if isinstance(recipe.config["data"]["val"], list) else "val"
    scores = {}
    for result in results:
        match result:
            case [str(task), str(metric), int() | float() as score, int() | float() as tolerance]:
                kind = task.removesuffix("_TTA")
                if kind not in METRICS:
                    recipe.skip_part(key, result, f"{task} is not evaluated here")
                elif kind == "sem_seg" and recipe.config["task"]["name"] == "panoptic":
                    recipe.skip_part(key, result, "there of stuff and one class for all objects, here of all classes")
                elif augmented != task.endswith("_TTA"):
                    recipe.skip_part(key, result, f"evaluated {'with' if augmented else 'without'} augmentation")
                else:
                    name = re.sub(r"^(AR)@|^(AR.)@1000$", r"\1\2", metric)
                    scores[f"{prefix}/{METRICS[kind]}{name}"] = [round(score / 100, 6), round(tolerance / 100, 6)]
            case _:
                message = f"{show(result)}: expected [task, metric, score, tolerance]"
                raise recipe.foreign.problem(key, message)
    return scores


def _unsupported(recipe: Recipe) -> None:
    """Refuse values that detectors here cannot have, and keys of the model that detectron2 itself does not know."""
    foreign = recipe.foreign
    architecture = foreign("MODEL.META_ARCHITECTURE")
    active = {
        **{section: architecture in names.split() for section, names in HEADS.items()},
        "MODEL.ROI_MASK_HEAD": foreign("MODEL.MASK_ON"),
        "MODEL.ROI_KEYPOINT_HEAD": foreign("MODEL.KEYPOINT_ON"),
    }
    for path, why in UNSUPPORTED_VALUES.items():
        if active.get(path.rpartition(".")[0], True) and path in foreign and foreign(path) != DEFAULTS[path]:
            remedy = f"{path}={show(DEFAULTS[path])} after the file converts the rest"
            recipe.refuse(path, f"{show(foreign(path))} is not supported: {why}", remedy)
    for path in foreign.keys("MODEL"):
        if path not in DEFAULTS and not any(path == key or path.startswith(f"{key}.") for key in REASONS):
            recipe.refuse(path, "is no key of detectron2 itself: the code that reads it is not known here")
