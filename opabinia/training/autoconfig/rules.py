"""The rules of a plan: small pure functions from what is known to one value and the reason for it.

Every rule is registered with its source, a paper or a measurement of ours, and docs/planning.md lists them all. No rule
names a dataset. :mod:`opabinia.training.autoconfig.choices` joins them to the recipe of each task.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from opabinia.contracts.keypoints import OTHER_SIGMA
from opabinia.data.layouts.layout import TaskName
from opabinia.data.profile import DatasetProfile
from opabinia.data.sources.detection_base import flip_pairs
from opabinia.evaluation.detection.coco import COCO_KEYPOINTS
from opabinia.models.weights.available import BACKBONES
from opabinia.runtime.durations import format_seconds
from opabinia.runtime.text import plural
from opabinia.training.autoconfig.situation import Machine, Situation, Speed


class Value(NamedTuple):
    """A value of the recipe and the reason for it.

    Attributes:
        value: plain data.
        reason: half a sentence, with the numbers that decide.
    """

    value: Any
    reason: str


@dataclass(frozen=True)
class Rule:
    """A registered rule.

    Attributes:
        name: what it decides.
        text: its docstring, on one line.
        source: a paper, or a measurement of ours.
    """

    name: str
    text: str
    source: str


RULES: dict[str, Rule] = {}
"""All rules by the name of their function."""


def rules_table() -> str:
    """Return all rules as a table of Markdown, for docs/planning.md."""
    rows = [f"| {entry.name} | {entry.text} | {entry.source} |" for entry in RULES.values()]
    return "\n".join(["| rule | value | source |", "|---|---|---|", *rows])


_F = TypeVar("_F", bound=Callable[..., Any])


def rule(source: str) -> Callable[[_F], _F]:
    """Register a function as a rule; ``source`` is that of its numbers."""

    def add(function: _F) -> _F:
        name = function.__name__
        text = " ".join(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].split())
        RULES[name] = Rule(name.replace("_", " "), text, source)
        return function

    return add


OURS = "single trials of ours; benchmarks/planning.py compares"


@dataclass(frozen=True)
class Network:
    """A backbone that a plan may choose.

    Attributes:
        model: its name in timm; of pretrained ones with the tag of the weights.
        cost: multiply-adds for an image of 224 pixels, in billions: how much slower than another one it is, until one
            of both is measured.
        options: keyword arguments for timm.
        pretrained: whether ImageNet weights are at hand.
        lr: learning rate of AdamW for batches of 32.
    """

    model: str
    cost: float
    options: dict[str, Any] | None = None
    pretrained: bool = True
    lr: float = 5e-4


NARROW = Network("resnet10t", 0.28, {"stem_width": 16, "channels": [32, 64, 128, 256]}, pretrained=False, lr=2e-3)
"""For training from scratch on a CPU."""
SCRATCH = Network("resnet18", 1.8, pretrained=False, lr=1e-3)

REFERENCE_SIZE = 224
CPU_SECONDS, GPU_SECONDS = 0.09, 0.0016
"""Assumed seconds of a training step per sample of :data:`REFERENCE` at 224 pixels on one CPU core and on one GPU: for
the first measurement, and for machines that are not at hand."""
REFERENCE = "tf_efficientnet_lite0.in1k"

NETWORKS = {
    NARROW.model: NARROW,
    SCRATCH.model: SCRATCH,
    **{known.model: Network(known.model, known.gmacs * (REFERENCE_SIZE / known.size) ** 2) for known in BACKBONES},
}
"""All networks by name."""

TINY_IMAGES = 64
"""Pixels: images with a shorter side below this have too little detail for networks made for 224 pixels."""


def is_tiny(profile: DatasetProfile) -> bool:
    """Return whether most images are smaller than :data:`TINY_IMAGES`."""
    return profile.short_sides is not None and profile.short_sides[2] < TINY_IMAGES


# --- time -------------------------------------------------------------------------------------------------------------


def assumed_speed(machine: Machine) -> Speed:
    """Return a cautious guess of the speed of a machine that was not measured."""
    seconds = GPU_SECONDS if machine.has_gpu else CPU_SECONDS / machine.cores
    seconds /= machine.ranks
    return Speed(model=REFERENCE, size=REFERENCE_SIZE, train=seconds, evaluate=seconds / 3)


def predicted_speed(situation: Situation, network: Network, size: int) -> Speed:
    """Return the speed of a network at an image size: of the measurement of this network with the nearest size, else
    of the last measurement, in proportion to pixels and multiply-adds."""
    known = situation.speeds or (assumed_speed(situation.machine),)
    same = [speed for speed in known if speed.model == network.model]
    nearest = min(same or known[-1:], key=lambda speed: abs(math.log(speed.size / size)))
    factor = network.cost / NETWORKS[nearest.model].cost * (size / nearest.size) ** 2
    return replace(
        nearest, model=network.model, size=size, train=nearest.train * factor, evaluate=nearest.evaluate * factor
    )


TRAINING_SHARE = 0.8
"""Share of the budget that training may take where evaluations are not yet planned."""


def affordable_samples(situation: Situation, network: Network, size: int) -> float:
    """Return how many samples can be trained on within the budget."""
    return TRAINING_SHARE * situation.budget / predicted_speed(situation, network, size).train


# --- images without labels --------------------------------------------------------------------------------------------

PRETRAINING_BUDGET = 3600.0
"""Seconds from which on a budget has time for two stages."""


@rule(
    "docs/selfsup.md, ten labels per class: top-1 0.744 from scratch, 0.867 after pretraining; "
    "less with labels for all images: benchmarks/RESULTS.md, unlabelled_to_detector"
)
def pretraining(situation: Situation, unlabeled: int) -> Value | None:
    """Self-supervised pretraining first, in half of the budget: with at least 1,000 images without labels, ten times as
    many as with labels, from a budget of one hour on, if no ImageNet weights are at hand, which are a better start."""
    labeled = situation.profile.samples
    if situation.task in ("selfsup", "video") or situation.budget < PRETRAINING_BUDGET or unlabeled < 1000:
        return None
    if networks(situation)[0].pretrained or unlabeled < 10 * labeled:
        return None
    return Value(situation.budget / 2, f"{unlabeled:,} images without labels beside {labeled:,} with labels")


# --- network and image size -------------------------------------------------------------------------------------------


@rule("ImageNet transfer: Kornblith et al. 2019; " + OURS)
def networks(situation: Situation) -> list[Network]:
    """Backbones that may be chosen, the most accurate first: those with ImageNet weights at hand, and for tiny images
    or without weights a ResNet from scratch, narrow on a CPU."""
    scratch = SCRATCH if situation.machine.has_gpu else NARROW
    if is_tiny(situation.profile):
        return [scratch]
    return [NETWORKS[name] for name in situation.weights] or [scratch]


class Capacity(NamedTuple):
    """A network and an image size."""

    network: Network
    size: int
    reason: str


def sizes_up_to(largest: int, smallest: int = 64) -> list[int]:
    """Return the image sizes that are tried, the largest first: multiples of 32."""
    return list(range(max(smallest, largest // 32 * 32), smallest - 1, -32))


@rule("progressive sizes: Touvron et al. 2019 (FixRes), Tan and Le 2021; " + OURS)
def capacity(situation: Situation, largest: int, epochs: float, samples: float, smallest: int = 64) -> Capacity:
    """Backbone and image size: the most costly pair with which the budget allows enough epochs and samples, the
    cheapest if none does. Networks other than the lightest are for images of at least 160 pixels: below, more pixels
    are worth more than more layers."""
    needed = max(epochs * situation.profile.samples, samples)
    candidates = networks(situation)
    lightest = min(candidates, key=lambda network: network.cost)
    sizes = sizes_up_to(largest, smallest)
    options = [(network, size) for network in candidates for size in sizes if network is lightest or size >= 160]
    options.sort(key=lambda option: (-predicted_speed(situation, option[0], option[1]).train, -option[1]))
    fitting = [option for option in options if affordable_samples(situation, *option) >= needed]
    network, size = fitting[0] if fitting else options[-1]
    tuning = situation.tuning
    if tuning is not None and (tuning.model, tuning.size) != (network.model, size):
        return Capacity(NETWORKS[tuning.model], tuning.size, tuning.size_reason)
    count = affordable_samples(situation, network, size)
    possible = count / max(1, situation.profile.samples)
    budget = format_seconds(situation.budget)
    if fitting and (network, size) == options[0]:
        reason = f"the largest that is tried; {budget} are enough for {possible:.3g} epochs"
    elif fitting:
        reason = (
            f"the largest with which {budget} are enough for {possible:.3g} epochs ({needed:,.0f} samples are wanted)"
        )
    else:
        reason = f"the smallest: {budget} are enough for {possible:.2g} epochs only"
    return Capacity(network, size, reason)


def round_up(value: float, step: int) -> int:
    """Return the next multiple of ``step``."""
    return step * math.ceil(value / step)


@rule("the network sees no more detail than the images have")
def largest_size(profile: DatasetProfile, limit: int, smallest: int = 96) -> int:
    """The largest useful size of square images: the median shorter side, at least 96, of videos 64, and at most
    ``limit``."""
    if profile.short_sides is None:
        return limit
    return min(limit, max(smallest, round_up(profile.short_sides[2], 32)))


@rule("small objects are found rarely: Lin et al. 2014 (COCO, below 32 pixels), Singh and Davis 2018 (SNIP)")
def detection_size(profile: DatasetProfile, limit: int) -> Value:
    """The shorter side of images for detectors: so that nine of ten objects are at least 40 pixels wide, not larger
    than the images and at most ``limit``."""
    if profile.object_sides is None or profile.short_sides is None:
        return Value(limit, "the sizes of the objects are unknown")
    short, small = profile.short_sides[2], max(1.0, profile.object_sides[1])
    wanted = 40 * short / small
    size = int(min(limit, round_up(min(wanted, short), 32)))
    share = small * size / short
    return Value(max(64, size), f"nine of ten objects are wider than {share:.0f} pixels at this size")


@rule("more pixels place boxes more exactly: Huang et al. 2017; " + OURS)
def detection_capacity(situation: Situation, wanted: int, roomy: int) -> Capacity:
    """Backbone and shorter side for detectors: up to the size that the small objects want, with 6 epochs and 1,500
    samples, and with 500 samples one at which half of the objects are 12 pixels wide; up to 320 pixels, on a GPU 640,
    also for large objects, where the budget allows 50 epochs and 8,000 samples. Not larger than the images."""
    profile, smallest = situation.profile, 128
    if profile.short_sides is not None and profile.object_sides is not None:
        lightest = min(networks(situation), key=lambda network: network.cost)
        visible = round_up(12 * profile.short_sides[2] / max(1.0, profile.object_sides[2]), 32)
        sizes = sizes_up_to(min(wanted, visible), smallest)
        smallest = next((size for size in sizes if affordable_samples(situation, lightest, size) >= 500), smallest)
    needed = capacity(situation, wanted, epochs=6.0, samples=1_500.0, smallest=smallest)
    if profile.short_sides is not None:
        roomy = min(roomy, round_up(profile.short_sides[2], 32))
    if roomy <= needed.size:
        return needed
    larger = capacity(situation, roomy, epochs=50.0, samples=8_000.0, smallest=128)
    return larger if larger.size > needed.size else needed


class Tiling(NamedTuple):
    """Tiles of large images, for detectors.

    Attributes:
        size: side in pixels of the image.
        overlap: of neighboring tiles, as a share of their side.
        per_image: number of them in an image.
        reason: why the overlap.
    """

    size: int
    overlap: float
    per_image: int
    reason: str


@rule("Akyon et al. 2022 (SAHI); one trial in docs/log.md: AP 0.112 with tiles, 0.000 without; 12 pixels: assumed")
def needs_tiles(profile: DatasetProfile, limit: int) -> Value | None:
    """Detectors train on random crops of large images and search overlapping tiles of them: if half of the objects
    would be narrower than 12 pixels in an image of at most ``limit``, the images are 1.5 times as large, and an
    evaluation takes at most half of the budget."""
    if profile.object_sides is None or profile.short_sides is None or profile.short_sides[2] < 1.5 * limit:
        return None
    short, median, large = profile.short_sides[2], profile.object_sides[2], profile.object_sides[3]
    width = median * limit / short
    if width >= 12 or large > limit / 2:
        return None
    return Value(True, f"half of the objects would be narrower than {width:.2g} pixels in an image resized to {limit}")


@rule("an object that is as wide as the overlap is complete in one tile: docs/detection.md, large images")
def tiling(profile: DatasetProfile, size: int) -> Tiling:
    """Overlap of tiles: twice as wide as nine of ten objects, at most half a tile."""
    assert profile.object_sides is not None and profile.short_sides is not None and profile.long_sides is not None
    width = 2 * profile.object_sides[3]
    overlap = min(0.5, math.ceil(100 * width / size) / 100)
    stride = size * (1 - overlap)
    sides = profile.short_sides[2], profile.long_sides[2]
    count = math.prod(1 + math.ceil(max(0.0, side - size) / stride) for side in sides)
    return Tiling(size, overlap, count, f"{width:.0f} pixels, twice as wide as nine of ten objects")


def tiles_as_samples(situation: Situation, tiles: Tiling) -> Situation:
    """Return the situation with a sample for each tile of an image: they take the time, and epochs are of them."""
    profile = situation.profile
    counts = {name: getattr(profile, name) * tiles.per_image for name in ("samples", "val_samples", "examined")}
    return replace(situation, profile=replace(profile, **counts))


def evaluation_seconds(situation: Situation, network: Network, size: int) -> float:
    """Return the time of an evaluation."""
    return predicted_speed(situation, network, size).evaluate * situation.profile.val_samples


SURE_SAMPLES = 500
"""Validation samples that are always evaluated: of as many an accuracy of 0.9 has a standard error of 0.013."""


@rule("a budget is for training and evaluation; 500: the standard error of a share")
def validation_part(situation: Situation, speed: Speed) -> Value | None:
    """Share of the validation samples that are evaluated: all, or as many as take a tenth of the budget, at least 500.
    Those of identities are all evaluated: each image of the gallery counts."""
    samples = situation.profile.val_samples
    most = max(SURE_SAMPLES, 0.1 * situation.budget / speed.evaluate)
    if 0.9 * samples <= most or situation.task in ("reid", "selfsup"):
        return None
    share = float(f"{most / samples:.2g}")
    needed = format_seconds(speed.evaluate * samples)
    reason = f"{round(share * samples):,} of {samples:,} validation samples: an evaluation of all would take {needed}"
    return Value(share, reason)


# --- batch, learning rate, length -------------------------------------------------------------------------------------


@rule("small batches generalize better: Keskar et al. 2017; memory: opabinia benchmark --memory; " + OURS)
def batch_size(situation: Situation, samples: float, most: int, least: int, steps: int = 100) -> Value:
    """Samples of a step: a power of two, so that the run has at least about 100 steps, of videos 300, of
    detectors and segmentation 600, and an epoch at least 8."""
    profile = situation.profile
    limit = min(samples / steps, profile.samples / 8)
    size = 2 ** int(math.log2(max(least, min(most * situation.machine.ranks, limit))))
    if situation.tuning is not None and situation.tuning.batch is not None:
        size = situation.tuning.batch
    return Value(size, f"{samples / size:,.0f} steps within the budget, {profile.samples / size:.3g} in an epoch")


SAMPLE_BYTES = 150 * 2**20
"""Assumed bytes of a sample of :data:`REFERENCE` at 224 pixels in a training step."""


@rule("an assumption on the safe side; `opabinia benchmark RECIPE --memory` predicts the bytes")
def most_samples(situation: Situation, network: Network, size: int) -> int:
    """Samples of a step that surely fit into the memory of each device, of which six tenths are used."""
    needed = SAMPLE_BYTES * network.cost / NETWORKS[REFERENCE].cost * (size / REFERENCE_SIZE) ** 2
    return max(1, int(0.6 * situation.machine.memory / needed))


_WHOLE_IMAGES: tuple[TaskName, ...] = ("classification", "reid", "selfsup")
"""Tasks whose heads have few layers."""


@rule("square root scaling with Adam: Krizhevsky 2014, Malladi et al. 2022; " + OURS)
def learning_rate(network: Network, batch: int, task: TaskName) -> Value:
    """Peak learning rate of AdamW: that of the network for batches of 32, times the square root of the ratio.
    Detectors, segmentation and videos have more new layers, or more images in a sample: twice as much from scratch, six
    times with ImageNet weights; with these at most 0.001."""
    rate = network.lr * math.sqrt(batch / 32)
    if task not in _WHOLE_IMAGES:
        rate *= 6.0 if network.pretrained else 2.0
    if network.pretrained:
        rate = min(rate, 1e-3)
    start = "fine-tuning from ImageNet weights" if network.pretrained else "training from scratch"
    return Value(float(f"{rate:.2g}"), f"{start} with batches of {batch}")


@rule("frozen batch norms in fine-tuning: Ren et al. 2015, detectron2; " + OURS)
def frozen_norms(network: Network) -> Value | None:
    """Batch norms of a detector's backbone keep the statistics of ImageNet: a batch has few images."""
    return Value(True, "few images in a batch; the statistics of ImageNet are known") if network.pretrained else None


USUAL_DETECTIONS = 100
"""Detections of an image that detectors keep and COCO's scores count, if nothing else is said."""


@rule("COCO has 7 objects in an image on average, and counts 100 detections; twice as many as objects: assumed")
def detections(profile: DatasetProfile) -> Value:
    """Detections that an image may need: twice its largest number of objects, 50 to 1,000. Above 100 detectors keep and
    scores count as many; a light R-CNN has as many proposals."""
    most = 0 if profile.objects_per_image is None else int(profile.objects_per_image[4])
    return Value(max(50, min(1000, 2 * most)), f"an image has up to {most} objects")


@rule("object keypoint similarity: COCO, whose annotators deviate by 0.025 (eyes) to 0.107 (hips)")
def keypoint_scores(profile: DatasetProfile) -> Value | None:
    """Keypoints other than COCO's 17 of people all count as right within the same distance."""
    if profile.keypoints == COCO_KEYPOINTS:
        return None
    sigmas = [OTHER_SIGMA] * len(profile.keypoints)
    reason = "how exactly each can be annotated is unknown: between COCO's eyes and hips"
    return Value({"name": "coco", "sigmas": sigmas}, reason)


def tuned_rate(situation: Situation, rate: Value) -> Value:
    """Return the learning rate with the factor and the reason of a search, if there was one."""
    tuning = situation.tuning
    if tuning is None:
        return rate
    return Value(float(f"{rate.value * tuning.lr_factor:.2g}"), tuning.lr_reason or rate.reason)


LONGEST = 300
"""Epochs after which more rarely help."""


class Schedule(NamedTuple):
    """Steps of a run and when it is evaluated."""

    steps: int
    evaluations: int
    reason: str


@rule("cosine schedule to the end of the budget: Loshchilov and Hutter 2017; Li et al. 2020 (budgeted training)")
def schedule(situation: Situation, speed: Speed, batch: int, evaluated: int) -> Schedule:
    """Steps within the budget, after subtracting the evaluations, which take at most a tenth of it; at most 300 epochs
    and at least 20 steps."""
    profile = situation.profile
    evaluation = speed.evaluate * evaluated + 1.0
    epochs = situation.budget * 0.9 / (speed.train * profile.samples)
    count = int(min(10, max(1, epochs), max(1, 0.1 * situation.budget / evaluation)))
    seconds = 0.95 * situation.budget - count * evaluation
    longest = LONGEST * max(1, profile.samples // batch)
    steps = max(20, min(int(seconds / (speed.train * batch)), longest))
    reason = f"{speed.train * batch:.3g} s per step and {plural(count, 'evaluation')} of {evaluation:.0f} s"
    if steps == longest:
        reason = f"{LONGEST} epochs: more rarely help"
    return Schedule(steps, count, f"{reason} in {format_seconds(situation.budget)}")


@rule("Li et al. 2020 (budgeted training): a schedule that ends with the budget is better than a part of a longer one")
def checkpoints(schedule: Schedule) -> Value:
    """Steps between checkpoints: one with each evaluation, of which the best is kept. There is no early stopping, which
    would end a run while its learning rate is high; of more than 300 epochs no run is planned."""
    steps = max(1, -(-schedule.steps // schedule.evaluations))
    return Value(f"{steps}it", "with each evaluation; the best is kept, and the learning rate falls to the end")


@rule("Morales-Brotons et al. 2024")
def ema_decay(steps: int) -> Value | None:
    """Decay of the moving average of the weights, which spans a twentieth of the run; none below 100 steps."""
    if steps < 100:
        return None
    return Value(round(max(0.9, min(0.9998, 1 - 20 / steps)), 4), f"the average spans a twentieth of {steps} steps")


@rule("Goyal et al. 2017: warm-up of a few epochs; a tenth of a short run")
def warmup(steps: int) -> Value:
    """Steps of linear warm-up: a tenth of the run, at most 500."""
    return Value(f"{max(5, min(500, steps // 10))}it", "a tenth of the run, at most 500 steps")


@rule(
    "Clark et al. 2020 (ELECTRA); Bao et al. 2022 (BEiT); Liu et al. 2022 (ConvNeXt): 0.7 to 0.8 for three blocks "
    "together; not measured here"
)
def layer_decay(network: Network) -> Value | None:
    """Layer-wise learning rate decay: 0.9 from each block of a pretrained ConvNeXt to the one before; none for other
    networks, which have fewer layers and batch norms."""
    if not network.pretrained or not network.model.startswith("convnext"):
        return None
    return Value(0.9, "the learning rate of each block is 0.9 times that of the next one")


# --- augmentation -----------------------------------------------------------------------------------------------------

_CHARACTER = re.compile(
    r"\b(char(acter)?s?|letters?|digits?|numbers?|glyphs?|zero|one|two|three|four|five|six|seven|eight|nine)\d*\b",
    re.IGNORECASE,
)
_MIRRORED = re.compile(r"\b(left|right|links|rechts|gauche|droite|izquierda|derecha)\b", re.IGNORECASE)


@rule("a mirrored character is another one or none; a mirrored left eye is a right one")
def mirroring(classes: Sequence[str], keypoints: Sequence[str] = ()) -> Value:
    """Probability of mirroring an image: 0 if classes are characters or numbers, as single ones or by such words, or
    name a side; 0 if there are keypoints and none names a side; else 0.5."""
    names = [name.replace("_", " ") for name in classes]
    single = [name for name in names if len(name) == 1 or name.isdigit() or _CHARACTER.search(name)]
    sided = [name for name in names if _MIRRORED.search(name)]
    if names and len(single) >= len(names) / 2:
        return Value(0.0, f"classes such as {single[0]!r} may be characters; 0.5 if a mirrored image keeps its class")
    if sided:
        return Value(0.0, f"the class {sided[0]!r} names a side")
    if len(keypoints) > 1 and flip_pairs(keypoints) == [*range(len(keypoints))]:
        return Value(0.0, "no keypoint names a side such as left; 0.5 if those of mirrored images keep their places")
    return Value(0.5, "no class names a side or a character; 0 if a mirrored image has another class")


@rule("stronger augmentation for longer training and fewer samples: Cubuk et al. 2020, Wightman et al. 2021; " + OURS)
def augmentation_strength(epochs: float, samples_per_class: float) -> int:
    """Strength of the augmentation, 0 to 2: by the number of times that each image is seen, and one more for classes of
    less than 50 images."""
    return min(2, (epochs >= 4) + (epochs >= 15) + (samples_per_class < 50 and epochs >= 4))


@rule("Gupta et al. 2019 (LVIS); Kang et al. 2020 (decoupling)")
def needs_balancing(per_class: Sequence[int]) -> Value | None:
    """Rare classes are drawn more often if the largest class has more than 20 times as many samples as the smallest."""
    counts = [count for count in per_class if count]
    if len(counts) < 2 or max(counts) <= 20 * min(counts):
        return None
    return Value(True, f"classes have {min(counts)} to {max(counts)} samples")


# --- identities and videos --------------------------------------------------------------------------------------------


@rule("P x K sampling: Hermans et al. 2017; K at most the median number of images")
def instances(profile: DatasetProfile) -> Value:
    """Images of an identity in a batch: 8, 4 or 2, not more than the median identity has."""
    median = 4.0 if profile.images_per_identity is None else profile.images_per_identity[2]
    count = 8 if median >= 8 else 4 if median >= 4 else 2
    return Value(count, f"the median identity has {median:.0f} images")


def image_shape(profile: DatasetProfile, size: int) -> tuple[int, int]:
    """Return height and width of images as tall or wide as the median one, with about the area of a square of this
    size; multiples of 32."""
    aspect = 1.0 if profile.aspects is None else max(0.4, min(2.5, profile.aspects[2]))
    height, width = (max(32, round(size * factor / 32) * 32) for factor in (aspect**-0.5, aspect**0.5))
    return height, width


@rule("segments over the whole video: Wang et al. 2016 (TSN)")
def frames(profile: DatasetProfile, machine: Machine) -> Value:
    """Frames of a clip, spread over the video: 8, and 16 on a GPU for videos of more than 10 seconds."""
    seconds = 0.0 if profile.seconds is None else profile.seconds[2]
    count = 16 if machine.has_gpu and seconds > 10 else 8
    return Value(count, f"spread over videos of {seconds:.3g} s (median)")
