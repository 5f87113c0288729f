"""Conversion of VISSL's losses and heads to tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opabinia.config.errors import show
from opabinia.migration.recipe import Recipe, Table, duration, duration_in, lookup
from opabinia.migration.tables.vissl import STAGES
from opabinia.migration.vissl_transforms import NO_VIEWS
from opabinia.migration.vissl_trunks import Trunk

TABLES: dict[str, Table] = {
    "simclr": {"temperature": "temperature"},
    "moco": {"queue": "queue_size", "momentum": "momentum", "temperature": "temperature"},
    "swav": {
        "temperature": "temperature",
        "epsilon": "epsilon",
        "iterations": "num_iters",
        "assign": ("crops_for_assign", len),
    },
    "swav_loss": {
        "hard": ("temp_hard_assignment_iters", duration_in("it")),
    },
    "deepcluster": {
        "temperature": "temperature",
        "prototypes": "num_clusters",
        "iterations": "kmeans_iters",
        "assign": ("memory_params.crops_for_mb", len),
    },
    "dino": {
        "momentum": "momentum",
        "temperature": "student_temp",
        "teacher_temperature": "teacher_temp_max",
        "warmup_teacher_temperature": "teacher_temp_min",
        "teacher_warmup": ("teacher_temp_warmup_iters", duration_in("it")),
        "center_momentum": "ema_center",
    },
    "barlow_twins": {"off_diagonal": "lambda_", "scale": "scale_loss"},
    "ibot": {
        "momentum": "teacher_momentum",
        "temperature": "student_temp",
        "warmup_teacher_temperature": "warmup_teacher_temp",
        "teacher_temperature": "teacher_temp",
        "warmup_patch_temperature": "warmup_teacher_patch_temp",
        "patch_temperature": "teacher_patch_temp",
        "teacher_warmup": ("warmup_teacher_temp_epochs", duration_in("ep")),
        "patch_warmup": ("warmup_teacher_temp_epochs", duration_in("ep")),
        "center_momentum": "center_momentum",
        "patch_center_momentum": "center_momentum2",
        "image_weight": "lambda1",
        "patch_weight": "lambda2",
        "masking_start": ("mim_start_epoch", duration_in("ep")),
    },
    "npid": {
        "loss": ("loss_type", lookup({"nce": "nce", "cross_entropy": "info_nce"})),
        "negatives": "negative_sampling_params.num_negatives",
        "temperature": "temperature",
        "momentum": "memory_params.momentum",
    },
}
"""Conversion tables of the loss sections, by task."""


def _task(recipe: Recipe, name: str) -> None:
    """Set the task and convert the keys of its loss."""
    recipe.put("task.name", name, "LOSS.name")
    recipe.convert_section(f"LOSS.{recipe.foreign('LOSS.name')}", "task", TABLES[name])


def simclr(recipe: Recipe) -> None:
    """Convert SimCLR."""
    _task(recipe, "simclr")
    _projector(recipe, "hidden", "projection", "layers")


def moco(recipe: Recipe) -> None:
    """Convert MoCo."""
    _task(recipe, "moco")
    _projector(recipe, "hidden", "projection")
    recipe.note("VISSL shuffles samples over GPUs before the teacher's batch norms; Opabinia does not")


def swav(recipe: Recipe) -> None:
    """Convert SwAV."""
    foreign, section = recipe.foreign, f"LOSS.{recipe.foreign('LOSS.name')}"
    queue = f"{section}.queue"
    _task(recipe, "swav")
    if section == "LOSS.swav_loss":
        recipe.convert_section(section, "task", TABLES["swav_loss"])
    else:
        recipe.convert(f"{section}.momentum", "task.momentum")
        if foreign(f"{section}.momentum_eval_mode_iter_start"):
            recipe.skip(f"{section}.momentum_eval_mode_iter_start", "the teacher's norms stay in training mode")
    if head := _heads(recipe, "swav_head"):
        _dimensions(recipe, head[0].get("dims"), "hidden", "projection")
        if clusters := head[0].get("num_clusters"):
            recipe.put("task.prototypes", clusters, "MODEL.HEAD.PARAMS")
    if length := foreign(f"{queue}.queue_length"):
        recipe.put("task.queue.length", length, f"{queue}.queue_length")
        recipe.convert(f"{queue}.start_iter", "task.queue.start", duration_in("it"))
    _frozen(recipe, "task.freeze")


def deepcluster(recipe: Recipe) -> None:
    """Convert DeepCluster v2."""
    _task(recipe, "deepcluster")
    _projector(recipe, "hidden", "projection")


def dino(recipe: Recipe) -> None:
    """Convert DINO."""
    _task(recipe, "dino")
    if head := _heads(recipe, "dino_head"):
        source = "MODEL.HEAD.PARAMS"
        recipe.put("task.norm_last_layer", bool(head[0].get("normalize_last_layer", True)), source)
        recipe.put("task.head_norm", bool(head[0].get("use_bn", False)), source)
        match head[0].get("num_clusters"):
            case [outputs]:
                recipe.put("task.outputs", outputs, source)
    _frozen(recipe, "task.freeze_last_layer")


def ibot(recipe: Recipe) -> None:
    """Convert iBOT."""
    _task(recipe, "ibot")
    if head := _heads(recipe, "ibot_head"):
        source, keys = "MODEL.HEAD.PARAMS", head[0]
        outputs = keys.get("out_dim", 8192)
        recipe.put("task.outputs", outputs, source)
        recipe.put("task.patch_outputs", keys.get("patch_out_dim", outputs), source)
        recipe.put("task.separate_heads", not keys.get("shared_head", False), source)
        recipe.put("task.norm_last_layer", bool(keys.get("normalize_last_layer", True)), source)
    recipe.note("masked blocks have the paper's aspect ratios; those of VISSL are larger, as it takes no logarithm")
    _frozen(recipe, "task.freeze_last_layer")


def distillation(recipe: Recipe) -> None:
    """Convert the distillation of a classifier."""
    foreign, section = recipe.foreign, "LOSS.distillation_loss"
    classification(recipe)
    share = foreign.number(f"{section}.soft_target_alpha")
    kind = str(foreign(f"{section}.loss_type", "kl_divergence")).lower()
    features = [part[0] for part in foreign("MODEL.HEAD.PARAMS") if isinstance(part, list) and part] == ["identity"]
    recipe.put("distill.task_weight", round(1 - share, 6), f"{section}.soft_target_alpha")
    if features and kind == "mse":
        weights = {"logits_weight": 0.0, "features_weight": share, "features_loss": "mse"}
    else:
        losses = {"kl_divergence": "soft", "cross_entropy": "soft", "mse": "mse"}
        recipe.convert(f"{section}.loss_type", "distill.logits_loss", lambda _: lookup(losses)(kind))
        weights = {"logits_weight": share, "temperature": foreign.number(f"{section}.temperature")}
    for key, value in weights.items():
        recipe.put(f"distill.{key}", value, f"{section}.soft_target_alpha", f"{section}.temperature")
    for key, value in _teacher(recipe).items():
        recipe.put(f"distill.{key}", value, "DISTILLATION.TEACHER_MODEL.TRUNK.NAME")


def feature_distillation(recipe: Recipe) -> None:
    """Convert the distillation of the projections of DINO, iBOT, MSN or SwAV to that of the features before them."""
    foreign = recipe.foreign
    section = f"LOSS.{foreign('LOSS.name')}"
    recipe.put("task.name", "distillation", "LOSS.name")
    weights = {"pooled_weight": f"{section}.lambda1", "dense_weight": f"{section}.lambda2"}
    for key, path in weights.items():
        recipe.put(f"task.{key}", foreign(path, 1.0 if key == "pooled_weight" else 0.0), path)
    recipe.put("task.loss", "cosine")
    recipe.skip(
        "LOSS.name", "features before the heads are compared by cosine, not assignments to prototypes after them"
    )
    if "swav" in section:
        count, source = (2 if foreign(f"{section}.use_two_crops_for_teacher", True) else 1), "use_two_crops_for_teacher"
    else:
        source = "num_global_crops" if "ibot" in section else "teacher_num_crops"
        count = foreign(f"{section}.{source}", 2)
    recipe.put("task.teacher_views", count, f"{section}.{source}")
    if foreign(f"{section}.swapped_assignment", False):
        recipe.skip(f"{section}.swapped_assignment", "a view of the teacher is the target of the same view")
    recipe.skip("MODEL.HEAD.PARAMS", "the student has a linear projection to the width of the teacher's features")
    teacher = "DISTILLATION.TEACHER_MODEL"
    if f"{teacher}.HEAD.PARAMS" in foreign:
        recipe.skip(f"{teacher}.HEAD.PARAMS", "features before the teacher's head are learned")
    recipe.put("task.teacher", _teacher(recipe), f"{teacher}.TRUNK.NAME")


def _teacher(recipe: Recipe) -> dict[str, Any]:
    key = "DISTILLATION.TEACHER_MODEL.WEIGHTS_INIT.PARAMS_FILE"
    backbone = Trunk(recipe, "DISTILLATION.TEACHER_MODEL.TRUNK", NO_VIEWS).backbone()
    return {"backbone": backbone, "weights": recipe.variable("teacher", recipe.foreign(key), key)}


def barlow_twins(recipe: Recipe) -> None:
    """Convert Barlow Twins."""
    _task(recipe, "barlow_twins")
    recipe.put("task.normalize", "joint")
    recipe.note("task.normalize: joint is VISSL's method, per_view the paper's")
    _projector(recipe, "hidden", "projection", "layers")


def npid(recipe: Recipe) -> None:
    """Convert NPID."""
    _task(recipe, "npid")
    _projector(recipe, "", "projection")


def pirl(recipe: Recipe) -> None:
    """Convert PIRL."""
    foreign, section = recipe.foreign, "LOSS.nce_loss_with_memory"
    recipe.put("task.name", "pirl", "LOSS.name", "DATA.TRAIN.TRANSFORMS")
    recipe.convert_section(section, "task", TABLES["npid"])
    recipe.convert(f"{section}.memory_params.embedding_dim", "task.projection")
    match foreign(f"{section}.loss_weights"):
        case [float() | int() as transformed, float() | int() as image] if abs(transformed + image - 1) < 1e-6:
            recipe.put("task.transformed_weight", transformed, f"{section}.loss_weights")
        case weights:
            recipe.refuse(f"{section}.loss_weights", f"{show(weights)} is not supported", "two weights with the sum 1")
    if any(len(widths) > 2 for widths in _mlp_widths(foreign("MODEL.HEAD.PARAMS"))):
        recipe.skip("MODEL.HEAD.PARAMS", "the task's projections are linear")
    recipe.note("photometric changes are drawn for each view, in VISSL for each patch")


def jigsaw(recipe: Recipe) -> None:
    """Convert jigsaw puzzles."""
    foreign, transforms = recipe.foreign, "DATA.TRAIN.TRANSFORMS"
    recipe.put("task.name", "jigsaw", "LOSS.name", transforms)
    gap: Any
    gap, cell = 21, 85
    for step in foreign(transforms):
        gap, size = step.get("patch_jitter", gap), step.get("size")
        cell = size // 3 if isinstance(size, int) and size > 2 else cell
    if not isinstance(gap, int) or not 0 <= gap < cell:
        raise foreign.problem(transforms, f"patch_jitter: {show(gap)} is not supported", f"pixels below {cell}")
    recipe.put("task.gap", round(gap / cell, 4), transforms)
    match _mlp_widths(foreign("MODEL.HEAD.PARAMS")):
        case [[_, hidden], [_, permutations]]:
            recipe.put("task.hidden", hidden, "MODEL.HEAD.PARAMS")
            recipe.put("task.permutations", permutations, "MODEL.HEAD.PARAMS")
        case widths:
            reason = f"{show(widths)} is not supported"
            raise foreign.problem("MODEL.HEAD.PARAMS", reason, "an mlp of two widths for a patch, one for all")
    recipe.skip_part(transforms, "ShuffleImgPatches", "permutations are not read but chosen by the same rule")


def _mlp_widths(parts: Any) -> list[list[Any]]:
    """Return the widths of every ``mlp`` in a (nested) list of a head's parts."""
    match parts:
        case [str(name), {"dims": list(widths)}] if name.removesuffix("_fsdp") == "mlp":
            return [widths]
        case list():
            return [widths for part in parts for widths in _mlp_widths(part)]
    return []


def rotation(recipe: Recipe) -> None:
    """Convert rotation prediction."""
    recipe.put("task.name", "rotation", "LOSS.name", "DATA.TRAIN.TRANSFORMS")
    recipe.note(
        "a batch contains all four rotations of every image, in VISSL one: a quarter of the batch size and of the "
        "epochs processes as many images"
    )
    recipe.foreign("MODEL.HEAD.PARAMS")


def classification(recipe: Recipe) -> None:
    """Convert supervised classification, or a linear probe of frozen features."""
    foreign = recipe.foreign
    multi_output = foreign("LOSS.name") == "bce_logits_multiple_output_single_target"
    recipe.put("task.name", "classification", "LOSS.name")
    smoothing = 0.0 if multi_output else foreign("LOSS.cross_entropy_multiple_output_single_target.label_smoothing")
    loss = (
        {"name": "binary_cross_entropy", "sum_classes": True}
        if multi_output
        else {"name": "cross_entropy", "label_smoothing": smoothing}
    )
    recipe.put("task.loss", loss, "LOSS.name")
    foreign("MODEL.HEAD.PARAMS")
    recipe.note("the classifier is one linear layer after the backbone, whatever MODEL.HEAD.PARAMS is")
    if foreign("MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON") and foreign("MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY"):
        hook = {"name": "freeze", "pattern": "^backbone"}
        recipe.put("hooks.freeze", hook, "MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY")
    _layers(recipe)


def _layers(recipe: Recipe) -> None:
    """Convert linear probes of several layers to an evaluator."""
    path = "MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP"
    named = [str(entry[0]) for entry in recipe.foreign(path) if isinstance(entry, list) and entry]
    layers = [STAGES[name] for name in named if name in STAGES]
    if len(named) < 2:
        return
    recipe.put(
        "evaluate.evaluators.layers", {"evaluator": {"name": "linear_probe", "layers": layers}, "every": "0ep"}, path
    )
    recipe.note("features of several layers are evaluated at the end by linear_probe, averaged over their positions")
    for name in named:
        if name not in STAGES:
            recipe.skip_part(path, name, "no equivalent layer")


def _heads(recipe: Recipe, kind: str) -> list[Mapping[str, Any]]:
    """Return the keys of all parts of the head if all are of this kind; else report the head as not converted."""
    parts = recipe.foreign("MODEL.HEAD.PARAMS")
    keys = [
        part[1]
        for part in parts
        if isinstance(part, list) and len(part) == 2 and str(part[0]).removesuffix("_fsdp") == kind
    ]
    if not keys or len(keys) != len(parts) or not all(isinstance(part, dict) for part in keys):
        recipe.skip("MODEL.HEAD.PARAMS", f"not a sequence of {kind}; the task has its own head")
        return []
    return keys


def _projector(recipe: Recipe, hidden: str, projection: str, layers: str = "") -> None:
    """Convert a sequence of ``mlp`` to the widths of the task's projector."""
    widths: list[Any] = []
    for keys in _heads(recipe, "mlp"):
        dims = keys.get("dims")
        widths += dims[1:] if isinstance(dims, list) and widths else dims if isinstance(dims, list) else []
    _dimensions(recipe, widths, hidden, projection, layers)


def _dimensions(recipe: Recipe, widths: Any, hidden: str, projection: str, layers: str = "") -> None:
    source = "MODEL.HEAD.PARAMS"
    if not isinstance(widths, list) or len(widths) < 2:
        return
    recipe.put(f"task.{projection}", widths[-1], source)
    if hidden and len(widths) > 2:
        recipe.put(f"task.{hidden}", widths[1], source)
    if layers:
        recipe.put(f"task.{layers}", len(widths) - 1, source)
    if len(set(widths[1:-1])) > 1 or (not layers and len(widths) > 3) or (not hidden and len(widths) > 2):
        recipe.skip(source, "the task's head has another number or other widths of layers")


def _frozen(recipe: Recipe, key: str) -> None:
    """Convert the time for which prototypes are frozen; report other parameters as not converted."""
    path = "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP"
    steps = []
    for entry in recipe.foreign(path):
        match entry:
            case [str(name), int(count)] if "prototypes" in name:
                steps.append(count)
            case _:
                recipe.skip_part(path, entry, "see the hook freeze")
    if steps:
        recipe.put(key, duration(max(steps), "it"), path)


METHODS: dict[str, Callable[[Recipe], None]] = {
    "simclr_info_nce_loss": simclr,
    "multicrop_simclr_info_nce_loss": simclr,
    "moco_loss": moco,
    "swav_loss": swav,
    "swav_momentum_loss": swav,
    "deepclusterv2_loss": deepcluster,
    "dino_loss": dino,
    "ibot_loss": ibot,
    "distillation_loss": distillation,
    **{f"{name}_distillation_loss": feature_distillation for name in ("dino", "ibot", "msn", "swav")},
    "barlow_twins_loss": barlow_twins,
    "nce_loss_with_memory": npid,
    "cross_entropy_multiple_output_single_target": classification,
    "CrossEntropyLoss": classification,
    "bce_logits_multiple_output_single_target": classification,
}
"""Conversion functions by ``LOSS.name``."""

PRETEXTS: dict[tuple[Callable[[Recipe], None], str], Callable[[Recipe], None]] = {
    (classification, "rotation"): rotation,
    (classification, "jigsaw"): jigsaw,
    (npid, "pirl"): pirl,
}
"""Conversion functions of pretext tasks, by that of the loss and the kind of transforms."""
