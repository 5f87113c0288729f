"""Conversion of PaddleVideo's configs for video classification: SlowFast, TSN, TSM, Video Swin and TimeSformer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node, read_text, shown_path, text_of
from opabinia.migration.foreign_config import ForeignConfig, SourceValue, set_value
from opabinia.migration.recipe import Recipe, to_unit_range

SLOWFAST, SWIN = "ResNetSlowFast", "SwinTransformer3D"

RESNETS: dict[str, tuple[str, str]] = {
    "ResNet": ("resnet{}", "none"),
    "ResNetTSM": ("resnet{}", "tsm"),
    "ResNetTweaksTSN": ("resnet{}d", "none"),
    "ResNetTweaksTSM": ("resnet{}d", "tsm"),
    "PPTSM_MobileNetV2": ("mobilenetv2_100", "tsm"),
    "PPTSM_MobileNetV3": ("mobilenetv3_large_100", "tsm"),
}
"""timm's name of an image network with so many layers, and the shift of its channels, by PaddleVideo's name."""

TIMESFORMERS = {"VisionTransformer": "vit_base_patch16_224", "VisionTransformer_tweaks": "vit_base_patch16_224_miil"}
"""timm's name of the image network with the original's weights, by PaddleVideo's name of a TimeSformer."""

DROPOUTS = {"PPTSM_MobileNetV2": 0.0, "PPTSM_MobileNetV3": 0.2, **dict.fromkeys(TIMESFORMERS, 0.0)}
"""Dropout before the classifier of networks whose heads have no key for it."""

SWINS = {(96, 6): "swin3d_t", (96, 18): "swin3d_s", (128, 18): "swin3d_b"}
"""torchvision's names by the embedding dimension and the depth of the third stage."""

LONG_CYCLE = [{"value": value} for value in ([0.25, 0.7071], [0.5, 0.7071], [0.5, 1], [1, 1])]
"""PaddleVideo's default."""

BY_DATA = "follows from the data or the model"
REASONS = {
    "OPTIMIZER.name": "SGD with momentum",
    "OPTIMIZER.weight_decay.name": "always L2",
    "OPTIMIZER.learning_rate.name": "follows from the other keys",
    "OPTIMIZER.learning_rate.max_epoch": "the key epochs is used",
    "OPTIMIZER.learning_rate.iter_step": "the learning rate changes with every step",
    "MODEL.framework": "the task is video",
    "MODEL.backbone.width_per_group": BY_DATA,
    "MODEL.backbone.bn_norm_type": "see shapes.bn_base_size",
    "MODEL.head": BY_DATA,
    "MODEL.runtime_cfg": "predictions are averaged probabilities",
    "MODEL.backbone.in_channels": BY_DATA,
    "MODEL.backbone.num_seg": "follows from the clips",
    "MODEL.backbone.data_format": "see train.channels_last",
    "MODEL.backbone.drop_path_rate": "torchvision's networks have their own",
    "MODEL.backbone.pretrained": "weights of Paddle cannot be read",
    "INFERENCE": "see opabinia predict",
    "log_interval": "see train.log_every",
    "DATASET.valid_batch_size": "see evaluate.batch_size",
    "DATASET.test_batch_size": "see evaluate.batch_size",
    "PIPELINE.train.decode": "videos are always decoded by PyAV",
    "PIPELINE.train.sample": "clips are sampled by the transform clip",
    "PIPELINE.train.transform": "see the transforms of the recipe",
    "METRIC": "follows from the task",
    "model_name": "the run's name is --name",
    "log_level": "see train.log_every",
    "PIPELINE.train.decode_sampler.name": "always the transform clip",
    "PIPELINE.train.transform.Image2Array": "clips are arrays",
    "PIPELINE.train.transform.PackOutput": "the model slowfast splits its pathways",
    "PIPELINE.train.transform.Normalization.tensor_shape": BY_DATA,
    "PIPELINE.valid": "validation uses center clips and crops",
    "PIPELINE.test": "views have the sizes of training",
    "MULTIGRID.default_batch_size": "PaddleVideo sets it at run time",
    "MULTIGRID.default_temporal_size": "PaddleVideo sets it at run time",
    "MULTIGRID.default_crop_size": "PaddleVideo sets it at run time",
    "MULTIGRID.long_cycle_sampling_rate": "PaddleVideo sets it at run time",
    "DATASET.train.format": "the source is always a list of videos",
    "DATASET.valid.format": "the source is always a list of videos",
    "DATASET.test": "the source is always a list of videos",
}


def convert(file: Path, gpus: int, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of PaddleVideo; the batch size per GPU becomes the total.

    Args:
        file: the YAML file.
        gpus: number of GPUs of the original training.
        overrides: changes such as ``OPTIMIZER.momentum=0.8``; lists of steps cannot be changed.

    Raises:
        ConfigError: the config cannot be read, its model is not supported, or a required value is missing.
    """
    repeated: list[str] = []
    tree = _read(file, overrides, repeated)
    foreign = ForeignConfig("PaddleVideo", str(file), dict(_leaves(tree)), {}, REASONS)
    name = foreign("MODEL.backbone.name")
    if (networks := foreign("MODEL.models")) is not None:
        raise foreign.problem("MODEL.models", f"{show(networks)}: mutual learning of several networks is not supported")
    if name not in (SLOWFAST, SWIN, *RESNETS, *TIMESFORMERS):
        supported = f"supported: {', '.join((SLOWFAST, *RESNETS, SWIN, *TIMESFORMERS))}"
        raise foreign.problem("MODEL.backbone.name", f"{show(name)} is not supported", supported)
    if "PIPELINE.train" not in foreign:
        raise foreign.problem("PIPELINE.train", "this config does not train")
    recipe = Recipe(foreign)
    for text in repeated:
        recipe.note(f"a repeated key: {text}")
    _task(recipe)
    _data(recipe, gpus)
    _optimizer(recipe)
    every, batches = foreign("PRECISEBN.preciseBN_interval"), foreign("PRECISEBN.num_iters_preciseBN", 200)
    if every is not None:
        hook = {"name": "precise_bn", "every": f"{every}ep", "batches": batches}
        recipe.put("hooks.precise_bn", hook, "PRECISEBN.preciseBN_interval", "PRECISEBN.num_iters_preciseBN")
    recipe.put("train.length", f"{foreign.number('epochs')}ep", "epochs")
    recipe.put("evaluate.every", f"{foreign('val_interval', 1)}ep", "val_interval")
    if (period := foreign("save_interval")) is not None:
        recipe.put("checkpoint.every", f"{period}ep", "save_interval")
    recipe.note("validation uses center clips and crops; PaddleVideo's configs use random ones")
    recipe.finish()
    return recipe


def _read(file: Path, overrides: Sequence[str], repeated: list[str]) -> Node:
    problems: list[Problem] = []
    text, place = text_of(file, problems), shown_path(file)
    tree = None if text is None else read_text(text, problems, lambda line: f"{place}:{line}", repeated)
    for text in overrides:
        where = f"command line: {text[:80]}"
        key, equals, value = text.partition("=")
        node = read_text(value, problems, lambda _line, where=where: where) if equals else None  # type: ignore[misc]
        if node is None or not all(key.split(".")):
            problems.append(Problem(where, "", "a change is written as OPTIMIZER.momentum=0.8"))
        else:
            tree = set_value(tree, key.split("."), node)
    if problems or tree is None or not isinstance(tree.value, dict):
        raise ConfigError(problems or Problem(str(file), "", "is not a mapping of keys to values"))
    return tree


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, SourceValue]]:
    """Yield every value with its path; lists of transforms with one name each are treated as mappings, in which a name
    that occurs again gets the number of its position: ``Scale 2``."""
    sections: Any = node.value
    one_name = isinstance(sections, list) and all(
        isinstance(item.value, dict) and len(item.value) == 1 for item in sections
    )
    if one_name and path.endswith("transform"):
        steps: dict[str, Node] = {}
        for number, item in enumerate(sections):
            ((name, child),) = item.value.items()
            steps[f"{name} {number}" if name in steps else name] = child
        sections = steps
    if not isinstance(sections, Mapping) or not sections:
        yield path, SourceValue(node.plain(), node.where)
        return
    for key, child in sections.items():
        yield from _leaves(child, f"{path}.{key}".lstrip("."))


# --- sections ---------------------------------------------------------------------------------------------------------


def _task(recipe: Recipe) -> None:
    foreign, name = recipe.foreign, recipe.foreign("MODEL.backbone.name")
    build = {SLOWFAST: _slowfast, SWIN: _swin, **dict.fromkeys(TIMESFORMERS, _timesformer)}.get(name, _frames)
    recipe.put("task.name", "video")
    recipe.put("task.backbone", build(recipe), "MODEL.backbone.name")
    dropout = foreign("MODEL.head.dropout_rate", foreign("MODEL.head.drop_ratio", DROPOUTS.get(name, 0.5)))
    recipe.put("task.dropout", dropout, "MODEL.head.dropout_rate", "MODEL.head.drop_ratio")
    if smoothing := foreign("MODEL.head.ls_eps"):
        recipe.put("task.loss", {"name": "cross_entropy", "label_smoothing": smoothing}, "MODEL.head.ls_eps")
    for key in ("mean", "std"):
        source_key = f"PIPELINE.train.transform.Normalization.{key}"
        if (value := foreign(source_key)) is not None:
            in_pixels = isinstance(value, list) and any(isinstance(one, float | int) and one > 1 for one in value)
            recipe.put(f"task.{key}", to_unit_range(value) if in_pixels else value, source_key)


def _slowfast(recipe: Recipe) -> dict[str, Any]:
    keys = {"depth": "depth", "alpha": "alpha", "beta": "beta", "fusion_kernel": "fusion_kernel_sz"}
    values = {key: recipe.foreign(f"MODEL.backbone.{source_key}") for key, source_key in keys.items()}
    return {"name": "slowfast", **{key: value for key, value in values.items() if value is not None}}


def _frames(recipe: Recipe) -> dict[str, Any]:
    """Return an image network on the frames of a clip."""
    foreign = recipe.foreign
    model, shift = RESNETS[foreign("MODEL.backbone.name")]
    depth = foreign("MODEL.backbone.depth", foreign("MODEL.backbone.layers", 50))
    if depth not in (18, 34, 50, 101, 152):
        raise foreign.problem("MODEL.backbone.depth", f"{show(depth)} is not supported", "supported: 18 to 152")
    segments = foreign("MODEL.backbone.num_seg", 8)
    if shift == "tsm" and segments != 8:
        message = f"1 / {segments} of the channels would be shifted; tsm shifts an eighth"
        raise foreign.problem("MODEL.backbone.num_seg", message)
    backbone: dict[str, Any] = {"name": "timm", "model": model.format(depth)}
    weights = str(foreign("MODEL.backbone.pretrained") or "")
    if "TSM" in weights or "TSN" in weights:
        recipe.note(f"weights of Paddle cannot be read: set vars.weights to {weights} in another format")
        recipe.put("init.weights", recipe.variable("weights", weights, "MODEL.backbone.pretrained"))
        recipe.put("init.target_prefix", "backbone")
    elif weights:
        recipe.note(f"the weights of ImageNet are timm's, instead of {weights}")
        backbone["pretrained"] = True
    return {"name": "tsn", "backbone": backbone, **({"shift": shift} if shift != "none" else {})}


def _swin(recipe: Recipe) -> dict[str, Any]:
    foreign = recipe.foreign
    where = "MODEL.backbone."
    depths, heads, dim = (foreign(f"{where}{key}") for key in ("depths", "num_heads", "embed_dim"))
    third = depths[2] if isinstance(depths, list) and len(depths) == 4 else None
    model = SWINS.get((dim, third)) if isinstance(dim, int) and isinstance(third, int) else None
    if model is None or heads != [dim // 32 * 2**stage for stage in range(4)]:
        raise foreign.problem(f"{where}depths", f"{show(depths)} of {show(dim)} are not those of Swin T, S or B")
    expected = {
        "patch_size": [2, 4, 4],
        "window_size": [8, 7, 7],
        "mlp_ratio": 4.0,
        "qkv_bias": True,
        "qk_scale": "None",
    }
    expected |= {"patch_norm": True, "drop_rate": 0.0, "attn_drop_rate": 0.0}
    for key, value in expected.items():
        if foreign(f"{where}{key}", value) not in (value, None):
            raise foreign.problem(f"{where}{key}", f"{show(foreign(where + key))} is not {show(value)}")
    if weights := foreign(f"{where}pretrained"):
        recipe.note(f"weights of Paddle cannot be read: training does not start from {weights}; see init")
        recipe.skip(f"{where}pretrained", "weights of Paddle cannot be read")
    return {"name": "torchvision_video", "model": model}


def _timesformer(recipe: Recipe) -> dict[str, Any]:
    foreign = recipe.foreign
    where, size = "MODEL.backbone.", foreign("MODEL.backbone.img_size", 224)
    expected = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4, "epsilon": 1e-6}
    for key, value in {**expected, "attention_type": "divided_space_time"}.items():
        if foreign(f"{where}{key}", value) not in (value, str(value)):
            raise foreign.problem(f"{where}{key}", f"{show(foreign(where + key))} is not {show(value)}")
    backbone: dict[str, Any] = {"name": "timesformer", "model": TIMESFORMERS[foreign(f"{where}name")]}
    if weights := foreign(f"{where}pretrained"):
        recipe.note(f"the weights of ImageNet are timm's, instead of {weights}")
        backbone["pretrained"] = True
    options = {"img_size": size, "qkv_bias": foreign(f"{where}qkv_bias", False)}
    drop_path = foreign(f"{where}drop_path_rate", 0.1)
    return {**backbone, "frames": foreign(f"{where}num_seg", 8), "drop_path": drop_path, "options": options}


def _data(recipe: Recipe, gpus: int) -> None:
    foreign = recipe.foreign
    clip = _clip(foreign, "train")
    train_transforms = [clip, *_crops(recipe)]
    steps = "PIPELINE.train.transform"
    if f"{steps}.RandomFlip" in foreign:
        probability = foreign(f"{steps}.RandomFlip.p")
        foreign(f"{steps}.RandomFlip")
        flip = {"name": "clip_flip", **({"probability": probability} if probability is not None else {})}
        train_transforms.append(flip)
    val_clip = _clip(foreign, "valid" if "PIPELINE.valid" in foreign else "train")
    val_transforms = [{**val_clip, "position": "middle"}, _three_crop(foreign, "valid", train_transforms[1]["size"])]
    keys = [key for key in foreign.keys("PIPELINE.train") if key.endswith(("num_frames", "num_seg", "target_size"))]
    recipe.put("data.train.source", _source(recipe, "train"), "DATASET.train.file_path")
    recipe.put("data.train.transforms", train_transforms, *keys)
    val_sets: list[dict[str, Any]] = [{"source": _source(recipe, "valid"), "transforms": val_transforms}]
    if views := _views(recipe):
        look = [val_transforms[0], _three_crop(foreign, "test", train_transforms[1]["size"])]
        val_sets.append({"prefix": "views", "every": "0ep", "source": views, "transforms": look})
    recipe.put("data.val", val_sets, "DATASET.valid.file_path", "DATASET.test.num_ensemble_views")
    gpu_batch = foreign.number("DATASET.batch_size")
    total = foreign("GRADIENT_ACCUMULATION.global_batch_size")
    if total is None:
        recipe.put("data.batch_size", gpu_batch * gpus, "DATASET.batch_size")
        recipe.note(f"data.batch_size: {gpu_batch} samples per GPU on {gpus} GPUs are {gpu_batch * gpus} in total")
    else:
        recipe.put("data.batch_size", total, "GRADIENT_ACCUMULATION.global_batch_size")
        recipe.put("train.micro_batch_size", gpu_batch, "DATASET.batch_size")
    recipe.put("data.num_workers", foreign("DATASET.num_workers", 0), "DATASET.num_workers")
    if (mix := foreign("MIX.name")) is not None:
        if mix not in ("Mixup", "Cutmix", "VideoMix"):
            raise foreign.problem("MIX.name", f"{show(mix)} is not supported", "supported: Mixup, Cutmix, VideoMix")
        names = ("mixup", "cutmix") if mix == "VideoMix" else (mix.lower(),)
        keys = [f"MIX.{name}_alpha" if mix == "VideoMix" else "MIX.alpha" for name in names]
        mixes = [{"name": name, "alpha": foreign.number(key)} for name, key in zip(names, keys, strict=True)]
        if _number(foreign, "MIX.cutmix_prob", 0.5) != 0.5:
            recipe.skip("MIX.cutmix_prob", "mixup and cutmix are equally frequent")
        recipe.put("data.mix", mixes if len(mixes) == 1 else [{"name": "one_of", "mixes": mixes}], "MIX.name", *keys)


def _clip(foreign: ForeignConfig, split: str) -> dict[str, Any]:
    """Return the transform that samples the frames."""
    sampler = f"PIPELINE.{split}.decode_sampler"
    if sampler in foreign:
        stride = foreign(f"{sampler}.sampling_rate")
        clip = {"name": "clip", "frames": foreign.number(f"{sampler}.num_frames")}
        return clip | ({"stride": stride} if stride is not None else {})
    sampler = f"PIPELINE.{split}.sample"
    segments, length = foreign.number(f"{sampler}.num_seg"), foreign.number(f"{sampler}.seg_len")
    if length > 1 and segments > 1:
        raise foreign.problem(f"{sampler}.seg_len", f"{segments} segments of {length} frames are not supported")
    if length > 1:
        return {"name": "clip", "frames": length, "stride": foreign(f"{sampler}.frame_interval", 1)}
    if foreign(f"{sampler}.linspace_sample"):  # of PyAV's decoder: from as many frames as with a stride of 32 at 30 fps
        return {"name": "clip", "frames": segments, "stride": 32, "fps": 30}
    if foreign(f"{sampler}.dense_sample"):  # from 64 consecutive frames
        return {"name": "clip", "frames": segments, "stride": 64 // segments}
    return {"name": "clip", "frames": segments, "sampling": "uniform"}


def _crops(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the transform that resizes and crops clips of training."""
    foreign, steps = recipe.foreign, "PIPELINE.train.transform"
    if f"{steps}.JitterScale" in foreign:
        sides = [foreign.number(f"{steps}.JitterScale.{end}") for end in ("min_size", "max_size")]
        crop = "RandomCrop" if f"{steps}.RandomCrop" in foreign else "MultiCrop"
        return [{"name": "scale_jitter", "size": foreign.number(f"{steps}.{crop}.target_size"), "scale": sides}]
    if f"{steps}.RandomResizedCrop" in foreign:
        size = foreign(f"{steps}.RandomResizedCrop.target_size")
        last = [key for key in foreign.keys(steps) if key.endswith(".short_size")]
        return [{"name": "RandomResizedCrop", "size": size or foreign.number(last[-1] if last else f"{steps}.Scale")}]
    side = foreign.number(f"{steps}.MultiScaleCrop.target_size")
    size = foreign(f"{steps}.RandomCrop.target_size", side)
    recipe.note("MultiScaleCrop: crops have any size between the largest and the smallest, instead of one of four")
    return [{"name": "scale_jitter", "size": size, "scale": [side, round(side / 0.66)]}]


def _three_crop(foreign: ForeignConfig, split: str, size: int) -> dict[str, Any]:
    """Return the transform that resizes and crops clips of an evaluation."""
    steps = f"PIPELINE.{split}.transform"
    for name in ("CenterCrop", "UniformCrop"):
        size = _number(foreign, f"{steps}.{name}.target_size", size)
    short = _number(foreign, f"{steps}.Scale.short_size", _number(foreign, f"{steps}.JitterScale.min_size", 0))
    return {"name": "three_crop", "size": size, **({"short_side": short} if short > size else {})}


def _views(recipe: Recipe) -> dict[str, Any] | None:
    """Return the source of several views for the test; None if it has one."""
    foreign = recipe.foreign
    clips, crops = (foreign(f"DATASET.test.num_{name}") for name in ("ensemble_views", "spatial_crops"))
    if clips is None and "PIPELINE.test.transform.UniformCrop" in foreign:
        dense = (foreign("PIPELINE.test.sample.seg_len") or 1) > 1
        clips, crops = foreign.number("PIPELINE.test.sample.num_seg") if dense else 1, 3
    for name in ("TenCrop", "GroupFullResSample"):
        if f"PIPELINE.test.transform.{name}" in foreign:
            recipe.note(f"the test's {name} is not converted: see video_views for several views of a video")
    if clips is None or crops is None:
        return None
    return {"name": "video_views", "source": _source(recipe, "test"), "clips": clips, "crops": crops}


def _source(recipe: Recipe, split: str) -> dict[str, Any]:
    foreign = recipe.foreign
    where = f"DATASET.{split}"
    files = {"file": foreign(f"{where}.file_path"), "root": foreign(f"{where}.data_prefix") or None}
    suffix, form = foreign(f"{where}.suffix"), foreign(f"{where}.format")
    if form == "FrameDataset":
        source = {"name": "frame_folders", **files, "pattern": suffix}
    else:
        source = {"name": "video_list", **files, "suffix": suffix}
    return {key: value for key, value in source.items() if value is not None}


def _optimizer(recipe: Recipe) -> None:
    """Set ``optimizer``, ``schedule`` and, for multigrid training, ``shapes``."""
    foreign, rate = recipe.foreign, "OPTIMIZER.learning_rate"
    _update_rule(recipe)
    if foreign(f"{rate}.name") == "PiecewiseDecay":
        return _piecewise(recipe)
    if foreign(f"{rate}.name") == "MultiStepDecay":
        milestones = [f"{epoch}ep" for epoch in foreign.numbers(f"{rate}.milestones")]
        rule = {"name": "multi_step", "milestones": milestones, "gamma": foreign.number(f"{rate}.gamma")}
        recipe.put("schedule", rule, f"{rate}.milestones", f"{rate}.gamma")
        return recipe.put("optimizer.lr", foreign.number(f"{rate}.learning_rate"), f"{rate}.learning_rate")
    steps = foreign.numbers(f"{rate}.steps")
    base = f"{rate}.step_base_lr" if steps else f"{rate}.cosine_base_lr"
    if foreign(f"{rate}.name") == "CustomWarmupCosineStepDecay":
        base = f"{rate}.base_lr"
    lr, gamma = foreign.number(base), _number(foreign, f"{rate}.gamma", 0.1)
    lrs = foreign.numbers(f"{rate}.lrs")
    if not lr:
        raise foreign.problem(base, "must not be 0")
    if any(abs(factor - gamma**power) > 1e-6 * factor for power, factor in enumerate(lrs)):
        raise foreign.problem(f"{rate}.lrs", f"{show(lrs)} are not powers of gamma ({gamma})")
    cycles = _cycles(foreign)
    long_cycle = cycles.get("long_cycle")
    # The first shape has larger batches and, by the same factor, a higher learning rate.
    first_factor = max(1, round(1 / (long_cycle[0][0] * long_cycle[0][1] ** 2))) if long_cycle else 1
    schedule: dict[str, Any] = {"name": "cosine", "warmup_rule": "sliced"}
    if cycles:
        recipe.put("shapes", _shapes(foreign, steps, gamma, cycles), "MULTIGRID.LONG_CYCLE", "MULTIGRID.SHORT_CYCLE")
        schedule = {"name": "constant"}
    elif steps:
        schedule = {"name": "multi_step", "milestones": [f"{step}ep" for step in steps[1:]], "gamma": gamma}
    epochs = _number(foreign, f"{rate}.warmup_epochs", _number(foreign, f"{rate}.warmup_iters", 0))
    start = _number(foreign, f"{rate}.warmup_start_lr", lr * _number(foreign, f"{rate}.warmup_ratio", 1.0))
    warmup = {"warmup": f"{epochs}ep", "warmup_factor": start / (lr * first_factor)}
    recipe.put("schedule", {**schedule, **warmup}, *foreign.keys(rate))
    recipe.put("optimizer.lr", lr, base)


def _update_rule(recipe: Recipe) -> None:
    """Set the optimizer without its learning rate, and gradient clipping."""
    foreign = recipe.foreign
    name = foreign("OPTIMIZER.name", "Momentum")
    if name == "AdamW":
        recipe.put("optimizer.name", "adamw", "OPTIMIZER.name")
        betas = [foreign(f"OPTIMIZER.beta{number}", beta) for number, beta in ((1, 0.9), (2, 0.999))]
        recipe.put("optimizer.betas", betas, "OPTIMIZER.beta1", "OPTIMIZER.beta2")
        recipe.put("optimizer.weight_decay", foreign("OPTIMIZER.weight_decay", 0.01), "OPTIMIZER.weight_decay")
        if names := str(foreign("OPTIMIZER.no_weight_decay_name") or "").split():
            rules = [{"pattern": name, "weight_decay": 0.0} for name in names]
            recipe.put("param_groups.rules", rules, "OPTIMIZER.no_weight_decay_name")
    elif name == "Momentum":
        recipe.put("optimizer.name", "sgd")
        keys = {
            "momentum": ("momentum", 0.9),
            "nesterov": ("use_nesterov", False),
            "weight_decay": ("weight_decay.value", 0.0),
        }
        for key, (source_key, default) in keys.items():
            recipe.put(f"optimizer.{key}", foreign(f"OPTIMIZER.{source_key}", default), f"OPTIMIZER.{source_key}")
    else:
        raise foreign.problem("OPTIMIZER.name", f"{show(name)} is not supported", "supported: Momentum, AdamW")
    if (clip := foreign("OPTIMIZER.grad_clip.name")) is not None:
        if clip != "ClipGradByGlobalNorm":
            raise foreign.problem("OPTIMIZER.grad_clip.name", f"{show(clip)} is not supported: ClipGradByGlobalNorm is")
        norm = foreign.number("OPTIMIZER.grad_clip.value")
        recipe.put("train.step", {"name": "standard", "clip_norm": norm}, "OPTIMIZER.grad_clip.value")


def _piecewise(recipe: Recipe) -> None:
    """Convert learning rates between boundaries, which must have a common factor."""
    foreign, rate = recipe.foreign, "OPTIMIZER.learning_rate"
    boundaries, values = foreign.numbers(f"{rate}.boundaries"), foreign.numbers(f"{rate}.values")
    if len(values) != len(boundaries) + 1 or not values[0]:
        raise foreign.problem(f"{rate}.values", f"{show(values)} for {show(boundaries)}: expected one more")
    gamma = values[1] / values[0] if boundaries else 1.0
    if any(abs(value - values[0] * gamma**power) > 1e-6 * value for power, value in enumerate(values)):
        raise foreign.problem(f"{rate}.values", f"{show(values)} have no common factor")
    milestones = [f"{boundary}ep" for boundary in boundaries]
    schedule = {"name": "multi_step", "milestones": milestones, "gamma": float(f"{gamma:.6g}")}
    recipe.put("schedule", schedule, f"{rate}.boundaries", f"{rate}.values")
    recipe.put("optimizer.lr", values[0], f"{rate}.values")


def _number(foreign: ForeignConfig, path: str, default: float) -> Any:
    """Return the number at a path; ``default`` if it is not set."""
    return foreign.number(path) if path in foreign else default


def _cycles(foreign: ForeignConfig) -> dict[str, Any]:
    """Return ``long_cycle`` and ``short_cycle``; empty without multigrid training."""
    long, short = (bool(foreign(f"MULTIGRID.{name}_CYCLE", False)) for name in ("LONG", "SHORT"))
    path = "MULTIGRID.long_cycle_factors"
    factors = [entry.get("value") for entry in foreign(path, LONG_CYCLE) if isinstance(entry, dict)]
    numbers = [
        [value for value in pair if isinstance(value, int | float) and value]
        for pair in factors
        if isinstance(pair, list)
    ]
    if any(len(pair) != 2 for pair in numbers) or numbers != factors:
        raise foreign.problem(path, f"{show(factors)}: expected pairs of numbers")
    short_factors = foreign("MULTIGRID.short_cycle_factors") or [0.5, 0.7071]
    return (
        {"long_cycle": factors if long else [], "short_cycle": short_factors if short else []} if long or short else {}
    )


def _shapes(foreign: ForeignConfig, steps: Any, gamma: float, cycles: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": "multigrid",
        "frames": foreign.number("PIPELINE.train.decode_sampler.num_frames"),
        "size": foreign.number("PIPELINE.train.transform.MultiCrop.target_size"),
        "milestones": steps[1:],
        "gamma": gamma,
        "epoch_factor": foreign("MULTIGRID.epoch_factor", 1.5),
        "bn_base_size": foreign("MULTIGRID.bn_base_size", 8),
        "drop_empty": True,  # as there
        "evaluations": foreign("MULTIGRID.EVAL_FREQ"),
        **cycles,
    }
