"""Conversion of VISSL's trunks to backbones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from opabinia.config.errors import show
from opabinia.migration.recipe import Recipe
from opabinia.migration.tables.vissl import (
    ANYNETS,
    DEFAULTS,
    EFFICIENT_NETS,
    REFUSED_TRUNKS,
    REGNET_SIZES,
    RESNET_DEPTHS,
    RESNEXTS,
    TRANSFORMERS,
)
from opabinia.migration.vissl_transforms import Views

TRUNK = "MODEL.TRUNK"


class Trunk:
    """A trunk of a config.

    Args:
        recipe: the recipe.
        section: the trunk's section: of the model, or of a teacher.
        views: of an image in training; their sizes must suit the model.
    """

    def __init__(self, recipe: Recipe, section: str, views: Views) -> None:
        self.recipe, self.section, self.views = recipe, section, views
        name = str(self("NAME"))
        self.name, self.sharded = name.removesuffix("_fsdp"), name.endswith("_fsdp")

    def __call__(self, key: str) -> Any:
        """Return the value of a key, or its default, which is that of the model for teachers too."""
        return self.recipe.foreign(f"{self.section}.{key}", DEFAULTS.get(f"{TRUNK}.{key}"))

    def values(self, family: str, keys: dict[str, str]) -> dict[str, Any]:
        """Return options of timm by the keys of a family."""
        return {option: self(f"{family}.{key}") for option, key in keys.items()}

    def refuse(self, key: str, message: str, allowed: str = "") -> None:
        """Raise a ConfigError at a key of the section."""
        raise self.recipe.foreign.problem(f"{self.section}.{key}", message, allowed)

    def backbone(self) -> dict[str, Any]:
        """Return the config of the backbone.

        Raises:
            ConfigError: no backbone computes the same.
        """
        if reason := REFUSED_TRUNKS.get(self.name):
            self.refuse("NAME", f"{show(self.name)} is not supported: {reason}")
        if self.name in BUILDERS:
            return BUILDERS[self.name](self)
        self.recipe.note(f"{self.section}.NAME: {show(self.name)} is not known: set vars.model to a model of timm")
        return {"name": "timm", "model": self.recipe.variable("model", None, f"{self.section}.NAME")}

    def source_keys(self) -> list[str]:
        """Return the keys in the files that define the trunk."""
        return [key for key in self.recipe.foreign.keys(self.section) if ".CHECKPOINT_" not in key]


def _timm(model: str, drop_path: float = 0.0, **options: Any) -> dict[str, Any]:
    values = {"name": "timm", "model": model, "drop_path": drop_path, "options": options}
    return {key: value for key, value in values.items() if value or key == "model"}


def _resnet(trunk: Trunk) -> dict[str, Any]:
    section = "RESNETS"
    depth, groups, width = (trunk(f"{section}.{key}") for key in ("DEPTH", "GROUPS", "WIDTH_PER_GROUP"))
    if depth not in RESNET_DEPTHS:
        trunk.refuse(f"{section}.DEPTH", f"{show(depth)} is not supported", f"supported: {RESNET_DEPTHS}")
    if trunk(f"{section}.STANDARDIZE_CONVOLUTIONS"):
        trunk.refuse(f"{section}.STANDARDIZE_CONVOLUTIONS", "standardized convolutions are not supported")
    norm, stride = trunk(f"{section}.NORM"), trunk(f"{section}.LAYER4_STRIDE")
    if norm not in ("BatchNorm", "GroupNorm"):
        trunk.refuse(f"{section}.NORM", f"{show(norm)} is not supported", "supported: BatchNorm, GroupNorm")
    model, options = RESNEXTS.get((depth, groups, width), ""), {}
    if not model:
        model = f"resnet{depth}"
        options = {} if (groups, width) == (1, 64) else {"cardinality": groups, "base_width": width}
    multiplier = trunk(f"{section}.WIDTH_MULTIPLIER")
    changes = {"norm": "group"} if norm == "GroupNorm" else {}
    changes |= {"width_multiplier": multiplier} if multiplier != 1 else {}
    if not changes and stride == 2:
        return _timm(model, **options)
    backbone = {"name": "resnet", "model": model, "last_stride": stride, **changes}
    return {**backbone, "options": options} if options else backbone


_TRANSFORMER = {"embed_dim": "HIDDEN_DIM", "depth": "NUM_LAYERS", "num_heads": "NUM_HEADS"}
_DROPOUT = {"drop_rate": "DROPOUT_RATE", "attn_drop_rate": "ATTENTION_DROPOUT_RATE"}


def _dropout(trunk: Trunk, family: str) -> dict[str, Any]:
    return {option: rate for option, rate in trunk.values(family, _DROPOUT).items() if rate}


def _vision_transformer(trunk: Trunk) -> dict[str, Any]:
    family = "VISION_TRANSFORMERS"
    size, patch = trunk.values(family, _TRANSFORMER), trunk(f"{family}.PATCH_SIZE")
    hidden = trunk(f"{family}.MLP_DIM")
    if match := re.fullmatch(r"vit_([bl])_?(\d+)", str(trunk(f"{family}.name"))):
        width, depth, heads = {"b": (768, 12, 12), "l": (1024, 24, 16)}[match[1]]
        size, patch = {"embed_dim": width, "depth": depth, "num_heads": heads}, int(match[2])
        hidden = 4 * width
    name, patches = TRANSFORMERS.get(tuple(size.values()), ("", ()))
    options: dict[str, Any] = {"img_size": trunk(f"{family}.IMAGE_SIZE")}
    if patch not in patches:
        options |= {"patch_size": patch, **size}
    _check_heads(trunk, family, size)
    if hidden != 4 * size["embed_dim"]:
        options["mlp_ratio"] = hidden / size["embed_dim"]
    if not trunk(f"{family}.QKV_BIAS"):
        options["qkv_bias"] = False
    if trunk(f"{family}.CLASSIFIER") == "gap":
        options["global_pool"] = "avg"
    if trunk.views.several_sizes:
        options["dynamic_img_size"] = True
    options |= _dropout(trunk, family)
    _trunk_checkpointing(trunk, family, "CHECKPOINT_MLP", "CHECKPOINT_BLOCK")
    model = f"vit_{name}_patch{patch}_224" if "patch_size" not in options else "vit_base_patch16_224"
    return _timm(model, trunk(f"{family}.DROP_PATH_RATE"), **options)


def _check_heads(trunk: Trunk, family: str, size: dict[str, Any]) -> None:
    width, heads = size["embed_dim"], size["num_heads"]
    if width % heads:
        trunk.refuse(f"{family}.HIDDEN_DIM", f"{width} is not a multiple of {heads} heads")


def _convit(trunk: Trunk) -> dict[str, Any]:
    family = "VISION_TRANSFORMERS"
    size = trunk.values(family, _TRANSFORMER)
    _check_heads(trunk, family, size)
    if trunk.views.several_sizes:
        trunk.refuse("NAME", "timm's ConViT takes views of one size; those of this config have several")
    if trunk("CONVIT.CLASS_TOKEN_IN_LOCAL_LAYERS"):
        trunk.refuse("CONVIT.CLASS_TOKEN_IN_LOCAL_LAYERS", "timm's ConViT adds the class token after its local layers")
    options = {
        "img_size": trunk(f"{family}.IMAGE_SIZE"),
        "patch_size": trunk(f"{family}.PATCH_SIZE"),
        **size,
        "embed_dim": size["embed_dim"] // size["num_heads"],  # timm's is the width of a head
        "local_up_to_layer": trunk("CONVIT.N_GPSA_LAYERS"),
        "locality_strength": trunk("CONVIT.LOCALITY_STRENGTH"),
        "qkv_bias": bool(trunk(f"{family}.QKV_BIAS")),
    }
    return _timm("convit_base", trunk(f"{family}.DROP_PATH_RATE"), **options, **_dropout(trunk, family))


def _xcit(trunk: Trunk) -> dict[str, Any]:
    family = "XCIT"
    keys = {**_TRANSFORMER, "patch_size": "PATCH_SIZE", "mlp_ratio": "MLP_RATIO", "eta": "ETA"}
    keys |= {"tokens_norm": "TOKENS_NORM", "qkv_bias": "QKV_BIAS"}
    options = trunk.values(family, keys) | _dropout(trunk, family)
    _trunk_checkpointing(trunk, family, "CHECKPOINT_XCA_BLOCK", "CHECKPOINT_ATTN_BLOCK")
    return _timm("xcit_small_12_p16_224", trunk(f"{family}.DROP_PATH_RATE"), **options)


def _swin(trunk: Trunk) -> dict[str, Any]:
    family = "SWIN_TRANSFORMER"
    keys = {"img_size": "IMAGE_SIZE", "patch_size": "PATCH_SIZE", "embed_dim": "EMBED_DIM", "depths": "DEPTHS"}
    keys |= {"num_heads": "NUM_HEADS", "window_size": "WINDOW_SIZE", "mlp_ratio": "MLP_RATIO", "qkv_bias": "QKV_BIAS"}
    options = trunk.values(family, keys) | _dropout(trunk, family)
    if trunk.views.several_sizes:
        options["strict_img_size"] = False
    return _timm("swin_tiny_patch4_window7_224", trunk(f"{family}.DROP_PATH_RATE"), **options)


def _beit(trunk: Trunk) -> dict[str, Any]:
    family = "BEIT"
    keys = {**_TRANSFORMER, "img_size": "IMAGE_SIZE", "patch_size": "PATCH_SIZE", "mlp_ratio": "MLP_RATIO"}
    keys |= {"qkv_bias": "QKV_BIAS", "use_abs_pos_emb": "USE_ABS_POS_EMB", "use_rel_pos_bias": "USE_REL_POS_BIAS"}
    options = trunk.values(family, keys) | _dropout(trunk, family)
    options["use_shared_rel_pos_bias"] = trunk(f"{family}.USE_SHARED_REL_POS_BIAS")
    init_values = trunk.recipe.foreign.untyped(f"{trunk.section}.{family}.INIT_VALUES", False)  # false or a number
    options["init_values"] = init_values or None
    options["global_pool"] = "avg" if trunk(f"{family}.USE_MEAN_POOLING") else "token"
    return _timm("beit_base_patch16_224", trunk(f"{family}.DROP_PATH_RATE"), **options)


def _convnext(trunk: Trunk) -> dict[str, Any]:
    options = trunk.values("CONVNEXT", {"depths": "DEPTH", "dims": "DIMS"})
    return _timm("convnext_small", trunk("CONVNEXT.DROP_PATH_RATE"), **options)


def _efficientnet(trunk: Trunk) -> dict[str, Any]:
    name = str(trunk("EFFICIENT_NETS.model_version") or trunk("EFFICIENT_NETS.model_name")).lower()
    if not (match := re.search(r"b\d$", name)) or match[0] not in EFFICIENT_NETS:
        trunk.refuse("EFFICIENT_NETS", f"{show(name)} is not supported", f"supported: {', '.join(EFFICIENT_NETS)}")
    assert match
    return _timm(f"efficientnet_{match[0]}")


def _regnet(trunk: Trunk) -> dict[str, Any]:
    name = trunk("REGNET.name")
    if name == "anynet":
        stages = [trunk(f"REGNET.{key}") for key in ("depths", "widths", "group_widths")]
        model = next((model for model, known in ANYNETS.items() if known == stages), None)
        if model is None:
            trunk.refuse("REGNET.widths", f"{show(stages[1])} are not the widths of a RegNet's stages")
        return _timm(str(model))
    if name is None:
        return _regnet_of_size(trunk)
    match = re.fullmatch(r"regnet_([xy])_(\d+)(mf|gf)", str(name))
    if not match:
        trunk.refuse("REGNET.name", f"{show(name)} is not supported", "supported: regnet_y_16gf and the like")
    assert match
    size_in_100mf = int(match[2]) // 100 if match[3] == "mf" else int(match[2]) * 10
    return _timm(f"regnet{match[1]}_{size_in_100mf:03}")


def _regnet_of_size(trunk: Trunk) -> dict[str, Any]:
    keys = {"depth": "depth", "initial_width": "w_0", "slope": "w_a", "multiplier": "w_m", "group_width": "group_width"}
    size = trunk.values("REGNET", keys)
    if not all(isinstance(value, int | float) for value in size.values()):
        trunk.refuse("REGNET", f"a RegNet is defined by {', '.join(keys.values())}, or by its name")
    if model := REGNET_SIZES.get(tuple(size.values())):
        return _timm(model)
    kind = trunk("REGNET.block_type")
    if str(kind).lower() != "res_bottleneck_block":
        trunk.refuse("REGNET.block_type", f"{show(kind)} is not supported", "supported: res_bottleneck_block")
    options = {"bottleneck_ratio": "bottleneck_multiplier", "stem_width": "stem_width"}
    se_ratio = trunk("REGNET.se_ratio") if trunk("REGNET.use_se") else 0.0
    return {"name": "regnet", **size, **trunk.values("REGNET", options), "se_ratio": se_ratio}


def _mobilenet(trunk: Trunk) -> dict[str, Any]:
    if (name := trunk("MOBILE_NET.NAME")) != "mobilenetv3_large_100":
        trunk.refuse("MOBILE_NET.NAME", f"{show(name)} is not supported", "supported: mobilenetv3_large_100")
    return _timm("mobilenetv3_large_100")


def _trunk_checkpointing(trunk: Trunk, family: str, *keys: str) -> None:
    if any([trunk(f"{family}.{key}") for key in keys]):
        trunk.recipe.put("train.activation_checkpointing", True, f"{trunk.section}.{family}.{keys[-1]}")


BUILDERS: dict[str, Callable[[Trunk], dict[str, Any]]] = {
    "resnet": _resnet,
    "vision_transformer": _vision_transformer,
    "convit": _convit,
    "xcit": _xcit,
    "swin_transformer": _swin,
    "swin_transformer_official": _swin,
    "beit": _beit,
    "convnext": _convnext,
    "efficientnet": _efficientnet,
    "regnet": _regnet,
    "regnet_v2": _regnet,
    "mobilenetv3_timm": _mobilenet,
    "mobilenetv3_tv": _mobilenet,
}
"""Conversion functions by the trunk's name, without ``_fsdp``."""
