"""The last changes to pictures done by batch on the device, with what each sample draws in its worker.

A list of transforms is cut in two (:func:`parted`). Workers do the first part and run the second one on a picture that
only notes (:mod:`opabinia.data.device_transforms.recorded`); so the draws are those of a run that does everything in its workers. They
send pictures as they are after the first part, and an agenda (:func:`agenda`): which change is next for which rows.
:class:`OnDevice` goes through it, then resizes and mixes the batch, which has to come after.

Numbers are computed as torchvision computes them for one picture: on the CPU the result is the same to the last bit;
another device may round otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

# The only two parts of a change of hue; what is public takes one change for all pictures.
from torchvision.transforms.v2.functional._color import _hsv_to_rgb, _rgb_to_hsv

from opabinia.contracts import Batch, Mix, Row, Sample, Transform
from opabinia.data.device_transforms.recorded import CHANGES, Change, Recorded
from opabinia.data.loader import Reader
from opabinia.data.transforms.augment import Blur, Erase, lighting, weights_of
from opabinia.data.transforms.instances import Tidied
from opabinia.data.transforms.patch_masks import block_patches, random_patches
from opabinia.data.transforms.views import Views
from opabinia.runtime.seeds import generators_kept

# --- which transforms ------------------------------------------------------------------------------------------------

BY_BATCH = (
    Blur,
    Erase,
    v2.AutoAugment,
    v2.ColorJitter,
    v2.RandAugment,
    v2.RandomAdjustSharpness,
    v2.RandomAutocontrast,
    v2.RandomChannelPermutation,
    v2.RandomEqualize,
    v2.RandomErasing,
    v2.RandomGrayscale,
    v2.RandomHorizontalFlip,
    v2.RandomInvert,
    v2.RandomPhotometricDistort,
    v2.RandomPosterize,
    v2.RandomSolarize,
    v2.RandomVerticalFlip,
    v2.TrivialAugmentWide,
)
"""Transforms that leave a picture's size as it is and of which every change can be noted."""

OF_OTHERS = (v2.RandomApply, v2.RandomChoice, v2.RandomOrder)
"""Those that do what others do."""

FUNCTIONS: tuple[Callable[..., Any], ...] = (lighting, random_patches, block_patches)
"""As functions; masks of patches leave pictures as they are."""


def by_batch(transform: Transform) -> bool:
    """Whether what a transform does can be done later, for a batch at once."""
    if isinstance(transform, Tidied):
        return by_batch(transform.transform)
    if isinstance(transform, partial):
        return transform.func in FUNCTIONS
    if isinstance(transform, OF_OTHERS):
        return all(map(by_batch, transform.transforms))
    if isinstance(transform, v2.RandomErasing):
        return transform.value is not None  # noise is drawn pixel by pixel
    return isinstance(transform, BY_BATCH) or transform in FUNCTIONS


def parted(transforms: Sequence[Transform]) -> tuple[list[Transform], list[Transform]]:
    """The transforms of workers, and those behind them that can be done by batch; of ``views`` all belong to the
    former, which part the transforms of each view again."""
    first = len(transforms)
    while first and by_batch(transforms[first - 1]):
        first -= 1
    return list(transforms[:first]), list(transforms[first:])


def noted(transforms: Sequence[Transform]) -> list[Transform]:
    """Transforms for workers: those that can be done by batch only note what they would do."""
    workers, later = parted(transforms)
    if later:
        return [*workers, Noting(later)]
    if workers and isinstance(workers[-1], Views):
        return [*workers[:-1], workers[-1].with_transforms(_noted_of_view)]
    return workers


def _noted_of_view(transforms: Sequence[Transform]) -> list[Transform]:
    workers, later = parted(transforms)
    return [*workers, Noting(later)]  # without any, too: all views have changes, or none has


def name_of(transform: Transform | Mix) -> str:
    """What a transform or a mix is called."""
    if isinstance(transform, partial):
        return name_of(transform.func)
    return getattr(transform, "__name__", None) or type(transform).__name__


@dataclass(frozen=True)
class Noting:
    """Runs transforms on a picture that notes what they would do; the picture itself stays as it is.

    Attributes:
        transforms: of which :func:`by_batch` is true.
    """

    transforms: Sequence[Transform]

    def __call__(self, sample: Sample) -> Sample:
        """The sample with ``changes``, a list of :class:`opabinia.data.device_transforms.recorded.Change`.

        Raises:
            ValueError: the picture has no bytes, or a change could not be noted.
        """
        image = sample["image"]
        if image.dtype != torch.uint8:
            raise ValueError(f"what is done on the device takes pictures of uint8, not {image.dtype}")
        found: Sample = {**sample, "image": Recorded.like(image)}
        for transform in self.transforms:
            found = transform(found)
            if not isinstance(found["image"], Recorded):
                raise ValueError(f"{name_of(transform)} cannot be done on the device; set data.augment_on to workers")
        return {**found, "image": image, CHANGES: list(found["image"].changes)}


# --- agendas: made by workers -----------------------------------------------------------------------------------------

Entry = tuple[str, Tensor | None, Any]
"""A change, for which rows of the batch (int64; None: all of them), and its numbers: of changes in :data:`EACH` a
tensor (float32) with a row for each picture, of others the values and keys that all have in common."""

AGENDA = "agenda"
"""Key of a batch: a list of entries for its images, or one for each of its views."""


def agenda(changes: Sequence[Sequence[Change]]) -> list[Entry]:
    """What is to be done to B pictures, in as few entries as come of always taking what most pictures wait for.

    Args:
        changes: of each picture, in its order.
    """
    left = [[_entry_of_one(change) for change in reversed(each)] for each in changes]
    entries: list[Entry] = []
    while waiting := _waiting(left):
        key = max(waiting, key=lambda one: len(waiting[one]))
        rows = waiting[key]
        taken = [left[row].pop() for row in rows]
        which = None if len(rows) == len(left) else torch.tensor(rows)
        numbers = torch.tensor([one.numbers for one in taken]) if taken[0].name in EACH else taken[0].numbers
        entries.append((taken[0].name, which, numbers))
    return entries


class _OfOne(NamedTuple):
    """An entry for one picture. Those with the same key can be made one."""

    key: str
    name: str
    numbers: Any


def _entry_of_one(change: Change) -> _OfOne:
    if change.name not in EACH:
        return _OfOne(repr(change), change.name, (change.values, change.keys))
    numbers = [float(number) for number in EACH[change.name](*change.values)]
    return _OfOne(f"{change.name} {len(numbers)}", change.name, numbers)


def _waiting(left: Sequence[Sequence[_OfOne]]) -> dict[str, list[int]]:
    """Rows by what comes next for them."""
    waiting: dict[str, list[int]] = {}
    for row, each in enumerate(left):
        if each:
            waiting.setdefault(each[-1].key, []).append(row)
    return waiting


def _blend_numbers(factor: float) -> tuple[float, float]:
    return factor, 1 - factor  # in double precision, as it is for one picture


def _erase_numbers(top: int, left: int, height: int, width: int, value: Tensor, inplace: bool) -> list[float]:
    return [top, left, height, width, *value.flatten().tolist()]


# --- changes: made on the device --------------------------------------------------------------------------------------


def _column(numbers: Tensor, place: int, images: Tensor) -> Tensor:
    """One number of each picture, beside B x ... of pixels."""
    return numbers[:, place].reshape(-1, *[1] * (images.ndim - 1))


def _bytes(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)


def _brightness(images: Tensor, numbers: Tensor) -> Tensor:
    return _bytes(images.mul(_column(numbers, 0, images)))


def _blended(images: Tensor, others: Tensor, numbers: Tensor) -> Tensor:
    kept, rest = _column(numbers, 0, images), _column(numbers, 1, images)
    return _bytes(images.mul(kept).addcmul_(others, rest))


def _contrast(images: Tensor, numbers: Tensor) -> Tensor:
    grey = F.rgb_to_grayscale(images, num_output_channels=1).float()
    return _blended(images, grey.mean(dim=(-3, -2, -1), keepdim=True), numbers)


def _saturation(images: Tensor, numbers: Tensor) -> Tensor:
    if images.shape[-3] == 1:
        return images
    return _blended(images, F.rgb_to_grayscale(images, num_output_channels=1).float(), numbers)


def _hue(images: Tensor, numbers: Tensor) -> Tensor:
    if images.shape[-3] == 1:
        return images
    hue, saturation, value = _rgb_to_hsv(F.to_dtype(images, torch.float32, scale=True)).unbind(-3)
    hue = (hue + _column(numbers, 0, hue)).remainder_(1.0)
    changed: Tensor = F.to_dtype(_hsv_to_rgb(torch.stack((hue, saturation, value), -3)), torch.uint8, scale=True)
    return changed


def _permuted(images: Tensor, numbers: Tensor) -> Tensor:
    order = numbers.long()
    places = order.reshape(len(order), *[1] * (images.ndim - 4), -1, 1, 1)
    return images.gather(-3, places.expand_as(images))


def _erased(images: Tensor, numbers: Tensor) -> Tensor:
    rows = torch.arange(images.shape[-2], device=images.device)[:, None]
    columns = torch.arange(images.shape[-1], device=images.device)
    top, left, height, width = (_column(numbers, place, images) for place in range(4))
    inside = (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
    fill = numbers[:, 4:].to(torch.uint8).reshape(len(images), *[1] * (images.ndim - 4), -1, 1, 1)
    return torch.where(inside, fill, images)


def _lit(images: Tensor, numbers: Tensor) -> Tensor:
    colour = numbers.reshape(len(images), *[1] * (images.ndim - 4), -1, 1, 1)
    return _bytes((images + colour).round())


def _blurred(images: Tensor, numbers: Tensor) -> Tensor:
    """Rows of ``numbers``: weights down, then across, both of the same length, 0 beyond each picture's own."""
    height, width = images.shape[-2:]
    each = images[0].numel() // (height * width)
    found = images.float().reshape(1, -1, height, width)
    for axis, side, weights in ((-2, height, numbers.chunk(2, 1)[0]), (-1, width, numbers.chunk(2, 1)[1])):
        widest = weights.shape[1] // 2
        radius = min(widest, side - 1)
        kernel = weights[:, widest - radius : widest + radius + 1].repeat_interleave(each, 0)
        rim = (0, 0, radius, radius) if axis == -2 else (radius, radius, 0, 0)
        shape = (-1, 1, 2 * radius + 1, 1) if axis == -2 else (-1, 1, 1, 2 * radius + 1)
        found = conv2d(pad(found, rim, mode="reflect"), kernel.reshape(shape), groups=len(kernel))
    return _bytes(found.round_()).reshape(images.shape)


def _blur_numbers(sigma: float, height: int, width: int, widest: int) -> list[float]:
    return [number for side in (height, width) for number in pad(*_rim(weights_of(sigma, side), widest)).tolist()]


def _rim(weights: Tensor, widest: int) -> tuple[Tensor, list[int]]:
    room = widest - len(weights) // 2
    return weights, [room, room]


EACH: dict[str, Callable[..., Sequence[float]]] = {
    "adjust_brightness": lambda factor: (factor,),
    "adjust_contrast": _blend_numbers,
    "adjust_hue": lambda factor: (factor,),
    "adjust_saturation": _blend_numbers,
    "blur": _blur_numbers,
    "erase": _erase_numbers,
    "lighting": lambda *colour: colour,
    "permute_channels": lambda permutation: permutation.tolist(),
}
"""Changes whose numbers may differ from picture to picture, and their numbers (float) from the values of a change."""

KERNELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adjust_brightness": _brightness,
    "adjust_contrast": _contrast,
    "adjust_hue": _hue,
    "adjust_saturation": _saturation,
    "blur": _blurred,
    "erase": _erased,
    "lighting": _lit,
    "permute_channels": _permuted,
}
"""By the same names: pictures (uint8, B x ... x C x H x W) and numbers (B x N) to changed pictures."""


def changed(images: Tensor, entries: Sequence[Entry]) -> Tensor:
    """Pictures (uint8, B x C x H x W, or clips, B x T x C x H x W) after all changes of an agenda; those that were
    given may be overwritten."""
    for name, rows, numbers in entries:
        some = images if rows is None else images[rows]
        some = KERNELS[name](some, numbers) if name in KERNELS else _alike(name, some, *numbers)
        if rows is None:
            images = some
        else:
            images[rows] = some
    return images


def _alike(name: str, images: Tensor, values: Sequence[Any], keys: Sequence[str]) -> Tensor:
    """A change that is the same for all: torchvision's own."""
    first = len(values) - len(keys)
    found: Tensor = getattr(F, name)(images, *values[:first], **dict(zip(keys, values[first:], strict=True)))
    return found


# --- both sides -------------------------------------------------------------------------------------------------------


class Noter(Reader):
    """Reads batches whose transforms have noted (:func:`noted`) and adds their agenda; it resizes and mixes nothing."""

    def finished(self, batch: Batch, row: Row) -> Batch:
        """The batch with the agenda in the place of what each sample noted."""
        if CHANGES not in batch:
            return batch
        changes = batch[CHANGES]
        rest = {key: value for key, value in batch.items() if key != CHANGES}
        return {**rest, AGENDA: [agenda(one) for one in (changes if "views" in batch else [changes])]}


def noting(reader: Reader) -> Noter:
    """The reader for workers whose batches :class:`OnDevice` finishes."""
    kept = {field.name: getattr(reader, field.name) for field in fields(reader)}
    return Noter(**{**kept, "transforms": reader.transforms if stays(reader) else noted(reader.transforms)})


def stays(reader: Reader) -> bool:
    """Whether all transforms stay with the workers: images differ in size, or have things that move with them."""
    return reader.size_multiple is not None or bool(getattr(reader.source, "has_boxes", False))


def work_shared(reader: Reader) -> str:
    """What workers do and what the device does, for people."""
    if stays(reader):
        return "pictures differ in size or have things in them; " + _told(reader.transforms, reader.mixes)
    last = reader.transforms[-1] if reader.transforms else None
    if not isinstance(last, Views):
        return _told(*_parts(reader.transforms, reader.mixes))
    return "; ".join(f"view {number}: {_told(*_parts(one))}" for number, one in enumerate(last.each, 1))


def _parts(transforms: Sequence[Transform], mixes: Sequence[Mix] = ()) -> tuple[list[Transform], list[Any]]:
    workers, later = parted(transforms)
    return workers, [*later, *mixes]


def _told(workers: Sequence[Transform], device: Sequence[Transform | Mix]) -> str:
    first, last = (", ".join(map(name_of, some)) or "nothing" for some in (workers, device))
    return f"workers do {first}, the device {last}"


@dataclass(frozen=True)
class OnDevice:
    """What is left to do to a batch when it has come to its device.

    Attributes:
        reader: knows how batches are resized and mixed.
    """

    reader: Reader

    def __call__(self, batch: Batch, row: Row) -> Batch:
        """The batch as a worker would have sent it that does everything itself.

        Raises:
            DataError: it cannot be resized or mixed.
        """
        entries = batch.pop(AGENDA, None)
        if entries is not None and "views" in batch:
            batch["views"] = tuple(map(changed, batch["views"], entries))
        elif entries is not None:
            batch["image"] = changed(batch["image"], *entries)
        with generators_kept() if self.reader.mixes else nullcontext():
            return self.reader.finished(batch, row)
