"""Conversion of the self-supervised methods of MMPretrain (and MMSelfSup 1.x)."""

from __future__ import annotations

from typing import Any

from opabinia.config.errors import show
from opabinia.migration.openmmlab_training import refuse_unread
from opabinia.migration.recipe import Recipe
from opabinia.migration.tables.mmpretrain import ALLOWED

NECK, HEAD, PREDICTOR = "model.neck", "model.head", "model.head.predictor"

METHODS: dict[str, tuple[str, str, dict[str, tuple[str, Any]]]] = {
    "MoCo": (
        "moco",
        "MoCoV2Neck",
        {
            "hidden": (f"{NECK}.hid_channels", None),
            "projection": (f"{NECK}.out_channels", None),
            "queue": ("model.queue_len", 65536),
            "temperature": (f"{HEAD}.temperature", 0.1),
        },
    ),
    "SimCLR": (
        "simclr",
        "NonLinearNeck",
        {
            "hidden": (f"{NECK}.hid_channels", None),
            "projection": (f"{NECK}.out_channels", None),
            "layers": (f"{NECK}.num_layers", 2),
            "temperature": (f"{HEAD}.temperature", 0.1),
        },
    ),
    "BYOL": (
        "byol",
        "NonLinearNeck",
        {"hidden": (f"{NECK}.hid_channels", None), "projection": (f"{NECK}.out_channels", None)},
    ),
    "SimSiam": (
        "simsiam",
        "NonLinearNeck",
        {
            "hidden": (f"{PREDICTOR}.hid_channels", None),
            "projection": (f"{NECK}.out_channels", None),
            "layers": (f"{NECK}.num_layers", 2),
        },
    ),
    "BarlowTwins": (
        "barlow_twins",
        "NonLinearNeck",
        {
            "hidden": (f"{NECK}.hid_channels", None),
            "projection": (f"{NECK}.out_channels", None),
            "layers": (f"{NECK}.num_layers", 2),
            "off_diagonal": (f"{HEAD}.loss.lambd", 0.0051),
        },
    ),
    "SwAV": (
        "swav",
        "SwAVNeck",
        {
            "hidden": (f"{NECK}.hid_channels", None),
            "projection": (f"{NECK}.out_channels", None),
            "temperature": (f"{HEAD}.loss.temperature", 0.1),
            "epsilon": (f"{HEAD}.loss.epsilon", 0.05),
            "iterations": (f"{HEAD}.loss.sinkhorn_iterations", 3),
        },
    ),
    "MoCoV3": (
        "moco_v3",
        "NonLinearNeck",
        {
            "hidden": (f"{NECK}.hid_channels", None),
            "projection": (f"{NECK}.out_channels", None),
            "layers": (f"{NECK}.num_layers", 2),
            "temperature": (f"{HEAD}.temperature", 1.0),
        },
    ),
    "MAE": (
        "mae",
        "MAEPretrainDecoder",
        {
            "decoder_width": (f"{NECK}.decoder_embed_dim", 512),
            "decoder_depth": (f"{NECK}.decoder_depth", 8),
            "decoder_heads": (f"{NECK}.decoder_num_heads", 16),
            "norm_pixels": (f"{HEAD}.norm_pix", False),
        },
    ),
}
"""Tasks, types of necks, and the source keys of the task's options with their defaults, by type of model."""

MOMENTA = {"MoCo": ("momentum", 0.001), "BYOL": ("base_momentum", 0.004), "MoCoV3": ("base_momentum", 0.01)}
"""Keys of the share that a teacher takes from the network in a step, and their defaults."""

LAST_LAYERS: dict[str, tuple[str, dict[str, bool]]] = {
    "SimCLR": (NECK, {"with_last_bn": False, "with_last_bias": True}),
    "BYOL": (NECK, {"with_last_bn": False, "with_last_bias": True}),
    "BarlowTwins": (NECK, {"with_last_bn": False, "with_last_bias": False}),
    "SimSiam": (NECK, {"with_last_bn": True, "with_last_bn_affine": False, "with_last_bias": False}),
    "MoCoV3": (NECK, {"with_last_bn": True, "with_last_bn_affine": False, "with_last_bias": False}),
}
PREDICTORS: dict[str, dict[str, bool]] = {
    "BYOL": {"with_last_bn": False, "with_last_bias": True},
    "SimSiam": {"with_last_bn": False, "with_last_bias": True},
    "MoCoV3": {"with_last_bn": False, "with_last_bias": False},
}
"""The last layers of projectors and predictors here."""

NONLINEAR_NECK = {"with_last_bn": True, "with_last_bn_affine": True, "with_last_bias": False}
"""Defaults of NonLinearNeck."""

SELFSUP_ALLOWED: dict[str, tuple[Any, ...]] = {
    **ALLOWED,
    **dict.fromkeys(("with_bias", "with_avg_pool", "with_last_bn_affine", "feat_dim", "num_crops", "in_chans"), ()),
    **dict.fromkeys(("embed_dim", "norm_cfg", "num_patches", "loss_weight", "shift_factor"), ()),
    "type": (
        *(*METHODS, "ContrastiveHead", "CrossEntropyLoss", "LatentPredictHead", "CosineSimilarityLoss", "SwAVLoss"),
        *("LatentCrossCorrelationHead", "CrossCorrelationLoss", "SwAVHead", "MoCoV3Head", "MAEPretrainHead"),
        *(
            "PixelReconstructionLoss",
            "NonLinearNeck",
            "BN",
            "SyncBN",
            "Pretrained",
            "SelfSupDataPreprocessor",
            "Kaiming",
        ),
    ),
    "mlp_ratio": (4, 4.0),
    "criterion": ("L2",),
    "with_l2norm": (True,),
    "scale_factor": (1.0,),
    "stop_grad_conv1": (True,),
    "patch_size": (16, 14),
    "img_size": (224,),
}


def convert_method(recipe: Recipe) -> None:
    """Convert the model of a self-supervised method, whose backbone is converted already."""
    foreign = recipe.foreign
    kind = foreign("model.type")
    task, neck, keys = METHODS[kind]
    if (given := foreign(f"{NECK}.type")) != neck:
        raise foreign.problem(f"{NECK}.type", f"{show(given)} is not supported", f"supported: {neck}")
    recipe.put("task.name", task, "model.type")
    for option, (key, default) in keys.items():
        value = foreign.untyped(key, default)
        if value is None:
            raise foreign.problem(key, "is missing")
        recipe.put(f"task.{option}", value, key)
    if kind in MOMENTA:
        name, share = MOMENTA[kind]
        recipe.put("task.momentum", round(1 - foreign(f"model.{name}", share), 9), f"model.{name}")
    _last_layers(recipe, kind)
    widths = [f"{NECK}.hid_channels", f"{NECK}.out_channels", f"{PREDICTOR}.hid_channels", f"{PREDICTOR}.out_channels"]
    hidden, projection, predictor_hidden, predictor_output = (foreign(key) for key in widths)
    pairs = {"BYOL": (predictor_hidden, hidden), "MoCoV3": (predictor_hidden, hidden), "SimSiam": (hidden, projection)}
    for key, (value, expected) in {
        widths[0 if kind == "SimSiam" else 2]: pairs.get(kind, (None, None)),
        widths[3]: (predictor_output, projection),
    }.items():
        if kind in pairs and value != expected:
            recipe.refuse(key, f"{show(value)} is not supported", f"supported: {show(expected)}")
    backbone = foreign("model.backbone.type")
    if kind == "BYOL" and foreign(f"{NECK}.num_layers", 2) != 2:
        recipe.refuse(f"{NECK}.num_layers", "is not supported", "supported: 2")
    if backbone == "MoCoV3ViT" and foreign("model.backbone.arch") == "mocov3-small":
        recipe.put("task.backbone.options", {"num_heads": 12}, "model.backbone.arch")
    if backbone in ("MAEViT", "MoCoV3ViT"):
        recipe.note("position embeddings are learned here, there they are fixed")
    match kind:
        case "BarlowTwins":
            recipe.put("task.scale", 1.0)
        case "MoCoV3" if foreign(f"{HEAD}.loss.loss_weight", 1.0) != 2 * foreign(f"{HEAD}.temperature", 1.0):
            recipe.refuse(f"{HEAD}.loss.loss_weight", "only twice the temperature is supported")
        case "SwAV":
            _swav(recipe)
        case "MAE" if backbone != "MAEViT":
            recipe.refuse("model.backbone.type", f"{show(backbone)} is not supported", "supported: MAEViT")
        case "MAE":
            ratio = foreign("model.backbone.mask_ratio", 0.75)
            mask = {"name": "random_patch_mask", "patch_size": foreign("model.backbone.patch_size", 16)}
            recipe.config["data"]["train"]["transforms"].append({**mask, "mask_ratio": ratio})
    refuse_unread(recipe, "model", SELFSUP_ALLOWED)


def _last_layers(recipe: Recipe, kind: str) -> None:
    """Report the last layers of projectors and predictors that differ."""
    sections = [LAST_LAYERS[kind]] if kind in LAST_LAYERS else []
    sections += [(PREDICTOR, PREDICTORS[kind])] if kind in PREDICTORS else []
    for section, own in sections:
        if recipe.foreign(f"{section}.type") != "NonLinearNeck":
            recipe.refuse(f"{section}.type", "is not supported", "supported: NonLinearNeck")
        if section == PREDICTOR and recipe.foreign(f"{section}.num_layers", 2) != 2:
            recipe.refuse(f"{section}.num_layers", "is not supported", "supported: 2")
        for key, value in own.items():
            given = recipe.foreign(f"{section}.{key}", NONLINEAR_NECK[key])
            if given != value:
                recipe.skip_part(f"{section}.{key}", given, f"the last layer has it here: {str(value).lower()}")


def _swav(recipe: Recipe) -> None:
    """Convert prototypes, views and the hook of SwAV."""
    foreign, loss = recipe.foreign, f"{HEAD}.loss"
    recipe.put("task.prototypes", [foreign(f"{loss}.num_prototypes", 3000)], f"{loss}.num_prototypes")
    recipe.put("task.assign", len(foreign(f"{loss}.crops_for_assign", [0, 1])), f"{loss}.crops_for_assign")
    for hook in foreign.untyped("custom_hooks") or []:
        if hook.get("type") == "SwAVHook":
            frozen = hook.get("frozen_layers_cfg", {}).get("prototypes", 0)
            recipe.put("task.freeze", f"{frozen}it", "custom_hooks")
            if length := hook.get("queue_length", 0):
                queue = {"length": length, "start": f"{hook.get('epoch_queue_starts', 15)}ep"}
                recipe.put("task.queue", queue, "custom_hooks")
