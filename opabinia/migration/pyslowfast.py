"""Conversion of PySlowFast's configs for video classification."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from opabinia.config.errors import show
from opabinia.migration.foreign_config import ForeignConfig, leaves
from opabinia.migration.recipe import Recipe, Reference, lookup
from opabinia.migration.tables.pyslowfast import (
    DEFAULTS,
    IMAGE_MVITS,
    MVIT_VERSIONS,
    MVITS,
    PLAIN_MVIT,
    REASONS,
    REFUSED,
    X3D_DEPTHS,
)
from opabinia.migration.yacs import read

NETWORKS = {
    **dict.fromkeys(("SlowFast", "PTVSlowFast"), ("slowfast",)),
    **dict.fromkeys(("ResNet", "PTVResNet"), ("slow", "c2d", "i3d", "slow_c2d")),
    "ResNet_nopool": ("c2d",),
    **dict.fromkeys(("X3D", "PTVX3D"), ("x3d",)),
    **dict.fromkeys(("MViT", "PTVMViT"), ("mvit",)),
    "PTVCSN": ("csn",),
}
"""The values of ``MODEL.ARCH`` that are supported, by ``MODEL.MODEL_NAME``."""

STAGE_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Blocks of the stages of a ResNet, by its depth."""

DATASETS = ("kinetics", "ssv2", "charades", IMAGES := "imagenet")


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of PySlowFast.

    Args:
        file: the YAML file; ``TRAIN.BATCH_SIZE`` is the total of a machine.
        overrides: changes such as ``SOLVER.BASE_LR=0.05``.

    Raises:
        ConfigError: the config cannot be read, or it is for another task or network than are supported.
    """
    repeated: list[str] = []
    # null is allowed for every key; there it means that there is no value.
    written = {key: value for key, value in leaves(read(file, overrides, repeated)) if value.value is not None}
    foreign = ForeignConfig("PySlowFast", str(file), written, DEFAULTS, REASONS)
    if str(foreign("TRAIN.DATASET")).removeprefix("ptv") not in DATASETS:
        message = f"{show(foreign('TRAIN.DATASET'))} is not supported"
        raise foreign.problem("TRAIN.DATASET", message, f"supported: {', '.join(DATASETS)}")
    if foreign("MODEL.MODEL_NAME") == "ContrastiveModel":
        raise foreign.problem("MODEL.MODEL_NAME", "contrastive pretraining on videos is not supported")
    for key, expected, message in REFUSED:
        if (value := foreign(key)) != expected:
            raise foreign.problem(key, f"{show(value)}: {message}")
    recipe = Recipe(foreign)
    for text in repeated:
        recipe.note(f"a repeated key: {text}")
    if foreign("TRAIN.DATASET") == IMAGES:
        recipe.put("task.name", "classification")
        recipe.put("task.backbone", _image_backbone(recipe), "MODEL.MODEL_NAME", "MODEL.ARCH")
        _image_data(recipe)
    else:
        recipe.put("task.name", "video")
        _backbone(recipe)
        _data(recipe)
    _task(recipe)
    _loading(recipe)
    _optimizer(recipe)
    _run(recipe)
    recipe.finish()
    return recipe


# --- the network ------------------------------------------------------------------------------------------------------


def _backbone(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, arch = foreign("MODEL.MODEL_NAME"), foreign("MODEL.ARCH")
    if arch not in NETWORKS.get(name, ()):
        known = ", ".join(dict.fromkeys(known for names in NETWORKS.values() for known in names))
        raise foreign.problem("MODEL.ARCH", f"{show(arch)} of {show(name)} is not supported", f"supported: {known}")
    for key, expected in (("SPATIAL_STRIDES", [1, 2, 2, 2]), ("SPATIAL_DILATIONS", [1, 1, 1, 1])):
        if any(
            value != plain for stage, plain in zip(foreign(f"RESNET.{key}"), expected, strict=False) for value in stage
        ):
            raise foreign.problem(f"RESNET.{key}", f"{show(foreign(f'RESNET.{key}'))} are not {expected}")
    build = {"slowfast": _slowfast, "x3d": _x3d, "mvit": _mvit, "csn": _csn}.get(arch, _resnet)
    recipe.put("task.backbone", build(recipe), "MODEL.MODEL_NAME", "MODEL.ARCH")
    _non_local(recipe)
    if arch != "mvit":
        recipe.put("task.backbone.zero_init_last", foreign("RESNET.ZERO_INIT_FINAL_BN"), "RESNET.ZERO_INIT_FINAL_BN")


def _non_local(recipe: Recipe) -> None:
    """Set the non-local blocks of the first pathway; the fast one has none in PySlowFast's configs."""
    foreign, location, kind = recipe.foreign, "NONLOCAL.LOCATION", "NONLOCAL.INSTANTIATION"
    stages = foreign(location)
    if not any(blocks for stage in stages for blocks in stage):
        return
    takes_blocks = recipe.config["task"]["backbone"]["name"] in ("slow", "c2d", "i3d", "slowfast")
    if not takes_blocks or any(blocks for stage in stages for blocks in stage[1:]):
        raise foreign.problem(location, f"{show(stages)}: non-local blocks are for ResNets' first pathway")
    recipe.put("task.backbone.non_local", [stage[0] for stage in stages], location)
    recipe.convert(kind, "task.backbone.non_local_type", lookup({name: name for name in ("softmax", "dot_product")}))


def _slowfast(recipe: Recipe) -> dict[str, Any]:
    foreign, depth = recipe.foreign, _depth(recipe.foreign)
    keys = {"alpha": "ALPHA", "beta": "BETA_INV", "fusion_kernel": "FUSION_KERNEL_SZ"}
    backbone: dict[str, Any] = {"name": "slowfast", "depth": depth}
    backbone |= {key: foreign(f"SLOWFAST.{source}") for key, source in keys.items()}
    backbone["fusion_ratio"] = foreign("SLOWFAST.FUSION_CONV_CHANNEL_RATIO")
    for key, counts in zip(("temporal_blocks", "fast_temporal_blocks"), _temporal_blocks(foreign), strict=True):
        if counts != list(STAGE_DEPTHS[depth]) or "temporal_blocks" in backbone:
            backbone[key] = counts
    return backbone


def _temporal_blocks(foreign: ForeignConfig) -> tuple[list[int], list[int]]:
    """Return the number of blocks with temporal kernels of each stage, of the slow and of the fast pathway."""
    stages = foreign("RESNET.NUM_BLOCK_TEMP_KERNEL")
    if len(stages) != 4 or any(len(stage) not in (1, 2) for stage in stages):
        raise foreign.problem("RESNET.NUM_BLOCK_TEMP_KERNEL", f"{show(stages)}: expected four stages")
    depths = STAGE_DEPTHS[_depth(foreign)]
    slow, fast = (
        [min(int(stage[pathway]), depth) for stage, depth in zip(stages, depths, strict=True)] for pathway in (0, -1)
    )
    return slow, fast


def _resnet(recipe: Recipe) -> dict[str, Any]:
    foreign = recipe.foreign
    arch, depth = foreign("MODEL.ARCH"), _depth(foreign)
    temporal, _ = _temporal_blocks(foreign)
    if temporal != list(STAGE_DEPTHS[depth]) and arch in ("slow", "i3d"):
        raise foreign.problem("RESNET.NUM_BLOCK_TEMP_KERNEL", f"{show(temporal)}: {arch} has temporal kernels in all")
    if arch == "slow_c2d" or foreign("MODEL.MODEL_NAME") == "ResNet_nopool":
        return {"name": "c2d", "depth": depth, "temporal_pool": False}
    return {"name": arch, "depth": depth}


def _depth(foreign: ForeignConfig) -> int:
    if (depth := foreign("RESNET.DEPTH")) not in (50, 101):
        raise foreign.problem("RESNET.DEPTH", f"{show(depth)} is not supported", "supported: 50, 101")
    return int(depth)


def _csn(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": "resnet3d",
        "widths": [64, 128, 256, 512],
        "blocks": list(STAGE_DEPTHS[_depth(recipe.foreign)]),
        "block": "depthwise",
        "temporal_strides": [1, 2, 2, 2],
        "stem_kernel": [3, 7, 7],
        "stem_pool": True,
    }


def _x3d(recipe: Recipe) -> dict[str, Any]:
    foreign = recipe.foreign
    factors = tuple(foreign(f"X3D.{name}_FACTOR") for name in ("WIDTH", "DEPTH", "BOTTLENECK"))
    if factors[0] != 2.0 or factors[1] not in X3D_DEPTHS or factors[2] != 2.25:
        raise foreign.problem("X3D.DEPTH_FACTOR", f"{show(list(factors))} are not the factors of X3D XS to L")
    return {"name": "x3d", "size": X3D_DEPTHS[factors[1]]}


def _mvit(recipe: Recipe) -> dict[str, Any]:
    """Return torchvision's MViT with these values, whose weights can be downloaded, or one of its blocks."""
    foreign = recipe.foreign
    if (source := foreign("MVIT.POOL_KV_STRIDE")) or foreign("MVIT.PATCH_2D"):
        key = "MVIT.POOL_KV_STRIDE" if source else "MVIT.PATCH_2D"
        raise foreign.problem(key, f"{show(foreign(key))}: MViTs of clips have an adaptive stride")
    for key, expected in PLAIN_MVIT.items():
        if (value := foreign(key)) != expected:
            raise foreign.problem(key, f"{show(value)} is not supported", f"supported: {show(expected)}")
    relative, adaptive = foreign("MVIT.REL_POS_SPATIAL"), "MVIT.POOL_KV_STRIDE_ADAPTIVE"
    if (kv_stride := foreign(adaptive) or [1, 1, 1]) not in [[1, side, side] for side in (1, 2, 4, 8, 16)]:
        raise foreign.problem(adaptive, f"{show(kv_stride)} is not supported", "such as [1, 8, 8]")
    blocks = _mvit_stages(foreign, all_blocks=relative)
    for model, values in MVITS.items():
        if all(foreign(key) == value for key, value in values.items()):
            return {"name": "torchvision_video", "model": model}
    for key, expected in MVIT_VERSIONS[relative].items():
        if (value := foreign(key)) != expected:
            message = f"{show(value)} with MVIT.REL_POS_SPATIAL {show(relative)} is not supported"
            raise foreign.problem(key, message, f"supported: {show(expected)}")
    size = foreign("DATA.TRAIN_CROP_SIZE")
    return {
        "name": "mvit",
        "clip": [foreign("DATA.NUM_FRAMES"), size, size],
        "version": 2 if relative else 1,
        "width": foreign("MVIT.EMBED_DIM"),
        "heads": foreign("MVIT.NUM_HEADS"),
        "blocks": blocks,
        "expansion": "attention" if foreign("MVIT.DIM_MUL_IN_ATT") else "mlp",
        "kv_stride": kv_stride[-1],
        "pool_kernel": foreign("MVIT.POOL_KVQ_KERNEL"),
        "patch": foreign("MVIT.PATCH_KERNEL"),
        "patch_stride": foreign("MVIT.PATCH_STRIDE"),
        "pool": "mean" if foreign("MVIT.USE_MEAN_POOLING") else "token",
        "drop_path": foreign("MVIT.DROPPATH_RATE"),
    }


def _mvit_stages(foreign: ForeignConfig, *, all_blocks: bool) -> list[int]:
    """Return the number of blocks of each stage; ``all_blocks``: queries are pooled in all of them."""
    depth, doubled = int(foreign("MVIT.DEPTH")), foreign("MVIT.DIM_MUL")
    first = [pair[0] for pair in doubled if isinstance(pair, list) and pair and isinstance(pair[0], int)]
    expected = {
        "MVIT.DIM_MUL": [[block, 2.0] for block in first],
        "MVIT.HEAD_MUL": doubled,
        "MVIT.POOL_Q_STRIDE": [
            [block, 1, *[2 if block in first else 1] * 2] for block in (range(depth) if all_blocks else first)
        ],
    }
    for key, values in expected.items():
        if (value := foreign(key)) != values:
            raise foreign.problem(key, f"{show(value)}: stages double channels and heads and halve height and width")
    return [end - start for start, end in pairwise([0, *first, depth])]


def _task(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.convert("MODEL.DROPOUT_RATE", "task.dropout")
    losses = {"cross_entropy": "cross_entropy", "soft_cross_entropy": "cross_entropy"}
    losses |= dict.fromkeys(("bce", "bce_logit"), "binary_cross_entropy")
    recipe.convert("MODEL.LOSS_FUNC", "task.loss.name", lookup(losses))
    if foreign("MIXUP.ENABLE"):
        recipe.convert("MIXUP.LABEL_SMOOTH_VALUE", "task.loss.label_smoothing")
    if foreign("TRAIN.DATASET") != IMAGES:
        recipe.convert("DATA.ENSEMBLE_METHOD", "task.merge", lookup({"sum": "mean", "max": "max"}))
    recipe.convert("DATA.MEAN", "task.mean")
    recipe.convert("DATA.STD", "task.std")
    if weights := foreign("TRAIN.CHECKPOINT_FILE_PATH"):
        recipe.put("init.weights", recipe.variable("weights", weights, "TRAIN.CHECKPOINT_FILE_PATH"))
        recipe.put("init.target_prefix", "backbone")
        if foreign("DATA.REVERSE_INPUT_CHANNEL"):
            recipe.put("init.channel_order", "bgr", "DATA.REVERSE_INPUT_CHANNEL")
        foreign("TRAIN.CHECKPOINT_TYPE")


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = str(foreign("TRAIN.DATASET")).removeprefix("ptv")
    uniform = name == "ssv2"
    clip: dict[str, Any] = {"name": "clip", "frames": foreign("DATA.NUM_FRAMES")}
    clip |= (
        {"sampling": "uniform"}
        if uniform
        else {"stride": foreign("DATA.SAMPLING_RATE"), "fps": foreign("DATA.TARGET_FPS")}
    )
    if uniform:
        recipe.skip("DATA.SAMPLING_RATE", "a frame is taken from each segment of the video")
    look = [{**clip, "position": "middle"}, {"name": "three_crop", "size": foreign("DATA.TEST_CROP_SIZE")}]
    clips, crops = foreign("TEST.NUM_ENSEMBLE_VIEWS"), foreign("TEST.NUM_SPATIAL_CROPS")
    views = {"name": "video_views", "source": _source(recipe, name, "val"), "clips": clips, "crops": crops}
    keys = ("DATA.NUM_FRAMES", "DATA.TRAIN_CROP_SIZE")
    recipe.put("data.train.source", _source(recipe, name, "train"), "TRAIN.DATASET")
    recipe.put("data.train.transforms", [clip, *_augmentation(recipe)], *keys)
    val = {"source": _source(recipe, name, "val"), "transforms": look}
    recipe.put("data.val", [val, {"prefix": "views", "every": "0ep", "source": views, "transforms": look}])
    recipe.note("validation uses the middle clip and crop; PySlowFast's uses random ones")


def _loading(recipe: Recipe) -> None:
    """Set batches, workers, repeated augmentation, mixup and cutmix."""
    foreign = recipe.foreign
    shards = foreign("NUM_SHARDS")
    recipe.put("data.batch_size", foreign.number("TRAIN.BATCH_SIZE") * shards, "TRAIN.BATCH_SIZE", "NUM_SHARDS")
    recipe.convert("DATA_LOADER.NUM_WORKERS", "data.num_workers")
    if foreign("AUG.ENABLE") and (repeats := foreign("AUG.NUM_SAMPLE")) > 1:
        recipe.put("data.sampler", {"name": "repeated", "num_repeats": repeats}, "AUG.NUM_SAMPLE")
    if foreign("MIXUP.ENABLE") and foreign("MIXUP.PROB"):
        alphas = {"mixup": foreign("MIXUP.ALPHA"), "cutmix": foreign("MIXUP.CUTMIX_ALPHA")}
        mixes = [{"name": mix, "alpha": alpha} for mix, alpha in alphas.items() if alpha]
        recipe.put("data.mix", [{"name": "one_of", "mixes": mixes}], "MIXUP.ALPHA", "MIXUP.CUTMIX_ALPHA")
        for key in ("MIXUP.PROB", "MIXUP.SWITCH_PROB"):
            if foreign(key) != {"MIXUP.PROB": 1.0, "MIXUP.SWITCH_PROB": 0.5}[key]:
                recipe.skip(key, "every batch is mixed, by mixup and cutmix in turn at random")


def _source(recipe: Recipe, name: str, split: str) -> dict[str, Any]:
    """Return the list of a split in the folder that PySlowFast calls ``PATH_TO_DATA_DIR``."""
    foreign = recipe.foreign
    root = recipe.variable("root", foreign("DATA.PATH_TO_DATA_DIR") or f"path/to/{name}", "DATA.PATH_TO_DATA_DIR")
    videos = recipe.variable("videos", foreign("DATA.PATH_PREFIX") or f"path/to/{name}/videos", "DATA.PATH_PREFIX")
    if name == "ssv2":
        file = f"{root}/something-something-v2-{'validation' if split == 'val' else split}.json"
        labels = Reference(f"{root}/something-something-v2-labels.json")
        return {"name": "video_list", "file": Reference(file), "root": videos, "class_file": labels}
    source = {"name": "video_list", "file": Reference(f"{root}/{split}.csv"), "root": videos}
    if name == "charades":
        recipe.note("charades: train.csv and val.csv have lines such as 'v/46GP8.mp4 92,147'; PySlowFast lists frames")
        return {**source, "multi_label": True}
    if (separator := foreign("DATA.PATH_LABEL_SEPARATOR")) != " ":
        source["separator"] = separator
    return source


def _augmentation(recipe: Recipe) -> list[Any]:
    foreign = recipe.foreign
    size, area = foreign("DATA.TRAIN_CROP_SIZE"), foreign("DATA.TRAIN_JITTER_SCALES_RELATIVE")
    augments = foreign("AUG.ENABLE")
    if area:
        ratio = foreign("DATA.TRAIN_JITTER_ASPECT_RELATIVE")
        steps: list[Any] = [
            {"name": "RandomResizedCrop", "size": size, "scale": area, **({"ratio": ratio} if ratio else {})}
        ]
        if augments:
            steps[0]["interpolation"] = foreign("AUG.INTERPOLATION")
        recipe.skip("DATA.TRAIN_JITTER_SCALES", "crops have an area relative to the frame")
    else:
        steps = [{"name": "scale_jitter", "size": size, "scale": foreign("DATA.TRAIN_JITTER_SCALES")}]
        if foreign("DATA.INV_UNIFORM_SAMPLE"):
            steps[0]["inverse_uniform"] = True
    if foreign("DATA.RANDOM_FLIP"):
        steps.append("clip_flip")
    if not augments:
        return steps
    if match := re.match(r"rand-m(\d+)(?:-n(\d+))?", str(foreign("AUG.AA_TYPE"))):
        # timm's magnitudes go up to 10, torchvision's to 30.
        steps.append({"name": "RandAugment", "num_ops": int(match[2] or 2), "magnitude": 3 * int(match[1])})
        recipe.note("RandAugment: torchvision's, with a magnitude of 30 for timm's 10")
    elif foreign("AUG.AA_TYPE"):
        raise foreign.problem("AUG.AA_TYPE", f"{show(foreign('AUG.AA_TYPE'))} is not supported; such as rand-m7-n4")
    return [*steps, *_erasing(recipe)]


def _image_backbone(recipe: Recipe) -> dict[str, Any]:
    """Return timm's network of images with these values."""
    foreign = recipe.foreign
    name, arch = foreign("MODEL.MODEL_NAME"), foreign("MODEL.ARCH")
    if (name, arch) == ("ResNet", "2d"):
        return {"name": "timm", "model": f"resnet{_depth(foreign)}", "options": {"zero_init_last": True}}
    for model, values in IMAGE_MVITS.items() if (name, arch) == ("MViT", "mvit") else ():
        if all(foreign(key) == value for key, value in values.items()):
            for key in foreign.keys("MVIT"):
                foreign(key)
            options = {"options": {"global_pool": "avg"}} if "vit_" in model[:4] else {}
            return {"name": "timm", "model": model, "drop_path": foreign("MVIT.DROPPATH_RATE"), **options}
    supported = f"supported: ResNets and MViTs with the values of {', '.join(IMAGE_MVITS)}"
    raise foreign.problem("MODEL.ARCH", f"{show(arch)} of {show(name)} with these values is not supported", supported)


def _image_data(recipe: Recipe) -> None:
    """Set folders of images and their transforms: those of ResNets, or with ``AUG.ENABLE`` timm's."""
    foreign = recipe.foreign
    size, augments = foreign("DATA.TRAIN_CROP_SIZE"), foreign("AUG.ENABLE")
    root = recipe.variable("root", foreign("DATA.PATH_TO_DATA_DIR") or "path/to/imagenet", "DATA.PATH_TO_DATA_DIR")
    crop = {"name": "RandomResizedCrop", "size": size, "interpolation": "bilinear"}
    look = {"name": "resize_and_crop", "size": size, "crop": 0.875, "interpolation": "bilinear"}
    if area := foreign("DATA.TRAIN_JITTER_SCALES_RELATIVE"):
        crop |= {"scale": area, "ratio": foreign("DATA.TRAIN_JITTER_ASPECT_RELATIVE") or [0.75, 4 / 3]}
    steps: list[dict[str, Any]] = [crop, {"name": "RandomHorizontalFlip"}]
    if augments:
        crop["interpolation"], look["interpolation"] = foreign("AUG.INTERPOLATION"), "bicubic"
        steps += [{"name": "timm_policy", "policy": policy}] if (policy := foreign("AUG.AA_TYPE")) else []
        steps += _erasing(recipe)
    else:
        steps.append({"name": "pca_lighting"})
    if (tested := foreign("DATA.TEST_CROP_SIZE")) != size:
        recipe.note(
            f"validation crops {size} pixels of {round(size / 0.875)}; PySlowFast resizes to {size} for {tested}"
        )
    for split, transforms in (("train", steps), ("val", [look])):
        source = {"name": "image_folder", "root": Reference(f"{root}/{split}")}
        recipe.put(f"data.{split}", {"source": source, "transforms": transforms}, "DATA.TRAIN_CROP_SIZE")


def _erasing(recipe: Recipe) -> list[dict[str, Any]]:
    if not (probability := recipe.foreign("AUG.RE_PROB")):
        return []
    recipe.note("RandomErasing: rectangles are gray; PySlowFast's are noise")
    return [{"name": "RandomErasing", "p": probability, "scale": [0.02, 0.333], "value": 116}]


# --- optimization -----------------------------------------------------------------------------------------------------


def _optimizer(recipe: Recipe) -> None:
    foreign = recipe.foreign
    method = foreign("SOLVER.OPTIMIZING_METHOD")
    if method not in ("sgd", "adam", "adamw"):
        raise foreign.problem("SOLVER.OPTIMIZING_METHOD", f"{show(method)} is not supported", "sgd, adam, adamw")
    recipe.put("optimizer.name", method, "SOLVER.OPTIMIZING_METHOD")
    lr = foreign.number("SOLVER.BASE_LR")
    if not lr:
        raise foreign.problem("SOLVER.BASE_LR", "must not be 0")
    shards = foreign("NUM_SHARDS") if foreign("SOLVER.BASE_LR_SCALE_NUM_SHARDS") else 1
    recipe.put("optimizer.lr", lr * shards, "SOLVER.BASE_LR", "SOLVER.BASE_LR_SCALE_NUM_SHARDS")
    recipe.convert("SOLVER.WEIGHT_DECAY", "optimizer.weight_decay")
    if method == "sgd":
        recipe.convert("SOLVER.MOMENTUM", "optimizer.momentum")
        recipe.convert("SOLVER.NESTEROV", "optimizer.nesterov")
    else:
        recipe.convert("SOLVER.BETAS", "optimizer.betas")
        recipe.skip("SOLVER.MOMENTUM", f"{method} has none")
    rules: list[dict[str, Any]] = [{"kind": "norm", "weight_decay": foreign("BN.WEIGHT_DECAY")}]
    if foreign("SOLVER.ZERO_WD_1D_PARAM"):
        rules = [{"kind": "1d", "weight_decay": 0.0}]
    recipe.put("param_groups.rules", rules, "BN.WEIGHT_DECAY", "SOLVER.ZERO_WD_1D_PARAM")
    if foreign("SOLVER.LAYER_DECAY") != 1:
        recipe.convert("SOLVER.LAYER_DECAY", "param_groups.layer_decay")
    _schedule(recipe, lr * shards)


def _schedule(recipe: Recipe, lr: float) -> None:
    foreign = recipe.foreign
    long, short = foreign("MULTIGRID.LONG_CYCLE"), foreign("MULTIGRID.SHORT_CYCLE")
    policy = foreign("SOLVER.LR_POLICY")
    schedule: dict[str, Any] = {"name": "constant"}
    first_factor = 1.0
    if policy == "cosine":
        rule = {} if foreign("SOLVER.COSINE_AFTER_WARMUP") else {"warmup_rule": "sliced"}
        schedule = {"name": "cosine", **rule, "end": foreign("SOLVER.COSINE_END_LR") / foreign("SOLVER.BASE_LR")}
    elif policy == "steps_with_relative_lrs":
        steps, rates = foreign.numbers("SOLVER.STEPS"), foreign.numbers("SOLVER.LRS")
        gamma = rates[1] / rates[0] if len(rates) > 1 and rates[0] else 0.1
        if len(rates) < len(steps) or any(abs(rate - gamma**n) > 1e-6 for n, rate in enumerate(rates[: len(steps)])):
            raise foreign.problem("SOLVER.LRS", f"{show(rates)} are not powers of one factor, one for each of STEPS")
        if long or short:
            factors = foreign("MULTIGRID.LONG_CYCLE_FACTORS") if long else []
            first_factor = round(1 / (factors[0][0] * factors[0][1] ** 2)) if factors else 1.0
            recipe.put("shapes", _multigrid(foreign, steps, gamma, factors), *foreign.keys("MULTIGRID"))
        else:
            milestones = [f"{step}ep" for step in steps[1:]]
            schedule = {"name": "multi_step", "milestones": milestones, "gamma": gamma, "warmup_rule": "sliced"}
    else:
        raise foreign.problem(
            "SOLVER.LR_POLICY", f"{show(policy)} is not supported", "supported: cosine, steps_with_relative_lrs"
        )
    if warmup := foreign("SOLVER.WARMUP_EPOCHS"):
        start = foreign("SOLVER.WARMUP_START_LR") / (foreign("SOLVER.BASE_LR") * first_factor)
        schedule |= {"warmup": f"{warmup:g}ep", "warmup_factor": float(f"{min(start, 1.0):.6g}")}
    recipe.put("schedule", schedule, "SOLVER.LR_POLICY", "SOLVER.WARMUP_EPOCHS", "SOLVER.WARMUP_START_LR")


def _multigrid(foreign: ForeignConfig, steps: Sequence[Any], gamma: float, factors: Sequence[Any]) -> dict[str, Any]:
    short = foreign("MULTIGRID.SHORT_CYCLE_FACTORS") if foreign("MULTIGRID.SHORT_CYCLE") else []
    return {
        "name": "multigrid",
        "frames": foreign("DATA.NUM_FRAMES"),
        "size": foreign("DATA.TRAIN_CROP_SIZE"),
        "milestones": list(steps[1:]),
        "gamma": gamma,
        "epoch_factor": foreign("MULTIGRID.EPOCH_FACTOR"),
        "bn_base_size": foreign("MULTIGRID.BN_BASE_SIZE"),
        "long_cycle": [list(pair) for pair in factors],
        "short_cycle": list(short),
        "drop_empty": True,  # as there
        "evaluations": foreign("MULTIGRID.EVAL_FREQ") if factors else None,
    }


def _run(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.put("train.length", f"{foreign.number('SOLVER.MAX_EPOCH')}ep", "SOLVER.MAX_EPOCH")
    recipe.put("evaluate.every", f"{foreign('TRAIN.EVAL_PERIOD')}ep", "TRAIN.EVAL_PERIOD")
    recipe.put("checkpoint.every", f"{foreign('TRAIN.CHECKPOINT_PERIOD')}ep", "TRAIN.CHECKPOINT_PERIOD")
    if foreign("BN.USE_PRECISE_STATS"):
        every, batches = f"{foreign('TRAIN.EVAL_PERIOD')}ep", foreign("BN.NUM_BATCHES_PRECISE")
        hook = {"name": "precise_bn", "every": every, "batches": batches}
        recipe.put("hooks.precise_bn", hook, "BN.USE_PRECISE_STATS", "BN.NUM_BATCHES_PRECISE")
    if foreign("MODEL.DETACH_FINAL_FC"):
        recipe.put("hooks.freeze", {"name": "freeze", "pattern": "^backbone"}, "MODEL.DETACH_FINAL_FC")
    if foreign("BN.NORM_TYPE") == "sync_batchnorm" and "shapes" not in recipe.config:
        recipe.put("train.sync_batch_norm", True, "BN.NORM_TYPE")
        recipe.skip("BN.NUM_SYNC_DEVICES", "norms are synchronized over all ranks")
    if foreign("MODEL.ACT_CHECKPOINT"):
        recipe.put("train.activation_checkpointing", True, "MODEL.ACT_CHECKPOINT")
    if foreign("TRAIN.MIXED_PRECISION"):
        recipe.put("train.precision", "fp16", "TRAIN.MIXED_PRECISION")
    if clip := foreign("SOLVER.CLIP_GRAD_L2NORM"):
        recipe.put("train.step", {"name": "standard", "clip_norm": clip}, "SOLVER.CLIP_GRAD_L2NORM")
    recipe.convert("RNG_SEED", "seed")
