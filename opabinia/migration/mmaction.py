"""Conversion of MMAction2's configs of action recognition, of both generations. They are parsed, not executed.

For options that a config does not set, the recipe gets the defaults of MMAction2's classes
(:data:`opabinia.migration.tables.mmaction.CLASSES`), not Opabinia's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import show
from opabinia.migration import openmmlab
from opabinia.migration.mmaction_data import Options, convert_data
from opabinia.migration.openmmlab_training import (
    build_recipe,
    convert_training,
    convert_weights,
    modernize,
    refuse_unread,
    report_malformed,
    with_pixel_stats,
)
from opabinia.migration.recipe import Recipe, to_unit_range
from opabinia.migration.tables.mmaction import (
    ALLOWED,
    CHANGEABLE,
    CLASSES,
    DEFAULTS,
    HEADS,
    I3D_INFLATE,
    MVITS,
    PATHWAY,
    REASONS,
    SWIN_DROP_PATH,
    SWINS,
    X3D_DEPTHS,
)
from opabinia.migration.tables.mmpretrain import NETWORKS, SIZE_KEYS

BACKBONE, HEAD = "model.backbone", "model.cls_head"


def convert(file: Path, gpus: int | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of MMAction2; the batch size per GPU becomes the total.

    Args:
        file: the Python file.
        gpus: number of GPUs of the original training; None: see
            :func:`opabinia.migration.openmmlab_training.convert_batch_size`.
        overrides: changes such as ``optim_wrapper.optimizer.lr=0.01``.

    Raises:
        ConfigError: the config cannot be read, does not train a recognizer, or has a value that is not supported.
    """
    with report_malformed(file):
        tree = with_pixel_stats(modernize(openmmlab.read(file, overrides)))
        recipe = build_recipe("mmaction", file, tree, DEFAULTS, REASONS)
        foreign = recipe.foreign
        if (kind := foreign("model.type")) not in ("Recognizer2D", "Recognizer3D"):
            raise foreign.problem("model.type", f"{show(kind)} is not supported", "supported: Recognizer2D, 3D")
        recipe.put("task.name", "video")
        recipe.put("task.backbone", _backbone(recipe), f"{BACKBONE}.type")
        if "train_dataloader.dataset" not in foreign:
            raise foreign.problem("train_dataloader", "this config does not train")
        _head(recipe)
        for key in ("mean", "std"):
            recipe.convert(f"data_preprocessor.{key}", f"task.{key}", to_unit_range)
        for key in ("data_preprocessor.to_rgb", "data_preprocessor.to_bgr"):
            if foreign(key, False):
                raise foreign.problem(key, "networks for BGR frames are not supported")
        _weights(recipe)
        _blending(recipe)
        refuse_unread(recipe, "model", ALLOWED)
        repeats = convert_data(recipe)
        convert_training(recipe, gpus)
        recipe.config["data"]["batch_size"] *= repeats
        _constructor(recipe)
    recipe.finish()
    return recipe


# --- model ------------------------------------------------------------------------------------------------------------


def _backbone(recipe: Recipe) -> Options:
    foreign = recipe.foreign
    kind = str(foreign(f"{BACKBONE}.type"))
    library, _, name = kind.rpartition(".")
    if library in ("timm", "torchvision", "mmcls", "mmpretrain"):
        return _image_network(recipe, library, name)
    if kind not in _BUILDERS:
        known = ", ".join([*_BUILDERS, "timm.NAME"])
        raise foreign.problem(f"{BACKBONE}.type", f"{show(kind)} is not supported", f"supported: {known}")
    options = {key: foreign.untyped(f"{BACKBONE}.{key}", value) for key, value in CLASSES[kind].items()}
    for key in ("depth", "arch"):
        options.setdefault(key, foreign(f"{BACKBONE}.{key}"))
    for key, value in CLASSES[kind].items():
        if key not in CHANGEABLE[kind] and options[key] != value:
            recipe.refuse(f"{BACKBONE}.{key}", f"{show(options[key])} is not supported", f"supported: {show(value)}")
    return _BUILDERS[kind](recipe, options)


def _image_network(recipe: Recipe, library: str, name: str) -> Options:
    """Return an image network of another library on the frames of a clip."""
    foreign = recipe.foreign
    sizes = [foreign.untyped(f"{BACKBONE}.{key}", default) for key, default in SIZE_KEYS.get(name, ())]
    model: Any = NETWORKS.get(" ".join(map(str, (name, *sizes)))) if library.startswith("mm") else name
    if model is None or (library == "torchvision" and name not in NETWORKS.values()):
        recipe.note(f"{BACKBONE}: no equivalent of {library}.{name} is known: set vars.model to one of timm's models")
        model = recipe.variable("model", name, f"{BACKBONE}.type")
    for path in foreign.keys(BACKBONE):
        foreign.untyped(path)
    pretrained = {"pretrained": True} if foreign.untyped(f"{BACKBONE}.pretrained") is True else {}
    return {"name": "tsn", "backbone": {"name": "timm", "model": model, **pretrained}}


def _depth(recipe: Recipe, options: Options, *supported: int) -> int:
    if options["depth"] not in supported:
        message = f"{show(options['depth'])} is not supported"
        raise recipe.foreign.problem(f"{BACKBONE}.depth", message, f"supported: {show(list(supported))}")
    return int(options["depth"])


def _frames(recipe: Recipe, options: Options) -> Options:
    """Return a ResNet or MobileNet on the frames of a clip: TSN, TSM."""
    if recipe.foreign(f"{BACKBONE}.type") == "MobileNetV2TSM":
        model = "mobilenetv2_100"
    else:
        model = f"resnet{_depth(recipe, options, 18, 34, 50, 101, 152)}"
    shift = {"shift": "tsm"} if options.get("is_shift") else {}
    return {"name": "tsn", "backbone": {"name": "timm", "model": model}, **shift}


def _c2d(recipe: Recipe, options: Options) -> Options:
    recipe.skip_part(f"{BACKBONE}.type", "C2D", "the pooling after the stem pads its input here, and not there")
    return {"name": "c2d", "depth": _depth(recipe, options, 50, 101)}


def _i3d(recipe: Recipe, options: Options) -> Options:
    expected = {"depth": 50, "conv1_kernel": [5, 7, 7], "inflate": I3D_INFLATE}
    for key, value in expected.items():
        if options[key] != value:
            recipe.refuse(f"{BACKBONE}.{key}", f"{show(options[key])} is not supported", f"supported: {show(value)}")
    stride = options["conv1_stride_t"] * options["pool1_stride_t"]
    backbone = {"name": "i3d", "depth": 50, "frame_stride": stride}
    return {**backbone, **_non_local(recipe, options), "zero_init_last": options["zero_init_residual"]}


def _slow(recipe: Recipe, options: Options) -> Options:
    backbone = {"name": "slow", "depth": _depth(recipe, options, 50, 101), **_non_local(recipe, options)}
    return {**backbone, "zero_init_last": options["zero_init_residual"]}


def _non_local(recipe: Recipe, options: Options) -> Options:
    """Return the options of non-local blocks."""
    foreign, section = recipe.foreign, f"{BACKBONE}.non_local_cfg"
    flags = [stage if isinstance(stage, list) else [stage] for stage in options["non_local"]]
    if not any(map(any, flags)):
        return {}
    mode = foreign(f"{section}.mode", "embedded_gaussian")
    kinds = {"embedded_gaussian": "softmax", "dot_product": "dot_product"}
    if mode not in kinds:
        recipe.refuse(f"{section}.mode", f"{show(mode)} is not supported", f"supported: {', '.join(kinds)}")
    for key, expected in (("sub_sample", False), ("use_scale", True)):
        value = foreign(f"{section}.{key}", expected)
        if key == "sub_sample" and not value:
            recipe.refuse(f"{section}.{key}", "false is not supported: keys and values are always pooled")
        if key == "use_scale" and not value and mode == "embedded_gaussian":
            recipe.skip(f"{section}.{key}", "the softmax is scaled")
    recipe.skip_part(section, mode, "keys and values are pooled before their convolutions here, after them there")
    places = [[place for place, flag in enumerate(stage) if flag] for stage in flags]
    return {"non_local": places, "non_local_type": kinds.get(mode)}


def _r2plus1d(recipe: Recipe, options: Options) -> Options:
    blocks = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3]}[_depth(recipe, options, 18, 34)]
    recipe.skip_part(f"{BACKBONE}.type", "ResNet2Plus1d", "a shortcut is projected by one convolution, there by two")
    sizes = {"widths": [64, 128, 256, 512], "blocks": blocks, "stem_kernel": [3, 7, 7], "stem_pool": True}
    strides = {"temporal_strides": options["temporal_strides"], "zero_init_last": options["zero_init_residual"]}
    return {"name": "resnet3d", "conv_type": "2+1d", **sizes, **strides}


def _slowfast(recipe: Recipe, options: Options) -> Options:
    foreign = recipe.foreign
    if options["resample_rate"] != options["speed_ratio"]:
        recipe.refuse(f"{BACKBONE}.resample_rate", "must be speed_ratio: the fast pathway takes all frames of the clip")
    values: dict[str, Any] = {}
    for path, kernel, inflate in (("slow", [1, 7, 7], [0, 0, 1, 1]), ("fast", [5, 7, 7], [1, 1, 1, 1])):
        channels = 64 if path == "slow" else 64 // options["channel_ratio"]
        expected = {**PATHWAY, "conv1_kernel": kernel, "inflate": inflate, "base_channels": channels}
        for key, value in expected.items():
            own = f"{BACKBONE}.{path}_pathway.{key}"
            changeable = key in ("fusion_kernel", "lateral_norm", "zero_init_residual", "with_pool2")
            if (given := foreign.untyped(own, value)) != value and not changeable:
                recipe.refuse(own, f"{show(given)} is not supported", f"supported: {show(value)}")
            values.setdefault(key, given)
    depths = [foreign(f"{BACKBONE}.{path}_pathway.depth", 50) for path in ("slow", "fast")]
    if depths[0] != depths[1]:
        recipe.refuse(f"{BACKBONE}.slow_pathway.depth", f"pathways of different depths ({show(depths)})")
    sizes = {"alpha": options["speed_ratio"], "beta": options["channel_ratio"]}
    backbone = {"name": "slowfast", "depth": _depth(recipe, {"depth": depths[0]}, 50, 101), **sizes}
    backbone |= {
        "fusion_kernel": values["fusion_kernel"],
        "fusion_norm": values["lateral_norm"],
        "slow_frames": "strided",
    }
    return {**backbone, "zero_init_last": values["zero_init_residual"]}


def _x3d(recipe: Recipe, options: Options) -> Options:
    factors = [options[f"gamma_{name}"] for name in "wbd"]
    if factors[:2] != [1, 2.25] or factors[2] not in X3D_DEPTHS:
        raise recipe.foreign.problem(f"{BACKBONE}.gamma_d", f"{show(factors)} are not the factors of X3D S to L")
    return {"name": "x3d", "size": X3D_DEPTHS[factors[2]], "zero_init_last": options["zero_init_residual"]}


def _swin(recipe: Recipe, options: Options) -> Options:
    if options["arch"] not in SWINS:
        message = f"{show(options['arch'])} is not supported"
        raise recipe.foreign.problem(f"{BACKBONE}.arch", message, "supported: tiny, small, base")
    if options["drop_path_rate"] != SWIN_DROP_PATH:
        recipe.skip(f"{BACKBONE}.drop_path_rate", f"torchvision's network has {SWIN_DROP_PATH}")
    return {"name": "torchvision_video", "model": f"swin3d_{SWINS[options['arch']]}"}


def _mvit(recipe: Recipe, options: Options) -> Options:
    if options["arch"] not in MVITS:
        message = f"{show(options['arch'])} is not supported"
        raise recipe.foreign.problem(f"{BACKBONE}.arch", message, f"supported: {', '.join(MVITS)}")
    clip, drop_path = [options["temporal_size"], *[options["spatial_size"]] * 2], options["drop_path_rate"]
    if (options["arch"], clip, drop_path) == ("small", [16, 224, 224], 0.2):
        return {"name": "torchvision_video", "model": "mvit_v2_s"}
    return {"name": "mvit", **MVITS[options["arch"]], "clip": clip, "drop_path": drop_path}


_BUILDERS: dict[str, Callable[[Recipe, Options], Options]] = {
    "ResNet": _frames,
    "ResNetTSM": _frames,
    "MobileNetV2TSM": _frames,
    "C2D": _c2d,
    "ResNet3d": _i3d,
    "ResNet3dSlowOnly": _slow,
    "ResNet3dSlowFast": _slowfast,
    "ResNet2Plus1d": _r2plus1d,
    "X3D": _x3d,
    "SwinTransformer3D": _swin,
    "MViT": _mvit,
}


def _head(recipe: Recipe) -> None:
    foreign = recipe.foreign
    if (kind := foreign(f"{HEAD}.type")) not in HEADS:
        raise foreign.problem(f"{HEAD}.type", f"{show(kind)} is not supported", f"supported: {', '.join(HEADS)}")
    options = {
        key: foreign.untyped(f"{HEAD}.{key}", value) for key, value in (CLASSES["BaseHead"] | CLASSES[kind]).items()
    }
    for key, value in CLASSES[kind].items():
        if key not in ("dropout_ratio", "is_shift") and options[key] != value:
            recipe.refuse(f"{HEAD}.{key}", f"{show(options[key])} is not supported", f"supported: {show(value)}")
    recipe.put("task.dropout", options["dropout_ratio"] or 0.0, f"{HEAD}.dropout_ratio")
    losses = {"CrossEntropyLoss": "cross_entropy", "BCELossWithLogits": "binary_cross_entropy"}
    if (loss := foreign(f"{HEAD}.loss_cls.type", "CrossEntropyLoss")) not in losses:
        recipe.refuse(f"{HEAD}.loss_cls.type", f"{show(loss)} is not supported", f"supported: {', '.join(losses)}")
    smoothing = {"label_smoothing": options["label_smooth_eps"]} if options["label_smooth_eps"] else {}
    recipe.put("task.loss", {"name": losses.get(loss), **smoothing}, f"{HEAD}.loss_cls.type")
    if options["average_clips"] == "score":
        recipe.skip(f"{HEAD}.average_clips", "the probabilities of several views are averaged, not the logits")


def _weights(recipe: Recipe) -> None:
    """Convert the file that training begins with, and the first of those that the backbone begins with."""
    foreign = recipe.foreign
    convert_weights(recipe, "load_from", rgb=True)
    for key in (f"{BACKBONE}.init_cfg.checkpoint", f"{BACKBONE}.pretrained"):
        if not isinstance(foreign.untyped(key), str) or "init" in recipe.config:
            continue
        if foreign(f"{BACKBONE}.type") == "SwinTransformer3D" and foreign(f"{BACKBONE}.pretrained2d", True):
            recipe.skip(key, "the weights of Swin for images are not inflated: training begins with random ones")
            continue
        convert_weights(recipe, key, rgb=True)
        recipe.put("init.target_prefix", "backbone")
        if "non_local" in recipe.config["task"]["backbone"]:
            recipe.put("init.partial", True)


def _blending(recipe: Recipe) -> None:
    """Convert mixup and CutMix, one of which is drawn for each batch."""
    names = {"MixupBlending": "mixup", "CutmixBlending": "cutmix"}
    foreign = recipe.foreign
    for section in ("data_preprocessor.blending", "model.train_cfg.blending"):
        if not foreign.keys(section):
            foreign.untyped(section)  # None
            continue
        given = {path.rpartition(".")[2]: foreign.untyped(path) for path in foreign.keys(section)}
        augments = given["augments"] if given.get("type") == "RandomBatchAugment" else [given]
        if unknown := [augment.get("type") for augment in augments if augment.get("type") not in names]:
            return recipe.refuse(section, f"{show(unknown)} is not supported", f"supported: {', '.join(names)}")
        mixes = [
            {"name": names[augment["type"]], "alpha": augment.get("alpha", CLASSES[augment["type"]]["alpha"])}
            for augment in augments
        ]
        shares = given.get("probs") or [1 / len(mixes)] * len(mixes)
        several = {"name": "one_of", "mixes": mixes, "weights": shares, "probability": min(1.0, round(sum(shares), 6))}
        recipe.put("data.mix", [mixes[0] if mixes[1:] == [] and shares == [1.0] else several], section)
    return None


def _constructor(recipe: Recipe) -> None:
    """Convert the rules that constructors of optimizers have themselves."""
    foreign, key = recipe.foreign, "optim_wrapper.constructor"
    match foreign(key):
        case "TSMOptimWrapperConstructor" | "TSMOptimizerConstructor":
            rate = 5.0 if foreign("optim_wrapper.paramwise_cfg.fc_lr5", False) else 1.0
            head = [
                {"pattern": "^head.*weight$", "lr_factor": rate},
                {"pattern": "^head.*bias$", "lr_factor": 2 * rate},
            ]
            recipe.put("param_groups.rules", [{"kind": "1d", "weight_decay": 0.0}, *head], key)
        case "LearningRateDecayOptimizerConstructor":
            rate = foreign("optim_wrapper.paramwise_cfg.decay_rate", 1.0)
            for name in ("decay_type", "num_layers"):
                foreign(f"optim_wrapper.paramwise_cfg.{name}")
            recipe.put("param_groups.layer_decay", rate, key)
            recipe.put("param_groups.rules", [{"kind": "1d", "weight_decay": 0.0}], key)
        case name if name not in (None, "SwinOptimWrapperConstructor", "DefaultOptimWrapperConstructor"):
            recipe.refuse(key, f"{show(name)} is not supported")
