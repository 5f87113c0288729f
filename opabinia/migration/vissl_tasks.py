"""VISSL's losses and heads as tasks of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opabinia.migration.recipe import Recipe, Table, duration, lasting, one_of
from opabinia.migration.tables.vissl import STAGES

TABLES: dict[str, Table] = {
    "simclr": {"temperature": "temperature"},
    "moco": {"queue": "queue_size", "momentum": "momentum", "temperature": "temperature"},
    "swav": {
        "temperature": "temperature",
        "epsilon": "epsilon",
        "iterations": "num_iters",
        "assign": ("crops_for_assign", len),
        "hard": ("temp_hard_assignment_iters", lasting("it")),
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
        "first_teacher_temperature": "teacher_temp_min",
        "teacher_warmup": ("teacher_temp_warmup_iters", lasting("it")),
        "centre_momentum": "ema_center",
    },
    "barlow_twins": {"off_diagonal": "lambda_", "scale": "scale_loss"},
    "npid": {
        "loss": ("loss_type", one_of({"nce": "nce", "cross_entropy": "info_nce"})),
        "negatives": "negative_sampling_params.num_negatives",
        "temperature": "temperature",
        "momentum": "memory_params.momentum",
    },
}
"""What becomes of the keys of a loss, by the task that has it."""


def _task(recipe: Recipe, name: str) -> None:
    """A task, with what its loss says."""
    recipe.put("task.name", name, "LOSS.name")
    recipe.take_all(f"LOSS.{recipe.foreign('LOSS.name')}", "task", TABLES[name])


def simclr(recipe: Recipe) -> None:
    """SimCLR."""
    _task(recipe, "simclr")
    _projector(recipe, "hidden", "projection", "layers")


def moco(recipe: Recipe) -> None:
    """MoCo."""
    _task(recipe, "moco")
    _projector(recipe, "hidden", "projection")
    recipe.note("VISSL shuffles samples over cards before the teacher's norms; here they are seen as they come")


def swav(recipe: Recipe) -> None:
    """SwAV."""
    foreign, queue = recipe.foreign, "LOSS.swav_loss.queue"
    _task(recipe, "swav")
    if head := _heads(recipe, "swav_head"):
        _dimensions(recipe, head[0].get("dims"), "hidden", "projection")
        if clusters := head[0].get("num_clusters"):
            recipe.put("task.prototypes", clusters, "MODEL.HEAD.PARAMS")
    if length := foreign(f"{queue}.queue_length"):
        recipe.put("task.queue.length", length, f"{queue}.queue_length")
        recipe.take(f"{queue}.start_iter", "task.queue.start", lasting("it"))
    _frozen(recipe, "task.freeze")


def deepcluster(recipe: Recipe) -> None:
    """DeepCluster v2."""
    _task(recipe, "deepcluster")
    _projector(recipe, "hidden", "projection")


def dino(recipe: Recipe) -> None:
    """DINO."""
    _task(recipe, "dino")
    if head := _heads(recipe, "dino_head"):
        source = "MODEL.HEAD.PARAMS"
        recipe.put("task.norm_last_layer", bool(head[0].get("normalize_last_layer", True)), source)
        recipe.put("task.head_norm", bool(head[0].get("use_bn", False)), source)
        match head[0].get("num_clusters"):
            case [outputs]:
                recipe.put("task.outputs", outputs, source)
    _frozen(recipe, "task.freeze_last_layer")


def barlow_twins(recipe: Recipe) -> None:
    """Barlow Twins."""
    _task(recipe, "barlow_twins")
    recipe.put("task.normalize", "joint")
    recipe.note("task.normalize: joint is VISSL's way, per_view the paper's")
    _projector(recipe, "hidden", "projection", "layers")


def npid(recipe: Recipe) -> None:
    """NPID."""
    _task(recipe, "npid")
    _projector(recipe, "", "projection")


def rotation(recipe: Recipe) -> None:
    """By how much a picture is turned."""
    recipe.put("task.name", "rotation", "LOSS.name", "DATA.TRAIN.TRANSFORMS")
    recipe.note(
        "all four turns of an image are in a batch here, VISSL turns each once: a quarter of the batch and of the "
        "epochs shows as many pictures"
    )
    recipe.foreign("MODEL.HEAD.PARAMS")


def classification(recipe: Recipe) -> None:
    """With labels: a classifier, or a probe of features that are frozen."""
    foreign = recipe.foreign
    several = foreign("LOSS.name") == "bce_logits_multiple_output_single_target"
    recipe.put("task.name", "classification", "LOSS.name")
    smoothing = 0.0 if several else foreign("LOSS.cross_entropy_multiple_output_single_target.label_smoothing")
    loss = (
        {"name": "binary_cross_entropy", "sum_classes": True}
        if several
        else {"name": "cross_entropy", "label_smoothing": smoothing}
    )
    recipe.put("task.loss", loss, "LOSS.name")
    foreign("MODEL.HEAD.PARAMS")
    recipe.note("the classifier is one linear layer behind the backbone, whatever MODEL.HEAD.PARAMS says")
    if foreign("MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON") and foreign("MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY"):
        hook = {"name": "freeze", "pattern": "^backbone"}
        recipe.put("hooks.freeze", hook, "MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY")
    _layers(recipe)


def _layers(recipe: Recipe) -> None:
    """Several layers of a network are judged by a measure."""
    path = "MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP"
    named = [str(one[0]) for one in recipe.foreign(path) if isinstance(one, list) and one]
    layers = [STAGES[name] for name in named if name in STAGES]
    if len(named) < 2:
        return
    recipe.put(
        "evaluate.measures.layers", {"evaluator": {"name": "linear_probe", "layers": layers}, "every": "0ep"}, path
    )
    recipe.note(
        "features of several layers are judged at the end, by the measure linear_probe, averaged over their places"
    )
    for name in named:
        if name not in STAGES:
            recipe.leave_part(path, name, "no layer here answers to it")


def _heads(recipe: Recipe, kind: str) -> list[Mapping[str, Any]]:
    """The keys of all parts of the head, if all are of a kind; else it is left out."""
    parts = recipe.foreign("MODEL.HEAD.PARAMS")
    keys = [one[1] for one in parts if isinstance(one, list) and len(one) == 2 and one[0] == kind]
    if not keys or len(keys) != len(parts) or not all(isinstance(one, dict) for one in keys):
        recipe.leave("MODEL.HEAD.PARAMS", f"no row of {kind}; the task has its own head")
        return []
    return keys


def _projector(recipe: Recipe, hidden: str, projection: str, layers: str = "") -> None:
    """Rows of ``mlp`` as the widths of a task's projector."""
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
        recipe.leave(source, "layers of other number or widths than the task has")


def _frozen(recipe: Recipe, ours: str) -> None:
    """How long prototypes keep still; other parameters are left out."""
    path = "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP"
    steps = []
    for one in recipe.foreign(path):
        match one:
            case [str(name), int(count)] if "prototypes" in name:
                steps.append(count)
            case _:
                recipe.leave_part(path, one, "see the hook freeze")
    if steps:
        recipe.put(ours, duration(max(steps), "it"), path)


METHODS: dict[str, Callable[[Recipe], None]] = {
    "simclr_info_nce_loss": simclr,
    "multicrop_simclr_info_nce_loss": simclr,
    "moco_loss": moco,
    "swav_loss": swav,
    "deepclusterv2_loss": deepcluster,
    "dino_loss": dino,
    "barlow_twins_loss": barlow_twins,
    "nce_loss_with_memory": npid,
    "cross_entropy_multiple_output_single_target": classification,
    "CrossEntropyLoss": classification,
    "bce_logits_multiple_output_single_target": classification,
}
"""By ``LOSS.name``."""
