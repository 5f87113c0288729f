"""detectron2's configs of detectors on feature pyramids as configs of ours.

Where a config says nothing, detectron2's default is written into the recipe, not ours: :data:`DEFAULTS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.migration import yacs
from opabinia.migration.foreign_config import Foreign, leaves
from opabinia.migration.recipe import Recipe, Reference, Table, duration, first, lasting, one_of, pixels
from opabinia.migration.tables.detectron2 import BACKBONES, DEFAULTS, LOSSES, METRICS, NORMS, REASONS, RESNETS, UNUSUAL

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
    pixels(
        recipe,
        *("INPUT.FORMAT", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"),
        weights="init turns the first convolution of weights of detectron2, init.colours says otherwise",
    )
    _backbone(recipe, dense)
    if dense:
        recipe.take("MODEL.ANCHOR_GENERATOR.OFFSET", "task.detector.offset")
        recipe.take_all("MODEL.RETINANET", "task.detector", RETINANET)
        recipe.take("TEST.DETECTIONS_PER_IMAGE", "task.detector.most")
    else:
        _regions(recipe)
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
    recipe.take("MODEL.FPN.OUT_CHANNELS", "task.detector.neck.channels")
    recipe.take("MODEL.FPN.NORM", "task.detector.neck.norm", one_of(NORMS))
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
    recipe.take("MODEL.BACKBONE.FREEZE_AT", "task.freeze_stages")
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


def _regions(recipe: Recipe) -> None:
    """Of an R-CNN."""
    foreign = recipe.foreign
    cascade = foreign("MODEL.ROI_HEADS.NAME") == "CascadeROIHeads"
    recipe.take_all("MODEL.RPN", "task.detector.proposals", PROPOSALS)
    recipe.take("MODEL.PROPOSAL_GENERATOR.MIN_SIZE", "task.detector.proposals.smallest")
    recipe.take_all("MODEL.ROI_BOX_HEAD", "task.detector.pooling", POOLING)
    recipe.take_all("MODEL", "task.detector.box", {**BOX, **(FIRST_OF_CASCADE if cascade else {})})
    recipe.take("TEST.DETECTIONS_PER_IMAGE", "task.detector.box.most")
    if cascade:
        recipe.take_all("MODEL.ROI_BOX_CASCADE_HEAD", "task.detector", LATER_OF_CASCADE)
    if foreign("MODEL.MASK_ON"):
        recipe.take_all("MODEL.ROI_MASK_HEAD", "task.detector.mask", MASK)
    if foreign("MODEL.KEYPOINT_ON"):
        recipe.take_all("MODEL.ROI_KEYPOINT_HEAD", "task.detector.keypoint", KEYPOINT)


def _second(values: Any) -> Any:
    if len(values) != 2:
        raise ValueError(f"{show(values)}: two numbers are needed")
    return values[1]


def _all_the_same(values: Any) -> Any:
    if not values or any(one != values[0] for one in values):
        raise ValueError(f"{show(values)}: all layers have the same width here")
    return values[0]


PROPOSALS: Table = {
    "background": ("IOU_THRESHOLDS", first),
    "foreground": ("IOU_THRESHOLDS", _second),
    "samples": "BATCH_SIZE_PER_IMAGE",
    "positive": "POSITIVE_FRACTION",
    "loss": ("BBOX_REG_LOSS_TYPE", one_of(LOSSES)),
    "beta": "SMOOTH_L1_BETA",
    "before_training": "PRE_NMS_TOPK_TRAIN",
    "before": "PRE_NMS_TOPK_TEST",
    "after_training": "POST_NMS_TOPK_TRAIN",
    "after": "POST_NMS_TOPK_TEST",
    "nms": "NMS_THRESH",
    "convolutions": ("CONV_DIMS", len),
}
POOLING: Table = {
    "samples": "POOLER_SAMPLING_RATIO",
    "aligned": ("POOLER_TYPE", one_of({"ROIAlignV2": True, "ROIAlign": False})),
}
BOX: Table = {
    "resolution": "ROI_BOX_HEAD.POOLER_RESOLUTION",
    "convolutions": "ROI_BOX_HEAD.NUM_CONV",
    "norm": ("ROI_BOX_HEAD.NORM", one_of(NORMS)),
    "layers": "ROI_BOX_HEAD.NUM_FC",
    "width": "ROI_BOX_HEAD.FC_DIM",
    "class_agnostic": "ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG",
    "samples": "ROI_HEADS.BATCH_SIZE_PER_IMAGE",
    "positive": "ROI_HEADS.POSITIVE_FRACTION",
    "foreground": ("ROI_HEADS.IOU_THRESHOLDS", first),
    "weights": "ROI_BOX_HEAD.BBOX_REG_WEIGHTS",
    "loss": ("ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE", one_of(LOSSES)),
    "beta": "ROI_BOX_HEAD.SMOOTH_L1_BETA",
    "threshold": "ROI_HEADS.SCORE_THRESH_TEST",
    "nms": "ROI_HEADS.NMS_THRESH_TEST",
}
FIRST_OF_CASCADE: Table = {
    "foreground": ("ROI_BOX_CASCADE_HEAD.IOUS", first),
    "weights": ("ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS", first),
}
LATER_OF_CASCADE: Table = {
    "later_overlaps": ("IOUS", lambda values: values[1:]),
    "later_weights": ("BBOX_REG_WEIGHTS", lambda values: values[1:]),
}
MASK: Table = {
    "resolution": "POOLER_RESOLUTION",
    "convolutions": "NUM_CONV",
    "channels": "CONV_DIM",
    "norm": ("NORM", one_of(NORMS)),
}
KEYPOINT: Table = {
    "resolution": "POOLER_RESOLUTION",
    "convolutions": ("CONV_DIMS", len),
    "channels": ("CONV_DIMS", _all_the_same),
}
RETINANET: Table = {
    "norm": ("NORM", one_of({"": "none", "GN": "group"})),
    "prior": "PRIOR_PROB",
    "background": ("IOU_THRESHOLDS", first),
    "foreground": ("IOU_THRESHOLDS", _second),
    "alpha": "FOCAL_LOSS_ALPHA",
    "gamma": "FOCAL_LOSS_GAMMA",
    "loss": ("BBOX_REG_LOSS_TYPE", one_of(LOSSES)),
    "beta": "SMOOTH_L1_LOSS_BETA",
    "threshold": "SCORE_THRESH_TEST",
    "nms": "NMS_THRESH_TEST",
    "candidates": "TOPK_CANDIDATES_TEST",
}
SOLVER: Table = {
    "lr": "BASE_LR",
    "momentum": "MOMENTUM",
    "nesterov": "NESTEROV",
    "weight_decay": "WEIGHT_DECAY",
}


def _sizes(recipe: Recipe, dense: bool) -> None:
    """Anchors."""
    ours = "task.detector" if dense else "task.detector.proposals"
    theirs = "MODEL.ANCHOR_GENERATOR"
    if dense:
        recipe.take(f"{theirs}.SIZES", f"{ours}.scales", lambda levels: len(first(levels)))
        recipe.take(f"{theirs}.SIZES", f"{ours}.anchor_sizes", _octaves)
    else:
        recipe.take(f"{theirs}.SIZES", f"{ours}.anchor_sizes", _one_each)
    recipe.take(f"{theirs}.ASPECT_RATIOS", f"{ours}.ratios", lambda levels: _all_the_same(levels))


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
    recipe.take("SOLVER.IMS_PER_BATCH", "data.batch_size")
    recipe.take("DATALOADER.NUM_WORKERS", "data.workers")


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
    recipe.take_all("SOLVER", "optimizer", SOLVER)
    recipe.take("SOLVER.MAX_ITER", "train.length", lasting("it"))
    recipe.take("SOLVER.CHECKPOINT_PERIOD", "checkpoint.every", lasting("it"))
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
        recipe.take("SOLVER.GAMMA", "schedule.gamma")
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
    recipe.take("SOLVER.WARMUP_METHOD", "schedule.warmup_mode", one_of(modes))
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
    recipe.take("TEST.EVAL_PERIOD", "evaluate.every", lasting("it"))
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


def _unusual(recipe: Recipe) -> None:
    for path, why in UNUSUAL.items():
        if path in recipe.foreign and recipe.foreign(path) != DEFAULTS[path]:
            recipe.leave(path, why)
            recipe.note(f"{path}: what is written there is not done here: {why}")
