"""Initialize a model with weights from a file: match names and shapes, and report what did not fit."""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isqrt
from pathlib import Path
from typing import Any

from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from timm.models import adapt_input_conv
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Task
from opabinia.models.backbones.video.inflate import inflate_kernel
from opabinia.models.lora import plain_names
from opabinia.models.weights import multitask
from opabinia.models.weights.class_rows import ClassNames, rows_by_name
from opabinia.models.weights.files import read_weights
from opabinia.models.weights.translation import ChannelOrder, Translation, adapt_shape, translate_weights
from opabinia.runtime.text import printable


@register.section(name="init")
@dataclass(frozen=True, kw_only=True)
class Init:
    """Initial weights.

    Layers with outputs for classes are filled by class name if the weights are of a run, which knows its classes:
    classes that the run does not have keep their initialization. Weights of other files, of multi-task runs, and of
    heads for identities are filled by position, if they have the same number of classes.

    Args:
        weights: a run folder, a checkpoint in it, or a file: .safetensors, .pth, .pt, .bin, .tar, .pkl. Names of
            detectron2, torchvision's detectors and other systems are translated (:mod:`opabinia.migration.weights`).
            ``hf:OWNER/NAME`` is a repository of the Hugging Face Hub, which is downloaded once.
        target_prefix: the part of the task to initialize, such as ``backbone``; if the file has such a part, too, only
            that is used. ``tasks.NAME`` is a task of a multi-task run together with the backbone. Empty: the whole
            task.
        source_prefix: the part of the file to use, such as ``encoder_q``; null finds the one that fits. ``tasks.NAME``
            is a task of a multi-task run together with the backbone.
        include: a regular expression; only tensors of the task (below ``target_prefix``) with a match in their name are
            initialized.
        ema: use averaged weights.
        channel_order: color channel order of the file's first convolution: ``rgb`` or ``bgr``; it is converted to RGB.
            null: ``bgr`` for detectron2's and Caffe2's names, otherwise ``rgb``.
        partial: accept a file that does not fill the whole backbone, such as plain weights for a network with added
            layers, or whose other parts have other layers than the task's; without it this is an error, since a network
            of another architecture could be filled in part.
        strict: raise an error if anything does not fit.
    """

    weights: Path
    target_prefix: str = ""
    source_prefix: str | None = None
    include: str | None = None
    ema: bool = False
    channel_order: ChannelOrder | None = None
    partial: bool = False
    strict: bool = False


def initialize(task: nn.Module, init: Init, classes: ClassNames | None = None) -> LoadReport:
    """Fill ``task`` with the weights of ``init``.

    Args:
        task: the model.
        init: the weights.
        classes: see :func:`load_matching`.

    Raises:
        ValueError: the file cannot be read, nothing of it fits, a tensor of the backbone is not filled and not
            ``partial``, or with ``strict`` not everything fits. The task is unchanged, except with ``strict``.
    """
    try:
        part = task.get_submodule(init.target_prefix)
    except AttributeError as error:
        parts = ", ".join(name for name, _ in task.named_children())
        raise ValueError(f"target_prefix: the task has no {init.target_prefix!r}; it has: {parts}") from error
    target, source = init.target_prefix, init.source_prefix
    weights, translated = read_translated(init.weights, ema=init.ema, channel_order=init.channel_order)
    if all(prefix.startswith(multitask.PREFIX) for prefix in (source, target) if prefix):
        try:
            weights = multitask.rename_tasks(
                weights, task.state_dict(), source=source or "", target=target, path=init.weights
            )
        except ValueError as error:
            raise ValueError(printable(f"{init.weights}: {error}")) from error
        part, target, source = task, "", ""
    prefix = f"{target}." if target else ""
    if source is None:
        source = target if any(name.startswith(prefix) for name in weights) else ""
    backbone = "" if "backbone" in target.split(".") else "backbone."
    try:
        report = load_matching(
            part,
            weights,
            source_prefix=source,
            include=init.include,
            required=None if init.partial else backbone,
            classes=classes,
        )
    except ValueError as error:
        raise ValueError(printable(f"{init.weights}: {error}")) from error
    report = replace(report, translated=translated)
    if init.strict and not report.complete:
        raise ValueError(f"strict: not everything fits; {init.weights}: {report.one_line}")
    if isinstance(task, Task):
        task.weights_loaded([f"{prefix}{name}" for name in report.loaded])
    return report


def read_translated(path: Path, *, ema: bool = False, channel_order: ChannelOrder | None = None) -> Translation:
    """Read the weights of a file under our names.

    Args:
        path: see :func:`opabinia.models.weights.files.read_weights`.
        ema: likewise.
        channel_order: see :func:`opabinia.models.weights.translation.translate_weights`.

    Raises:
        ValueError: the file cannot be read, or its tensors are not those that its names announce.
        StorageError: remote storage does not give it.
    """
    weights = read_weights(path, ema=ema)
    try:
        return translate_weights(weights, channel_order)
    # Translations index, split and join the tensors that a format has.
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its names are those of a known system, its tensors are not: {error}") from error


# --- loading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadReport:
    """The result of loading weights into a model; ``str`` formats it for people.

    Attributes:
        prefixes: pairs of a prefix in the file and the prefix that replaces it in the model.
        loaded: names of the model's tensors that were filled.
        resized: those of them that were resized, with both shapes.
        missing: names of the model that the file does not have.
        unexpected: names of the file that the model does not have.
        other_shape: names of the model that have another shape in the file, with both shapes; they stay unchanged.
        translated: the system whose names the file has, and changes to its weights; empty without.
        classes: if layers were filled by class name.
    """

    prefixes: tuple[tuple[str, str], ...]
    loaded: tuple[str, ...]
    resized: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    other_shape: Mapping[str, str]
    translated: str = ""
    classes: ClassNames | None = None

    @property
    def complete(self) -> bool:
        """True if all tensors of the file were used and all of the model were filled."""
        return not (self.missing or self.unexpected or self.other_shape or (self.classes and self.classes.new))

    def __str__(self) -> str:
        return "\n  ".join(self._parts())

    @property
    def one_line(self) -> str:
        """The report for an error message."""
        return "; ".join(self._parts())

    def _parts(self) -> list[str]:
        total = len(self.loaded) + len(self.missing) + len(self.other_shape)
        moved = printable(", ".join(f"{old}* as {new}*" for old, new in self.prefixes if old != new))
        details = "; ".join(filter(None, (self.translated, moved)))
        parts = [f"{len(self.loaded)} of {total} tensors loaded" + (f" ({details})" if details else "")]
        if self.classes:
            total, new = len(self.classes.model), self.classes.new
            known = (
                f"head: {total - len(new)} of {total} classes by name from the {len(self.classes.weights)} of the run"
            )
            parts.append(known + (f"; new: {_list_first(new)}" if new else ""))
        groups = (
            ("resized", [f"{name} {shapes}" for name, shapes in self.resized.items()]),
            ("missing in the file", self.missing),
            ("unexpected in the file", self.unexpected),
            ("skipped, of another shape", [f"{name} {shapes}" for name, shapes in self.other_shape.items()]),
        )
        return parts + [f"{group} ({len(names)}): {_list_first(names)}" for group, names in groups if names]


def load_matching(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    source_prefix: str = "",
    include: str | None = None,
    required: str | None = None,
    classes: ClassNames | None = None,
) -> LoadReport:
    """Copy tensors of the same name and shape into ``model``, whatever the prefixes of names on either side.

    Position embeddings and tables of relative positions are resized and a first convolution is adapted to its channels,
    as timm does; 2-d kernels are inflated to 3-d ones (:func:`opabinia.models.backbones.video.inflate.inflate_kernel`);
    other tensors of another shape (without ``classes``, a classifier of other classes) are skipped. A model with
    adapters (LoRA) is filled like one without; adapters stay unchanged.

    Args:
        source_prefix: the part of ``weights`` to use, such as ``encoder_q``; the rest is ignored.
        include: a regular expression; only tensors of the model with a match in their name are filled.
        required: a prefix of the model's names; all tensors with it (of those in ``include``) must be filled.
        classes: if they differ, layers with rows for classes are filled by name
            (:func:`opabinia.models.weights.class_rows.rows_by_name`); None: their classes are the same.

    Raises:
        ValueError: nothing fits, not all that is required does, or it fits in several ways; the model is unchanged.
    """
    start = f"{source_prefix.rstrip('.')}." if source_prefix else ""
    given = {name: tensor for name, tensor in weights.items() if name.startswith(start) and not _is_computed(name)}
    if not given:
        raise ValueError(f"source_prefix: no name begins with {start!r}; names: {_list_first(weights)}")
    state = model.state_dict()
    names = plain_names(state)
    targets = {plain: state[name] for plain, name in names.items() if not _is_computed(plain)}
    wanted = _filter_names(include, targets)
    prefixes, matches = _match_names(given, targets)
    # Streams of a multi-task run that the file does not have begin with its statistics.
    streams = {name: multitask.without_stream(name) for name in targets.keys() - matches.keys()}
    matches |= {name: matches[plain] for name, plain in streams.items() if plain in matches}
    sources = {name: given[matches[name]] for name in wanted if name in matches}
    by_name = {}
    if classes is not None and classes.model != classes.weights:
        by_name = rows_by_name(model, targets, sources, classes)
    fitting, resized, other_shape = _adapt_shapes(model, targets, sources | by_name)
    if all(_is_counter(name) for name in fitting):
        other = f"; of another shape: {_list_first(map(' '.join, other_shape.items()))}" if other_shape else ""
        raise ValueError(f"nothing fits: the file has {_list_first(given)}; the model has {_list_first(wanted)}{other}")
    used = set(matches.values())
    report = LoadReport(
        prefixes=prefixes,
        loaded=tuple(names[name] for name in fitting),
        resized=resized,
        # Old files lack the counters of batch norms; no output depends on them.
        missing=tuple(name for name in wanted if name not in matches and not _is_counter(name)),
        unexpected=tuple(name for name in given if name not in used),
        other_shape=other_shape,
        classes=classes if by_name else None,
    )
    if required is not None:
        _check_filled(report, required)
    for name, tensor in fitting.items():
        targets[name].copy_(tensor)
    return report


def _check_filled(report: LoadReport, required: str) -> None:
    """Check that all tensors whose names begin with ``required`` are loaded, and at least half of each other part of
    the model, such as ``detector.``, of which the file has other layers, too.

    Raises:
        ValueError: some are not.
    """
    missing, unexpected = (set(map(multitask.part_of, names)) for names in (report.missing, report.unexpected))
    for part in (required, *sorted(missing & unexpected)):
        unfilled = sum(name.startswith(part) for name in (*report.missing, *report.other_shape))
        loaded = sum(name.startswith(part) for name in report.loaded)
        if unfilled and (part == required or 0 < loaded < unfilled):
            raise ValueError(
                f"{unfilled} of {unfilled + loaded} tensors of the {part.rstrip('.') or 'backbone'} are not filled, so "
                f"none is loaded: the file has another architecture, or another part of it is meant (source_prefix, "
                f"target_prefix); partial: true loads what fits: {report.one_line}"
            )


def _adapt_shapes(
    model: nn.Module, targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, str]]:
    """Return ``sources`` in the shapes of ``targets``, both shapes of resized tensors, and of those that do not fit."""
    fitting, resized, other_shape = {}, {}, {}
    for name, source in sources.items():
        target = targets[name]
        adapted = source if source.shape == target.shape else _resize(model, name, source, target)
        shapes = " -> ".join("x".join(map(str, tensor.shape)) or "number" for tensor in (source, target))
        if target.is_floating_point() and not source.is_floating_point():  # such as quantized or complex ones
            adapted, shapes = None, f"{shapes} (of {str(source.dtype).removeprefix('torch.')})"
        if adapted is None:
            other_shape[name] = shapes
            continue
        if adapted is not source:
            resized[name] = shapes
        fitting[name] = adapted
    return fitting, resized, other_shape


def _filter_names(pattern: str | None, names: Iterable[str]) -> list[str]:
    try:
        matching = [name for name in names if re.search(pattern or "", name)]
    except re.error as error:
        raise ValueError(f"include: {pattern!r} is not a regular expression: {error}") from error
    if not matching:
        raise ValueError(f"include: no tensor of the model has {pattern!r} in its name: {_list_first(names)}")
    return matching


def _is_computed(name: str) -> bool:
    """Return whether a tensor is not a weight: it follows from the sizes of the model, or is the state of the balance
    in a multi-task run."""
    computed = ("relative_position_index", "relative_coords_table", "attn_mask", "n_points_scale")
    return name.rpartition(".")[2] in computed or name.startswith("balance.")


def _is_counter(name: str) -> bool:
    """Return whether a buffer only counts the batches of a norm."""
    return name.endswith("num_batches_tracked")


def _list_first(names: Iterable[str]) -> str:
    names, count = list(names), 5
    more = f" ... ({len(names) - count} more)" if len(names) > count else ""
    return ", ".join(printable(name)[:200] for name in names[:count]) + more


# --- matching names -------------------------------------------------------------------------------------------------

Prefixes = tuple[str, str]
"""A prefix of names in the file, and the one that replaces it in the model."""


def _match_names(
    given: Mapping[str, Tensor], targets: Mapping[str, Tensor]
) -> tuple[tuple[Prefixes, ...], dict[str, str]]:
    """Map names of the model to names in the file, and return the prefixes by which they differ."""
    main = _main_prefixes(given, targets)
    if main is None:
        return (), {}
    prefixes = [main]
    matches = _replace_prefix(given, targets, *main)
    # The remaining names may belong, or have belonged, to another part: a classifier outside of the backbone.
    while more := _further_prefixes(given.keys() - matches.values(), targets.keys() - matches.keys(), main):
        prefixes.append(more)
        matches = {**_replace_prefix(given.keys() - matches.values(), targets, *more), **matches}
    return tuple(prefixes), matches


def _replace_prefix(given: Iterable[str], targets: Iterable[str], old: str, new: str) -> dict[str, str]:
    targets = set(targets)
    moved = {new + name.removeprefix(old): name for name in given if name.startswith(old)}
    return {target: name for target, name in moved.items() if target in targets}


def _main_prefixes(given: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Prefixes | None:
    """Return the pair of prefixes with which most names and shapes agree; every two tensors with the same end of their
    names and the same shape have a vote.

    Among equal pairs, the one that keeps names unchanged wins: a run may have a second network like the first
    (``backbone``, ``teacher.backbone``). It also wins if more names are equal, whatever their shapes.

    Raises:
        ValueError: several other pairs have most votes.
    """
    alike: dict[Any, list[str]] = defaultdict(list)
    for name, tensor in targets.items():
        alike[name.rpartition(".")[2], tensor.shape].append(name)
    votes: Counter[Prefixes] = Counter()
    for name, tensor in given.items():
        for target in alike[name.rpartition(".")[2], tensor.shape]:
            old, new, shared = _split_common_suffix(name, target)
            # In two different modules, equal "weight" and "bias" mean nothing.
            if shared > 1 or not old or not new:
                votes[old, new] += 1
    if not votes:
        return None
    best = max(votes.values())
    if len(given.keys() & targets.keys()) > best:
        return "", ""  # the same network of another width
    winners = sorted(pair for pair, count in votes.items() if count == best)
    if 10 * best < min(len(given), len(targets)):
        return None  # a coincidence
    if ("", "") in winners:
        return "", ""
    if len(winners) > 1:
        ways = "; ".join(f"{old}* as {new}*" for old, new in winners[:4])
        raise ValueError(
            f"it fits in several ways ({ways}): set source_prefix (part of the file) or target_prefix (of the task)"
        )
    return winners[0]


def _split_common_suffix(name: str, target: str) -> tuple[str, str, int]:
    """Return the prefixes of two names before their longest common suffix, and the number of its components."""
    a, b = name.split("."), target.split(".")
    pairs = zip(reversed(a), reversed(b), strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    old, new = ("".join(f"{part}." for part in parts[: len(parts) - shared]) for parts in (a, b))
    return old, new, shared


def _further_prefixes(given: Iterable[str], targets: Iterable[str], main: Prefixes) -> Prefixes | None:
    """Return the pair of prefixes with which most of these names agree, among those with one side of the main pair."""
    old, new = main
    votes: Counter[Prefixes] = Counter()
    targets = list(targets)
    for name in given:
        for target in targets:
            rest = name.removeprefix(old)
            if name.startswith(old) and "." in rest and f".{target}".endswith(f".{rest}"):
                votes[old, target.removesuffix(rest)] += 1
            rest = target.removeprefix(new)
            if target.startswith(new) and "." in rest and f".{name}".endswith(f".{rest}"):
                votes[name.removesuffix(rest), new] += 1
    return min(votes, key=lambda pair: (-votes[pair], pair), default=None)


# --- other shapes ---------------------------------------------------------------------------------------------------

_MAX_IMAGE_CHANNELS = 16
"""Satellite images included; a layer with more input channels takes features."""


def _resize(model: nn.Module, name: str, tensor: Tensor, target: Tensor) -> Tensor | None:
    """Convert ``tensor`` to the shape of ``target``; None if there is no sound way to do so."""
    path, _, kind = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    try:
        if kind in ("pos_embed", "pos_embedding", "position_embeddings"):
            resized = _resize_positions(owner, tensor, target)
        elif kind == "relative_position_bias_table":
            with warnings.catch_warnings(action="ignore"):  # torch warns timm about performance
                resized = resize_rel_pos_bias_table(tensor, owner.window_size, tuple(target.shape))
        elif kind == "weight" and _is_first_conv(model, owner) and tensor.shape[1] <= _MAX_IMAGE_CHANNELS:
            resized = adapt_input_conv(target.shape[1], tensor, base_chans=tensor.shape[1])
        elif isinstance(owner, nn.Conv3d) and kind == "weight" and tensor.ndim == 4:
            if owner.in_channels != tensor.shape[1] <= _MAX_IMAGE_CHANNELS:  # the first one; others fail by their shape
                tensor = adapt_input_conv(owner.in_channels, tensor, base_chans=tensor.shape[1])
            resized = inflate_kernel(tensor, target.shape[2])
        else:
            return adapt_shape(name, tensor, target)
    # timm validates its input in many ways.
    except (AttributeError, AssertionError, NotImplementedError, RuntimeError, ValueError, TypeError, IndexError):
        return None
    return resized if resized.shape == target.shape else None


def _resize_positions(owner: Any, tensor: Tensor, target: Tensor) -> Tensor:
    """Resize a position embedding (1 x tokens x D) to another grid; the tokens before the grid stay unchanged.

    Raises:
        ValueError: the tokens are not such a grid.
    """
    old, new = tensor.shape[1], target.shape[1]
    grid = getattr(getattr(owner, "patch_embed", None), "grid_size", None)
    # Without a known grid: the smallest number of tokens before it with which both are squares.
    prefixes = [new - grid[0] * grid[1]] if grid else range(min(old, new))
    for prefix in prefixes:
        side = isqrt(old - prefix)
        height, width = grid or (isqrt(new - prefix),) * 2
        if prefix + side**2 == old and prefix + height * width == new:
            resized: Tensor = resample_abs_pos_embed(tensor, [height, width], [side, side], num_prefix_tokens=prefix)
            return resized
    raise ValueError("no square grid")


def _is_first_conv(model: nn.Module, layer: nn.Module) -> bool:
    """Return whether ``layer`` is the first convolution of ``model`` and takes images."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return first is not None and layer is first and first.groups == 1 and first.in_channels <= _MAX_IMAGE_CHANNELS
