"""Conversion of MMDetection's configs (2.x and 3.x) of R-CNNs, RetinaNets and FCOS. They are parsed, not executed.

For keys that a config does not set, the recipe gets the defaults of MMDetection's classes
(:data:`opabinia.migration.tables.mmdetection.DEFAULTS`), not Opabinia's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import show
from opabinia.config.tree import Node
from opabinia.migration import openmmlab
from opabinia.migration.foreign_config import set_value
from opabinia.migration.openmmlab_training import (
    at,
    build_recipe,
    convert_training,
    convert_weights,
    modernize,
    refuse_unread,
    report_malformed,
    with_pixel_stats,
)
from opabinia.migration.recipe import Recipe, Reference, lookup, to_unit_range
from opabinia.migration.tables.mmdetection import (
    ALLOWED,
    BOX_LOSSES,
    DEFAULTS,
    DETECTORS,
    HEADS,
    NORMS,
    PIPELINE_NO_EFFECT,
    REASONS,
    REGNETS,
    RESNETS,
)


def convert(file: Path, gpus: int | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of MMDetection; the batch size per GPU becomes the total.

    Args:
        file: the Python file.
        gpus: number of GPUs of the original training; None: see
            :func:`opabinia.migration.openmmlab_training.convert_batch_size`.
        overrides: changes such as ``optim_wrapper.optimizer.lr=0.01``.

    Raises:
        ConfigError: the config cannot be read, or its model or a value is not supported.
    """
    with report_malformed(file):
        tree = _number_stages(with_pixel_stats(modernize(openmmlab.read(file, overrides))))
        recipe = build_recipe("mmdetection", file, tree, DEFAULTS, REASONS)
        detector = _architecture(recipe)
        _pixels(recipe)
        _backbone(recipe)
        _neck(recipe, detector)
        if detector in ("retinanet", "fcos"):
            _dense_head(recipe, detector)
        else:
            _regions(recipe, detector)
        for section in ("model", "data_preprocessor"):
            refuse_unread(recipe, section, ALLOWED)
        passes = _data(recipe)
        convert_training(recipe, gpus, passes)
    recipe.finish()
    return recipe


def _number_stages(tree: Node) -> Node:
    """Return a config in which the stages of a cascade, which are lists, have names: 0, 1, 2."""
    for path in ("model.roi_head.bbox_head", "model.train_cfg.rcnn"):
        node = at(tree, path)
        if node is not None and isinstance(node.value, list):
            children = {str(number): child for number, child in enumerate(node.value)}
            tree = set_value(tree, path.split("."), Node(children, node.where))
    return tree


# --- model ------------------------------------------------------------------------------------------------------------


def _architecture(recipe: Recipe) -> str:
    foreign = recipe.foreign
    name = foreign("model.type")
    if name not in DETECTORS:
        supported = f"supported: {', '.join(DETECTORS)}"
        raise foreign.problem("model.type", f"{show(name)} is not supported", supported)
    detector: str = DETECTORS[name]
    if detector == "faster_rcnn" and "model.roi_head.mask_head" in foreign:
        detector = "mask_rcnn"
    recipe.put("task.name", "detection")
    recipe.put("task.backbone", {})
    recipe.put("task.detector.name", detector, "model.type")
    return detector


def _pixels(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "data_preprocessor"
    rgb = foreign(f"{section}.bgr_to_rgb", foreign(f"{section}.to_rgb", False))
    for key in ("mean", "std"):
        recipe.convert(f"{section}.{key}", f"task.{key}", lambda values: to_unit_range(values)[:: 1 if rgb else -1])
    if not rgb:
        recipe.note("images are RGB in Opabinia, so task.mean and task.std are reversed, and init reverses the weights")
    convert_weights(recipe, "load_from", rgb)
    if not foreign("load_from"):
        convert_weights(recipe, "model.backbone.init_cfg.checkpoint", rgb)


def _backbone(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "model.backbone"
    kind, depth = foreign(f"{section}.type"), foreign(f"{section}.depth")
    backbone: dict[str, Any] = {"name": "resnet", "model": f"resnet{depth}", "last_stride": 2}
    if kind == "ResNeXt":
        groups, width = foreign(f"{section}.groups"), foreign(f"{section}.base_width")
        backbone["model"] = RESNETS.get((depth, groups, width), f"resnet{depth}")
        if (depth, groups, width) not in RESNETS:
            backbone["options"] = {"cardinality": groups, "base_width": width}
    elif kind == "RegNet":
        backbone = {"name": "timm", "model": lookup(REGNETS)(foreign(f"{section}.arch"))}
    elif kind != "ResNet":
        raise foreign.problem(f"{section}.type", f"{show(kind)} is not supported", "supported: ResNet, ResNeXt, RegNet")
    style = foreign(f"{section}.style")
    if depth not in (18, 34, 50, 101, 152) or style not in ("pytorch", "caffe"):
        raise foreign.problem(f"{section}.depth", f"{show(depth)} of style {show(style)} is not supported")
    if kind != "RegNet" and depth >= 50:
        backbone["stride_in_1x1"] = style == "caffe"
    if not foreign(f"{section}.zero_init_residual", True):
        backbone["options"] = {**backbone.get("options", {}), "zero_init_last": False}
    norm = foreign(f"{section}.norm_cfg.type")
    if norm == "GN":
        backbone["norm"] = "group"
    elif norm not in NORMS:
        recipe.refuse(f"{section}.norm_cfg.type", f"{show(norm)} is not supported", f"supported: {', '.join(NORMS)}")
    keys = (f"{section}.type", f"{section}.depth", f"{section}.style", f"{section}.norm_cfg.type")
    recipe.put("task.backbone", backbone, *keys)
    _deformable(recipe)
    recipe.convert(f"{section}.frozen_stages", "task.freeze_stages", lambda stages: stages + 1)
    if foreign(f"{section}.norm_eval"):
        trained = foreign(f"{section}.norm_cfg.requires_grad")
        frozen = "statistics" if trained else True
        recipe.put("task.freeze_norms", False if norm == "GN" else frozen, f"{section}.norm_eval")
    elif not foreign(f"{section}.norm_cfg.requires_grad"):
        recipe.refuse(f"{section}.norm_cfg.requires_grad", "false is supported with norm_eval=True only")
    if any("SyncBN" in str(foreign(key)) for key in _norm_keys(recipe)):
        recipe.put("train.sync_batch_norm", True, f"{section}.norm_cfg.type")


def _norm_keys(recipe: Recipe) -> list[str]:
    return [key for key in recipe.foreign.keys("model") if key.endswith("norm_cfg.type")]


def _deformable(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "model.backbone"
    kind = foreign(f"{section}.dcn.type")
    stages = [number for number, deform in enumerate(foreign(f"{section}.stage_with_dcn") or [], 1) if deform]
    if kind is None or not stages:
        return
    if recipe.config["task"]["backbone"]["name"] != "resnet":
        return recipe.refuse(f"{section}.dcn.type", "deformable convolutions are supported in ResNets only")
    recipe.convert(f"{section}.dcn.type", "task.backbone.deformable.modulated", lookup({"DCN": False, "DCNv2": True}))
    recipe.put("task.backbone.deformable.stages", stages, f"{section}.stage_with_dcn")
    recipe.put(
        "task.backbone.deformable.groups", foreign(f"{section}.dcn.deform_groups", 1), f"{section}.dcn.deform_groups"
    )
    return None


def _neck(recipe: Recipe, detector: str) -> None:
    foreign, section = recipe.foreign, "model.neck"
    if foreign(f"{section}.type") is None and detector not in ("retinanet", "fcos"):
        return _no_neck(recipe, detector)
    if foreign(f"{section}.type") != "FPN":
        raise foreign.problem(
            f"{section}.type", f"{show(foreign(f'{section}.type'))} is not supported", "supported: FPN"
        )
    extra, start = foreign.untyped(f"{section}.add_extra_convs", False), foreign(f"{section}.start_level")
    relu = foreign(f"{section}.relu_before_extra_convs")
    names: dict[tuple[Any, int, bool], str] = {
        (False, 0, False): "fpn",
        ("on_input", 1, True): "fpn_p3_p7",
        ("on_input", 1, False): "fpn_p3_p7",
        (True, 1, False): "fpn_p3_p7",
        ("on_output", 1, True): "fpn_p3_p7_from_p5",
    }
    if (extra, start, relu) not in names:
        message = f"{show(extra)} with start_level {start} and relu_before_extra_convs {relu} is not supported"
        raise foreign.problem(f"{section}.add_extra_convs", message)
    keys = tuple(f"{section}.{key}" for key in ("add_extra_convs", "start_level", "relu_before_extra_convs"))
    recipe.put("task.detector.neck.name", names[extra, start, relu], *keys)
    if names[extra, start, relu] == "fpn_p3_p7":
        recipe.put("task.detector.neck.relu_before_p7", relu, keys[2])
    recipe.convert(f"{section}.out_channels", "task.detector.neck.channels")
    if norm := foreign(f"{section}.norm_cfg.type"):
        recipe.put("task.detector.neck.norm", lookup(NORMS)(norm), f"{section}.norm_cfg.type")
    return None


def _no_neck(recipe: Recipe, detector: str) -> None:
    """Convert the two kinds of detectors without a feature pyramid, ResNet-C4 and ResNet-DC5."""
    foreign, section, head = recipe.foreign, "model.backbone", "model.roi_head.shared_head"
    keys = [f"{section}.{name}" for name in ("num_stages", "strides", "dilations", "out_indices")]
    layout = [foreign.untyped(key) for key in keys]
    recipe.put("task.detector.neck.name", "no_neck")
    if detector != "rpn":
        recipe.put("task.detector.pooling.num_levels", 1)
    if layout == [3, [1, 2, 2], [1, 1, 1], [2]]:
        key = "last_stage" if detector == "rpn" else "pooling.last_stage"
        recipe.put(f"task.detector.{key}", detector != "rpn", *keys)
        expected = {"type": "ResLayer", "stage": 3, "stride": 2, "dilation": 1}
        expected |= {name: foreign(f"{section}.{name}") for name in ("depth", "style", "norm_eval")}
        expected |= {f"norm_cfg.{name}": foreign(f"{section}.norm_cfg.{name}") for name in ("type", "requires_grad")}
        for name, value in expected.items():
            if detector != "rpn" and foreign.untyped(f"{head}.{name}", value) != value:
                recipe.refuse(f"{head}.{name}", f"{show(foreign(f'{head}.{name}'))}: expected {show(value)}, as before")
    elif layout == [4, [1, 2, 2, 1], [1, 1, 1, 2], [3]]:
        recipe.put("task.backbone.last_stride", 1, *keys)
        recipe.put("task.backbone.last_dilation", 2, *keys)
    else:
        recipe.refuse(keys[3], f"{show(layout)}: without a neck ResNet-C4 and ResNet-DC5 are supported")
    if foreign("model.rpn_head.feat_channels") != foreign("model.rpn_head.in_channels"):
        recipe.refuse("model.rpn_head.feat_channels", "must be in_channels")


def _anchors(recipe: Recipe, section: str, target: str) -> None:
    """Convert anchors: sides are strides times scales."""
    foreign, source = recipe.foreign, f"{section}.anchor_generator"
    strides, ratios = foreign(f"{source}.strides"), foreign(f"{source}.ratios")
    keys = (f"{source}.strides", f"{source}.scales", f"{source}.octave_base_scale", f"{source}.scales_per_octave")
    octave, count = foreign(keys[2]), foreign(keys[3])
    if octave is None:
        scales = foreign(keys[1])
        sizes = [[stride * scale for scale in scales] for stride in strides]
        sizes = [level[0] for level in sizes] if len(scales) == 1 else sizes
    else:
        sizes = [stride * octave for stride in strides]
        recipe.put(f"{target}.scales_per_octave", count, keys[3])
    recipe.put(f"{target}.anchor_sizes", sizes, *keys)
    recipe.put(f"{target}.aspect_ratios", ratios, f"{source}.ratios")
    recipe.convert(f"{source}.center_offset", f"{target}.offset")


def _box_loss(recipe: Recipe, section: str, target: str) -> None:
    key = f"{section}.loss_bbox.type"
    name = recipe.foreign(key)
    if name not in BOX_LOSSES:
        return recipe.refuse(key, f"{show(name)} is not supported", f"supported: {', '.join(BOX_LOSSES)}")
    loss, beta = BOX_LOSSES[name]
    decoded = recipe.foreign(f"{section}.reg_decoded_bbox", False)
    if decoded != (loss != "smooth_l1"):
        recipe.refuse(f"{section}.reg_decoded_bbox", f"{show(decoded)} with {name} is not supported")
    recipe.put(f"{target}.box_loss", loss, key)
    recipe.put(
        f"{target}.smooth_l1_beta", recipe.foreign(f"{section}.loss_bbox.beta", beta), f"{section}.loss_bbox.beta"
    )
    return None


def _coding(recipe: Recipe, section: str, target: str) -> None:
    """Convert the scales of encoded boxes, of which Opabinia has the inverse."""
    key = f"{section}.bbox_coder.target_stds"
    box_head = "roi_head" in section and f"{section}.bbox_coder" not in recipe.foreign
    stds = recipe.foreign(key, [0.1, 0.1, 0.2, 0.2] if box_head else [1.0, 1.0, 1.0, 1.0])
    recipe.put(target, [float(f"{1 / std:.6g}") for std in stds], key)


def _dense_head(recipe: Recipe, detector: str) -> None:
    foreign, section, target = recipe.foreign, "model.bbox_head", "task.detector"
    for key, own, default in (("alpha", "alpha", 0.25), ("gamma", "gamma", 2.0)):
        recipe.put(f"{target}.{own}", foreign(f"{section}.loss_cls.{key}", default), f"{section}.loss_cls.{key}")
    for name in ("loss_cls", "loss_bbox", "loss_centerness"):
        if (weight := foreign(f"{section}.{name}.loss_weight", 1.0)) != 1:
            recipe.refuse(f"{section}.{name}.loss_weight", f"{show(weight)} is not supported", "supported: 1")
    if detector == "retinanet":
        _anchors(recipe, section, target)
        _box_loss(recipe, section, target)
        assigner = "model.train_cfg.assigner"
        recipe.put(f"{target}.foreground_iou", foreign(f"{assigner}.pos_iou_thr", 0.5), f"{assigner}.pos_iou_thr")
        recipe.put(f"{target}.background_iou", foreign(f"{assigner}.neg_iou_thr", 0.4), f"{assigner}.neg_iou_thr")
        if foreign(f"{assigner}.min_pos_iou", 0) != 0:
            recipe.refuse(f"{assigner}.min_pos_iou", "only 0 is supported: every object has an anchor")
        if foreign(f"{section}.stacked_convs") != 4:
            recipe.refuse(f"{section}.stacked_convs", "only 4 is supported")
        recipe.put(f"{target}.norm", lookup({None: "none", "GN": "group"})(foreign(f"{section}.norm_cfg.type")))
        recipe.put(f"{target}.loss_normalizer", "running_mean")
        recipe.note(
            "losses of RetinaNet are divided by a running mean of the positive anchors, there by those of a batch"
        )
        if foreign(f"{section}.bbox_coder.target_stds", [1.0] * 4) != [1.0] * 4:
            recipe.refuse(f"{section}.bbox_coder.target_stds", "only 1 is supported")
    else:
        _fcos(recipe)
    recipe.put(f"{target}.score_threshold", foreign("model.test_cfg.score_thr", 0.05), "model.test_cfg.score_thr")
    recipe.put(f"{target}.nms_threshold", _nms(recipe, "model.test_cfg.nms"), "model.test_cfg.nms.iou_threshold")
    recipe.put(f"{target}.pre_nms_topk", foreign("model.test_cfg.nms_pre", 1000), "model.test_cfg.nms_pre")
    recipe.put(f"{target}.max_detections", foreign("model.test_cfg.max_per_img", 100), "model.test_cfg.max_per_img")
    for path in foreign.keys("model.train_cfg"):  # of FCOS: not used
        foreign.untyped(path)


def _fcos(recipe: Recipe) -> None:
    foreign, section, target = recipe.foreign, "model.bbox_head", "task.detector"
    radius = foreign(f"{section}.center_sample_radius") if foreign(f"{section}.center_sampling") else None
    keys = (f"{section}.center_sampling", f"{section}.center_sample_radius")
    recipe.put(f"{target}.center_sampling_radius", radius, *keys)
    recipe.convert(f"{section}.norm_on_bbox", f"{target}.distances", lookup({True: "strides", False: "exponential"}))
    recipe.convert(f"{section}.centerness_on_reg", f"{target}.centerness_branch", lookup({True: "box", False: "class"}))
    losses = {"IoULoss": "iou", "GIoULoss": "giou"}
    recipe.convert(f"{section}.loss_bbox.type", f"{target}.box_loss", lookup(losses))
    recipe.put(f"{target}.weight_boxes", True)
    recipe.put(f"{target}.level_factors", True)
    recipe.convert(f"{section}.stacked_convs", f"{target}.num_convs")
    recipe.put(f"{target}.norm", lookup({"GN": "group"})(foreign(f"{section}.norm_cfg.type", "GN")))
    recipe.note("scores of FCOS are the roots of those of MMDetection: their order is the same, thresholds are not")


def _nms(recipe: Recipe, section: str) -> Any:
    key = f"{section}.type"
    if (kind := recipe.foreign(key, "nms")) != "nms":
        recipe.refuse(key, f"{show(kind)} is not supported", "supported: nms")
    return recipe.foreign(f"{section}.iou_threshold", 0.5)


# --- regions ----------------------------------------------------------------------------------------------------------


def _regions(recipe: Recipe, detector: str) -> None:
    _proposals(recipe)
    if detector == "rpn":
        recipe.put("task.evaluator", "proposal_recall", "model.type")
        return
    foreign, section, target = recipe.foreign, "model.roi_head", "task.detector"
    pooling = f"{section}.bbox_roi_extractor.roi_layer"
    recipe.put(f"{target}.pooling.sampling_ratio", foreign(f"{pooling}.sampling_ratio", 0), f"{pooling}.sampling_ratio")
    recipe.put(f"{target}.pooling.aligned", foreign(f"{pooling}.aligned", True), f"{pooling}.aligned")
    recipe.put(f"{target}.box.resolution", foreign(f"{pooling}.output_size", 7), f"{pooling}.output_size")
    if detector == "cascade_rcnn":
        _cascade(recipe)
    else:
        _box_head(recipe, f"{section}.bbox_head")
        _samples(recipe, "model.train_cfg.rcnn")
    test = "model.test_cfg.rcnn"
    recipe.put(f"{target}.box.score_threshold", foreign(f"{test}.score_thr", 0.05), f"{test}.score_thr")
    recipe.put(f"{target}.box.nms_threshold", _nms(recipe, f"{test}.nms"), f"{test}.nms.iou_threshold")
    recipe.put(f"{target}.box.max_detections", foreign(f"{test}.max_per_img", 100), f"{test}.max_per_img")
    if "model.roi_head.mask_head" in foreign:
        _masks(recipe)


def _proposals(recipe: Recipe) -> None:
    foreign, section, target = recipe.foreign, "model.rpn_head", "task.detector.proposals"
    if (kind := foreign(f"{section}.type")) != "RPNHead":
        raise foreign.problem(f"{section}.type", f"{show(kind)} is not supported", "supported: RPNHead")
    _anchors(recipe, section, target)
    recipe.convert(f"{section}.num_convs", f"{target}.num_convs")
    _coding(recipe, section, f"{target}.bbox_reg_weights")
    _box_loss(recipe, section, target)
    weights = (f"{section}.loss_cls.loss_weight", f"{section}.loss_bbox.loss_weight")
    score, box = (foreign(key, 1.0) for key in weights)
    recipe.put(f"{target}.loss_weight", score, weights[0])
    recipe.put(f"{target}.box_loss_weight", box / score, weights[1])
    train, test = "model.train_cfg.rpn", "model.test_cfg.rpn"
    _assigner(recipe, f"{train}.assigner", target, ("foreground_iou", "background_iou"))
    sampler = f"{train}.sampler"
    recipe.put(f"{target}.batch_size_per_image", foreign(f"{sampler}.num", 256), f"{sampler}.num")
    recipe.put(f"{target}.positive_fraction", foreign(f"{sampler}.pos_fraction", 0.5), f"{sampler}.pos_fraction")
    if foreign(f"{train}.allowed_border", 0) >= 0:
        recipe.skip(f"{train}.allowed_border", "anchors that cross the border of an image are also trained")
    training = "model.train_cfg.rpn_proposal"
    training = training if training in foreign else test
    for source, split in ((training, "train"), (test, "test")):
        recipe.put(f"{target}.pre_nms_topk_{split}", foreign(f"{source}.nms_pre", 2000), f"{source}.nms_pre")
        recipe.put(f"{target}.post_nms_topk_{split}", foreign(f"{source}.max_per_img", 1000), f"{source}.max_per_img")
    thresholds = [_nms(recipe, f"{source}.nms") for source in (training, test)]
    if thresholds[0] != thresholds[1]:
        recipe.refuse(f"{test}.nms.iou_threshold", f"{show(thresholds)}: training and test must have the same")
    recipe.put(f"{target}.nms_threshold", thresholds[1], f"{test}.nms.iou_threshold")
    recipe.put(f"{target}.min_size", foreign(f"{test}.min_bbox_size", 0), f"{test}.min_bbox_size")


def _assigner(recipe: Recipe, section: str, target: str, names: Sequence[str]) -> None:
    foreign = recipe.foreign
    for name, key in zip(names, ("pos_iou_thr", "neg_iou_thr"), strict=False):
        recipe.put(f"{target}.{name}", foreign.number(f"{section}.{key}"), f"{section}.{key}")
    if "rpn" in section and foreign(f"{section}.min_pos_iou", 0) > 0:
        recipe.skip(f"{section}.min_pos_iou", "an object's best anchor is positive whatever their IoU")
    elif "rcnn" in section:
        limits = [foreign(f"{section}.{key}", 0) for key in ("pos_iou_thr", "neg_iou_thr", "min_pos_iou")]
        if limits[0] != limits[1] or limits[2] < limits[0]:
            recipe.refuse(f"{section}.neg_iou_thr", f"{show(limits)}: thresholds of regions must be equal")


def _samples(recipe: Recipe, section: str) -> None:
    foreign, target = recipe.foreign, "task.detector.box"
    _assigner(recipe, f"{section}.assigner", target, ("foreground_iou",))
    sampler = f"{section}.sampler"
    recipe.put(f"{target}.batch_size_per_image", foreign(f"{sampler}.num", 512), f"{sampler}.num")
    recipe.put(f"{target}.positive_fraction", foreign(f"{sampler}.pos_fraction", 0.25), f"{sampler}.pos_fraction")


def _box_head(recipe: Recipe, section: str) -> None:
    foreign, target = recipe.foreign, "task.detector.box"
    kind = foreign(f"{section}.type")
    layers = HEADS.get(kind)
    if kind == "ConvFCBBoxHead":
        layers = {
            "num_convs": foreign(f"{section}.num_shared_convs", 0),
            "num_fc": foreign(f"{section}.num_shared_fcs", 0),
        }
    if kind == "BBoxHead" and not foreign(f"{section}.with_avg_pool", False):
        recipe.refuse(f"{section}.with_avg_pool", "only True is supported, with BBoxHead")
    if layers is None:
        raise foreign.problem(f"{section}.type", f"{show(kind)} is not supported", f"supported: {', '.join(HEADS)}")
    for key, value in layers.items():
        recipe.put(f"{target}.{key}", value, f"{section}.type")
    recipe.put(f"{target}.fc_dim", foreign(f"{section}.fc_out_channels", 1024), f"{section}.fc_out_channels")
    if layers["num_convs"]:
        channels = foreign(f"{section}.conv_out_channels", 256)
        recipe.put(f"{target}.conv_dim", channels, f"{section}.conv_out_channels")
    if norm := foreign(f"{section}.norm_cfg.type"):
        recipe.put(f"{target}.norm", lookup(NORMS)(norm), f"{section}.norm_cfg.type")
    agnostic = foreign(f"{section}.reg_class_agnostic", False)
    recipe.put(f"{target}.class_agnostic", agnostic, f"{section}.reg_class_agnostic")
    _coding(recipe, section, f"{target}.bbox_reg_weights")
    _box_loss(recipe, section, target)
    recipe.put(
        f"{target}.box_loss_weight",
        foreign(f"{section}.loss_bbox.loss_weight", 1.0),
        f"{section}.loss_bbox.loss_weight",
    )
    if (weight := foreign(f"{section}.loss_cls.loss_weight", 1.0)) != 1:
        recipe.refuse(f"{section}.loss_cls.loss_weight", f"{show(weight)} is not supported", "supported: 1")


def _cascade(recipe: Recipe) -> None:
    """Convert the stages of a cascade, which differ in IoUs, coding and weights only."""
    foreign, heads, rcnn = recipe.foreign, "model.roi_head.bbox_head", "model.train_cfg.rcnn"
    stages = range(foreign("model.roi_head.num_stages", 3))
    _box_head(recipe, f"{heads}.0")
    _samples(recipe, f"{rcnn}.0")
    coding = [[1 / std for std in foreign(f"{heads}.{number}.bbox_coder.target_stds")] for number in stages]
    ious = [foreign.number(f"{rcnn}.{number}.assigner.pos_iou_thr") for number in stages]
    for number in stages[1:]:
        _assigner(recipe, f"{rcnn}.{number}.assigner", "task.detector.box", ())
    recipe.put("task.detector.later_ious", ious[1:])
    later = [[float(f"{value:.6g}") for value in values] for values in coding[1:]]
    recipe.put("task.detector.later_bbox_reg_weights", later)
    recipe.convert("model.roi_head.stage_loss_weights", "task.detector.stage_loss_weights")
    recipe.put("task.detector.score_average", "logits", "model.roi_head.type")
    recipe.note("later stages of the cascade are trained on the regions of the first, there on new samples of them")
    if "model.roi_head.mask_head" in foreign:
        recipe.put("task.detector.num_mask_heads", len(stages), "model.roi_head.num_stages")
    for section in (heads, rcnn):
        first = _stage(recipe, section, 0)
        for number in stages[1:]:
            for key, value in _stage(recipe, section, number).items():
                if not key.endswith(("target_stds", "_iou_thr", "min_pos_iou")) and first.get(key) != value:
                    recipe.refuse(f"{section}.{number}.{key}", f"{show(value)}: only IoUs and coding may differ")


def _stage(recipe: Recipe, section: str, number: int) -> dict[str, Any]:
    prefix = f"{section}.{number}."
    return {path.removeprefix(prefix): recipe.foreign.untyped(path) for path in recipe.foreign.keys(prefix[:-1])}


def _masks(recipe: Recipe) -> None:
    foreign, section, target = recipe.foreign, "model.roi_head.mask_head", "task.detector.mask"
    own, boxes = (f"model.roi_head.{kind}_roi_extractor.roi_layer" for kind in ("mask", "bbox"))
    pooling = own if own in foreign else boxes
    resolution = foreign(f"{pooling}.output_size", 14)
    recipe.put(f"{target}.resolution", resolution, f"{pooling}.output_size")
    rcnn = "model.train_cfg.rcnn.0" if "model.train_cfg.rcnn.0" in foreign else "model.train_cfg.rcnn"
    size = resolution if recipe.config["task"]["detector"]["pooling"].get("last_stage") else 2 * resolution
    if foreign(f"{rcnn}.mask_size", size) != size:
        recipe.refuse(f"{rcnn}.mask_size", f"{show(foreign(f'{rcnn}.mask_size'))}: masks have {size} x {size} pixels")
    recipe.put(f"{target}.sampling_ratio", foreign(f"{pooling}.sampling_ratio", 0), f"{pooling}.sampling_ratio")
    if foreign(f"{pooling}.aligned", True) != recipe.config["task"]["detector"]["pooling"]["aligned"]:
        recipe.refuse(
            f"{pooling}.aligned", "must be that of the box head: task.detector.pooling.aligned is of all heads"
        )
    recipe.convert(f"{section}.num_convs", f"{target}.num_convs")
    recipe.convert(f"{section}.conv_out_channels", f"{target}.channels")
    recipe.convert(f"{section}.class_agnostic", f"{target}.class_agnostic")
    if norm := foreign(f"{section}.norm_cfg.type"):
        recipe.put(f"{target}.norm", lookup(NORMS)(norm), f"{section}.norm_cfg.type")
    if (weight := foreign(f"{section}.loss_mask.loss_weight", 1.0)) != 1:
        recipe.refuse(f"{section}.loss_mask.loss_weight", f"{show(weight)} is not supported", "supported: 1")


# --- data -------------------------------------------------------------------------------------------------------------


def _dataset(recipe: Recipe, split: str) -> dict[str, Any]:
    """Return the dataset of a split as a dictionary, and mark its keys as read."""
    section = f"{split}_dataloader.dataset"
    dataset: dict[str, Any] = {}
    for path in recipe.foreign.keys(section):
        keys = path.removeprefix(f"{section}.").split(".")
        inner = dataset
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = recipe.foreign.untyped(path)
    return dataset


def _data(recipe: Recipe) -> int:
    """Convert sources, transforms and samplers; return the passes over the data in an epoch."""
    train, passes, sampler = _dataset(recipe, "train"), 1, None
    while "dataset" in train:
        kind = train.get("type")
        if kind == "RepeatDataset":
            passes *= train["times"]
        elif kind == "ClassBalancedDataset":
            sampler = {"name": "repeat_factor", "threshold": train["oversample_thr"]}
        else:
            recipe.refuse("train_dataloader.dataset.type", f"{show(kind)} is not supported")
        train = train["dataset"]
    parts = train.get("datasets", [train])
    sources = [source for part in parts for source in _sources(recipe, part, "train")]
    source = sources[0] if len(sources) == 1 else {"name": "concat", "sources": sources}
    recipe.put("data.train.source", source, "train_dataloader.dataset.type")
    pipeline = parts[0].get("pipeline") or []
    recipe.put("data.train.transforms", _transforms(recipe, "train", pipeline), "train_dataloader.dataset.pipeline")
    val = _dataset(recipe, "val") or {"type": None}
    recipe.put("data.val.source", _sources(recipe, val, "val")[0], "val_dataloader.dataset.type")
    val_transforms = _transforms(recipe, "val", val.get("pipeline") or [])
    recipe.put("data.val.transforms", val_transforms, "val_dataloader.dataset.pipeline")
    if recipe.foreign("train_dataloader.batch_sampler.type", "AspectRatioBatchSampler") == "AspectRatioBatchSampler":
        sampler = {"name": "aspect_ratio_batches", **({"sampler": sampler} if sampler else {})}
    if sampler:
        recipe.put("data.sampler", sampler, "train_dataloader.batch_sampler.type")
    return passes


def _sources(recipe: Recipe, dataset: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """Convert a dataset; those whose format is not known need variables that the user fills in."""
    kind, key = str(dataset.get("type")), f"{split}_dataloader.dataset.type"
    config = dataset.get("filter_cfg") or {}
    drops_empty = config.get("filter_empty_gt", False) or (
        "img_prefix" in dataset and dataset.get("filter_empty_gt", True)
    )
    empty: dict[str, Any] = {"empty": "drop"} if split == "train" and drops_empty else {}
    metainfo = dataset.get("metainfo") or {}
    classes = metainfo.get("classes") or metainfo.get("CLASSES") or dataset.get("classes")
    empty |= {"classes": [classes] if isinstance(classes, str) else classes} if classes else {}
    if kind == "VOCDataset":
        return [{**source, **empty} for source in _voc(recipe, dataset)]
    masks = {"masks": True} if "mask" in recipe.config["task"]["detector"] else {}
    if kind in ("CocoDataset", "LVISV1Dataset", "LVISV05Dataset", "LVISDataset") and dataset.get("ann_file"):
        if kind != "CocoDataset":
            recipe.put("task.evaluator", "lvis", key)
        root, file = _coco_paths(recipe, dataset)
    else:
        recipe.note(f"{split} dataset {kind}: set its image folder and its annotation file (COCO's format) in vars")
        root = recipe.variable(f"{split}_images", f"path/to/{split}", key)
        file = recipe.variable(f"{split}_file", f"path/to/{split}.json", key)
    return [{"name": "coco", "root": root, "file": file, **masks, "broken": "clip", **empty}]


def _coco_paths(recipe: Recipe, dataset: dict[str, Any]) -> tuple[Reference, Reference]:
    """Return the image folder and the annotation file below the variable ``root``."""
    prefix = dataset.get("img_prefix", (dataset.get("data_prefix") or {}).get("img", ""))
    root, file = str(dataset.get("data_root") or ""), str(dataset["ann_file"])
    if not root:
        root = file.partition("annotations/")[0]
    root = root.rstrip("/")
    names = {value: name for name, value in recipe.config.get("vars", {}).items() if name.startswith("root")}
    name = names.get(root or "data", f"root{len(names) or ''}")
    reference = recipe.variable(name, root or "data")
    inner = [str(text).removeprefix(f"{root}/").strip("/") for text in (prefix, file)]
    images, annotations = (Reference(f"{reference}/{text}") if text else reference for text in inner)
    return images, annotations


def _voc(recipe: Recipe, dataset: dict[str, Any]) -> list[dict[str, Any]]:
    files = dataset.get("ann_file")
    sources = []
    for file in files if isinstance(files, list) else [files]:
        match = re.search(r"VOC(2007|2012)/ImageSets/Main/(\w+)\.txt$", str(file))
        if match is None:
            raise recipe.foreign.problem(
                "train_dataloader.dataset", f"{show(file)}: expected a list of VOC2007 or VOC2012"
            )
        root = recipe.variable(f"voc{match[1]}", f"path/to/VOCdevkit/VOC{match[1]}")
        sources.append({"name": "voc", "root": root, "split": match[2]})
        if "test" in match[2] or match[2] == "val":
            recipe.put("task.evaluator", {"name": "voc", "year": int(match[1])})
    return sources


def _transforms(recipe: Recipe, split: str, pipeline: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert the steps of a pipeline."""
    steps: list[dict[str, Any]] = []
    key = f"{split}_dataloader.dataset.pipeline"
    for step in pipeline:
        kind = step.get("type") if isinstance(step, dict) else step
        if kind == "MultiScaleFlipAug":
            if step.get("flip") or isinstance((step["img_scale"] or [[0]])[0], list):
                recipe.refuse(key, "test-time augmentation is not supported: see task.test_time_augmentation")
            inner = [
                {**part, "scale": step["img_scale"]} if part["type"] == "Resize" else part
                for part in step["transforms"]
            ]
            steps += _transforms(recipe, split, inner)
        elif kind in ("Resize", "RandomResize", "RandomChoiceResize", "FixScaleResize"):
            steps.append(_resize(recipe, key, step))
        elif kind == "RandomFlip":
            steps += _flip(recipe, key, step, split)
        elif kind == "RandomCrop":
            steps.append(_crop(recipe, key, step, bool(steps) and steps[-1]["name"] == "resize_scale"))
        elif kind == "PhotoMetricDistortion":
            recipe.refuse(key, "'PhotoMetricDistortion' is not supported")
        elif kind not in PIPELINE_NO_EFFECT:
            recipe.refuse(key, f"{show(kind)} is not supported")
    return steps


def _resize(recipe: Recipe, key: str, step: dict[str, Any]) -> dict[str, Any]:
    if not step.get("keep_ratio", False) and step["type"] != "RandomChoiceResize":
        recipe.refuse(key, f"{step['type']} without keep_ratio=True is not supported")
    scale: Any = step.get("scale") or step.get("img_scale") or step.get("scales")
    if step.get("ratio_range"):
        return {"name": "resize_scale", "size": [scale[1], scale[0]], "scale": step["ratio_range"]}
    if not scale:
        raise recipe.foreign.problem(key, f"{step['type']} without a scale is not supported")
    scales = scale if isinstance(scale[0], list) else [scale]
    sides = [sorted(pair) for pair in scales]
    if len({longest for _, longest in sides}) > 1:
        recipe.refuse(key, f"{show(scales)}: scales must have the same longer side")
    shorts = [short for short, _ in sides]
    resize = {"name": "resize_shortest_edge", "short_edge_length": shorts if len(shorts) > 1 else shorts[0]}
    ranges = step["type"] == "RandomResize" or (step["type"] == "Resize" and step.get("multiscale_mode") != "value")
    if len(shorts) > 1 and ranges:
        resize |= {"short_edge_length": [min(shorts), max(shorts)], "sampling": "range"}
    return {**resize, "max_size": sides[0][1]}


def _flip(recipe: Recipe, key: str, step: dict[str, Any], split: str) -> list[dict[str, Any]]:
    probability = step.get("prob", step.get("flip_ratio"))
    if not probability or split == "val":
        return []
    flips = {"horizontal": "RandomHorizontalFlip", "vertical": "RandomVerticalFlip"}
    direction = step.get("direction", "horizontal")
    if isinstance(direction, list) or direction not in flips or isinstance(probability, list):
        recipe.refuse(
            key, f"RandomFlip with direction {show(direction)} is not supported", f"supported: {', '.join(flips)}"
        )
        return []
    return [{"name": flips[direction], **({"p": probability} if probability != 0.5 else {})}]


def _crop(recipe: Recipe, key: str, step: dict[str, Any], after_jitter: bool) -> dict[str, Any]:
    """Convert a crop; a fixed one after a random scale is that of large-scale jitter."""
    kind, size = step.get("crop_type", "absolute"), step["crop_size"]
    if kind not in ("absolute", "absolute_range", "relative", "relative_range"):
        recipe.refuse(key, f"RandomCrop of type {show(kind)} is not supported")
    if after_jitter and (kind == "absolute" or (kind == "absolute_range" and size[0] == size[1])):
        return {"name": "fixed_size_crop", "size": size}
    return {"name": "random_crop", "kind": kind, "size": size}
