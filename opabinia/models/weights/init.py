"""Weights from elsewhere: read without running code, fitted by name and shape, and told what did not fit."""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any

from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from timm.models import adapt_input_conv
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Task
from opabinia.models.backbones.video.inflate import inflated_kernel
from opabinia.models.weights.files import read_weights
from opabinia.models.weights.translate import Colours, of_coco, translated


@register.section(name="init")
@dataclass(frozen=True, kw_only=True)
class Init:
    """Weights to begin with.

    Args:
        weights: a run folder, a checkpoint in it, or a file: .safetensors, .pth, .pt, .bin, .tar, .pkl. Names of
            detectron2, of torchvision's detectors and of the like are known (:mod:`opabinia.models.weights.translate`).
        into: the part of the task that gets them, such as ``backbone``; of a file that has such a part, too, only that
            is taken. Empty: the whole task.
        take: the part of the file that is taken, such as ``encoder_q``; null finds what fits.
        only: a regular expression that the names of the task's tensors (below ``into``) must contain to be filled.
        ema: take averaged weights.
        colours: the order that the first convolution takes colours in: ``rgb`` or ``bgr``; it is turned to RGB. null:
            ``bgr`` for detectron2's and Caffe2's names, otherwise ``rgb``.
        strict: anything that does not fit is an error.
    """

    weights: Path
    into: str = ""
    take: str | None = None
    only: str | None = None
    ema: bool = False
    colours: Colours | None = None
    strict: bool = False


def initialise(task: nn.Module, init: Init) -> Report:
    """Fill ``task`` with the weights that ``init`` names.

    Raises:
        ValueError: the file cannot be read, nothing of it fits, or with ``strict`` not everything does.
    """
    try:
        part = task.get_submodule(init.into)
    except AttributeError as error:
        parts = ", ".join(name for name, _ in task.named_children())
        raise ValueError(f"into: the task has no {init.into!r}; it has: {parts}") from error
    weights, told = translated(read_weights(init.weights, ema=init.ema), init.colours)
    take = init.take
    if take is None and init.into and any(name.startswith(f"{init.into}.") for name in weights):
        take = init.into
    try:
        report = replace(fit(part, weights, take=take or "", only=init.only), translated=told)
    except ValueError as error:
        raise ValueError(f"{init.weights}: {error}") from error
    if init.strict and not report.complete:
        raise ValueError(f"strict: not everything fits; {init.weights}: {report}")
    if isinstance(task, Task):
        task.initialised([f"{init.into}.{name}" if init.into else name for name in report.loaded])
    return report


# --- fitting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What became of weights and of the model that got them; ``str`` of it is for people.

    Attributes:
        prefixes: what stands before names in the file and, in its place, in the model.
        loaded: names of the model's tensors that were filled.
        resized: those of them that had to be made to fit, with both shapes.
        missing: names of the model that the file does not have.
        unexpected: names of the file that the model does not have.
        other_shape: names of the model that have another shape in the file, with both shapes; they stay as they were.
        translated: whose names the file has, and what was done to its weights; empty if nothing was.
    """

    prefixes: tuple[tuple[str, str], ...]
    loaded: tuple[str, ...]
    resized: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    other_shape: Mapping[str, str]
    translated: str = ""

    @property
    def complete(self) -> bool:
        """Whether everything of the file found its place and everything of the model was filled."""
        return not (self.missing or self.unexpected or self.other_shape)

    def __str__(self) -> str:
        of = len(self.loaded) + len(self.missing) + len(self.other_shape)
        moved = ", ".join(f"{old}* as {new}*" for old, new in self.prefixes if old != new)
        how = "; ".join(filter(None, (self.translated, moved)))
        lines = [f"{len(self.loaded)} of {of} tensors loaded" + (f" ({how})" if how else "")]
        told = (
            ("resized", [f"{name} {shapes}" for name, shapes in self.resized.items()]),
            ("missing in the file", self.missing),
            ("unexpected in the file", self.unexpected),
            ("left out, of another shape", [f"{name} {shapes}" for name, shapes in self.other_shape.items()]),
        )
        lines += [f"  {what} ({len(names)}): {_first(names)}" for what, names in told if names]
        return "\n".join(lines)


def fit(model: nn.Module, weights: Mapping[str, Tensor], *, take: str = "", only: str | None = None) -> Report:
    """Copy into ``model`` what has the same name and shape, whatever stands before the names on either side.

    Position embeddings and tables of relative positions are resized, a first convolution is fitted to its number of
    channels, all as timm does; kernels over places become kernels over frames and places
    (:func:`opabinia.models.backbones.video.inflate.inflated_kernel`); other tensors of another shape (a classifier of other
    classes) are left out.

    Args:
        take: the part of ``weights`` to take, such as ``encoder_q``; the rest is not looked at.
        only: a regular expression that the names of the model's tensors must contain to be filled.

    Raises:
        ValueError: nothing fits, or it fits in several ways.
    """
    take = f"{take.rstrip('.')}." if take else ""
    given = {name: tensor for name, tensor in weights.items() if name.startswith(take) and not _computed(name)}
    if not given:
        raise ValueError(f"take: no name begins with {take!r}; names: {_first(weights)}")
    targets = {name: tensor for name, tensor in model.state_dict().items() if not _computed(name)}
    wanted = _containing(only, targets)
    prefixes, places = _places(given, targets)
    sources = {name: given[places[name]] for name in wanted if name in places}
    resized, other_shape = _fill(model, targets, sources)
    used = set(places.values())
    loaded = tuple(name for name in sources if name not in other_shape)
    if all(_counts(name) for name in loaded):
        other = f"; of another shape: {_first(map(' '.join, other_shape.items()))}" if other_shape else ""
        raise ValueError(f"nothing fits: the file has {_first(given)}; the model has {_first(wanted)}{other}")
    return Report(
        prefixes=prefixes,
        loaded=loaded,
        resized=resized,
        # Counters of batch norms are younger than many files; nothing computed hangs on them.
        missing=tuple(name for name in wanted if name not in places and not _counts(name)),
        unexpected=tuple(name for name in given if name not in used),
        other_shape=other_shape,
    )


def _fill(
    model: nn.Module, targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]
) -> tuple[dict[str, str], dict[str, str]]:
    """Copy ``sources`` over ``targets``; tells both shapes of what was resized, and of what could not be."""
    resized, other_shape = {}, {}
    for name, source in sources.items():
        target = targets[name]
        shapes = f"{_shape(source)} -> {_shape(target)}"
        fitted = source if source.shape == target.shape else _fitted(model, name, source, target)
        if fitted is None:
            other_shape[name] = shapes
            continue
        if fitted is not source:
            resized[name] = shapes
        target.copy_(fitted)
    return resized, other_shape


def _containing(pattern: str | None, names: Iterable[str]) -> list[str]:
    try:
        found = [name for name in names if re.search(pattern or "", name)]
    except re.error as error:
        raise ValueError(f"only: {pattern!r} is no regular expression: {error}") from error
    if not found:
        raise ValueError(f"only: no tensor of the model has {pattern!r} in its name: {_first(names)}")
    return found


def _computed(name: str) -> bool:
    """Whether a model computes this buffer from its sizes, so that it is no weight."""
    return name.rpartition(".")[2] in ("relative_position_index", "relative_coords_table", "attn_mask")


def _counts(name: str) -> bool:
    """Whether this buffer only counts the batches that a norm has seen."""
    return name.endswith("num_batches_tracked")


def _first(names: Iterable[str], count: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:count]) + (f" ... ({len(names) - count} more)" if len(names) > count else "")


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape) or "number"


# --- which name is which --------------------------------------------------------------------------------------------

Prefixes = tuple[str, str]
"""What stands before names in the file, and in its place in the model."""


def _places(given: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> tuple[tuple[Prefixes, ...], dict[str, str]]:
    """For names of the model their name in the file, and what the two differ in."""
    first = _main_prefixes(given, targets)
    if first is None:
        return (), {}
    found = [first]
    places = _moved(given, targets, *first)
    # What is left may have stood, or may now stand, in another part: a classifier beside the backbone.
    while more := _further_prefixes(given.keys() - places.values(), targets.keys() - places.keys(), first):
        found.append(more)
        places = {**_moved(given.keys() - places.values(), targets, *more), **places}
    return tuple(found), places


def _moved(given: Iterable[str], targets: Iterable[str], old: str, new: str) -> dict[str, str]:
    targets = set(targets)
    moved = {new + name.removeprefix(old): name for name in given if name.startswith(old)}
    return {target: name for target, name in moved.items() if target in targets}


def _main_prefixes(given: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Prefixes | None:
    """The pair by which most names and shapes agree; every two tensors that end alike have a vote.

    Of pairs with as many votes that one wins by which names stay the same: a run may have a second network like the
    first (``backbone``, ``teacher.backbone``).

    Raises:
        ValueError: two others have as many votes.
    """
    alike: dict[Any, list[str]] = defaultdict(list)
    for name, tensor in targets.items():
        alike[name.rpartition(".")[2], tensor.shape].append(name)
    votes: Counter[Prefixes] = Counter()
    for name, tensor in given.items():
        for target in alike[name.rpartition(".")[2], tensor.shape]:
            old, new, shared = _split(name, target)
            # Below two different modules the mere names "weight" and "bias" say nothing.
            if shared > 1 or not old or not new:
                votes[old, new] += 1
    if not votes:
        return None
    best = max(votes.values())
    winners = sorted(pair for pair, count in votes.items() if count == best)
    if 10 * best < min(len(given), len(targets)):
        return None  # a coincidence
    if ("", "") in winners:
        return "", ""
    if len(winners) > 1:
        ways = "; ".join(f"{old}* as {new}*" for old, new in winners[:4])
        raise ValueError(
            f"it fits in several ways ({ways}): say which by take (part of the file) or into (of the task)"
        )
    return winners[0]


def _split(name: str, target: str) -> tuple[str, str, int]:
    """What two names begin with before their longest common ending, and how many places that ending has."""
    a, b = name.split("."), target.split(".")
    shared = 0
    while shared < min(len(a), len(b)) and a[-1 - shared] == b[-1 - shared]:
        shared += 1
    return _dotted(a[: len(a) - shared]), _dotted(b[: len(b) - shared]), shared


def _dotted(places: Sequence[str]) -> str:
    return "".join(f"{place}." for place in places)


def _further_prefixes(given: Iterable[str], targets: Iterable[str], first: Prefixes) -> Prefixes | None:
    """The pair by which most of these names agree, if on one side it is that of the others."""
    old, new = first
    votes: Counter[Prefixes] = Counter()
    targets = list(targets)
    for name in given:
        for target in targets:
            rest = name.removeprefix(old)
            if name.startswith(old) and "." in rest and target.endswith("." + rest):
                votes[old, target.removesuffix(rest)] += 1
            rest = target.removeprefix(new)
            if target.startswith(new) and "." in rest and name.endswith("." + rest):
                votes[name.removesuffix(rest), new] += 1
    return min(votes, key=lambda pair: (-votes[pair], pair), default=None)


# --- other shapes ---------------------------------------------------------------------------------------------------


def _fitted(model: nn.Module, name: str, tensor: Tensor, target: Tensor) -> Tensor | None:
    """``tensor`` in the shape of ``target`` where there is a sound way to do so."""
    path, _, kind = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    try:
        if kind in ("pos_embed", "pos_embedding", "position_embeddings"):
            fitted = _positions(owner, tensor, target)
        elif kind == "relative_position_bias_table":
            with warnings.catch_warnings(action="ignore"):  # of torch to timm, on speed
                fitted = resize_rel_pos_bias_table(tensor, owner.window_size, tuple(target.shape))
        elif kind == "weight" and _sees_images(model, owner) and tensor.shape[1] <= _MOST_CHANNELS:
            fitted = adapt_input_conv(target.shape[1], tensor, base_chans=tensor.shape[1])
        elif isinstance(owner, nn.Conv3d) and kind == "weight" and tensor.ndim == 4:
            if owner.in_channels != tensor.shape[1] <= _MOST_CHANNELS:  # the first one; others fail by their shape
                tensor = adapt_input_conv(owner.in_channels, tensor, base_chans=tensor.shape[1])
            fitted = inflated_kernel(tensor, target.shape[2])
        else:
            return of_coco(name, tensor, target)
    # timm checks what it can do in many ways.
    except (AttributeError, AssertionError, NotImplementedError, RuntimeError, ValueError, TypeError, IndexError):
        return None
    return fitted if fitted.shape == target.shape else None


def _positions(owner: Any, tensor: Tensor, target: Tensor) -> Tensor:
    """A position embedding (1 x tokens x D) for another grid; the tokens before the grid stay as they are.

    Raises:
        ValueError: the tokens are no such grid.
    """
    old, new = tensor.shape[1], target.shape[1]
    grid = getattr(getattr(owner, "patch_embed", None), "grid_size", None)
    # Without a grid: as few tokens before it as make both a square.
    ahead = [new - grid[0] * grid[1]] if grid else range(min(old, new))
    for prefix in ahead:
        side = isqrt(old - prefix)
        height, width = grid or (isqrt(new - prefix),) * 2
        if prefix + side**2 == old and prefix + height * width == new:
            fitted: Tensor = resample_abs_pos_embed(tensor, [height, width], [side, side], num_prefix_tokens=prefix)
            return fitted
    raise ValueError("no square grid")


_MOST_CHANNELS = 16
"""Of an image, satellite images included; a layer of more takes features."""


def _sees_images(model: nn.Module, layer: nn.Module) -> bool:
    """Whether ``layer`` is the first convolution of ``model``."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return first is not None and layer is first and first.groups == 1 and first.in_channels <= _MOST_CHANNELS
