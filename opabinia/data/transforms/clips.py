"""Clips of films: which frames, at which size, which part of them.

``clip`` comes first: it decodes. What follows, torchvision's transforms too, changes all frames alike.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Positive, Sample, Video
from opabinia.data.transforms.sizes import Interpolation, drawn, shortest_edge, size_of

Place = Literal["random", "middle", "start"]
Stride = Count | tuple[Count, Count]

# --- over time --------------------------------------------------------------------------------------------------------


@register.transform(name="clip")
class Clip:
    """Decode some frames of a film: ``image`` (uint8, T x C x H x W, a ``tv_tensors.Video``) in place of ``video``.

    Where a batch is to have a shape (``shapes``), it says how many frames there are; strides then go from the lower one
    to the upper one times ``frames`` // T, so that fewer frames cover as much of the film (Wu et al. 2020, A Multigrid
    Method for Efficiently Training Video Models, arXiv:1912.00998; SlowFast's long cycle). Of several views of a film
    (``views_of_films``) clip i of n is taken, and nothing is drawn.

    Args:
        frames: T.
        stride: from one frame to the next; of two numbers one between them is drawn, or the lower taken where nothing
            is drawn. Only of ``dense``.
        sampling: ``dense``: frames at equal steps; ``uniform``: one of each of T equal parts of the whole film (Wang et
            al. 2016, Temporal Segment Networks, arXiv:1608.00859).
        place: where a dense clip, or the frame of each part, lies: anywhere, in the middle, at the start.
        out_of_bound: of films too short for a dense clip: ``loop`` begins again, ``repeat_last`` stays at the last
            frame.
        fps: rate at which ``stride`` counts: films of another one are sampled at other steps, for the same time. As
            they are when not given.
        short_side: shrink larger frames until their shorter side has so many pixels, while they are decoded: quicker
            than resizing them later.

    Raises:
        ValueError: strides for ``uniform`` or in the wrong order; a sample without a film.

    Example: ``{name: clip, frames: 8, stride: 8}`` takes frames 30, 38 ... 86 of a film, if 30 is drawn.
    """

    def __init__(
        self,
        *,
        frames: Count,
        stride: Stride = 1,
        sampling: Literal["dense", "uniform"] = "dense",
        place: Place = "random",
        out_of_bound: Literal["loop", "repeat_last"] = "loop",
        fps: Positive | None = None,
        short_side: Count | None = None,
    ) -> None:
        low, high = (stride, stride) if isinstance(stride, int) else stride
        if low > high:
            raise ValueError(f"stride: [{low}, {high}] begins above its end; write [{high}, {low}]")
        if sampling == "uniform" and (high > 1 or fps is not None):
            raise ValueError("uniform sampling takes a frame of each part of the film; stride and fps are for dense")
        self._frames, self._low, self._high, self._fps = frames, low, high, fps
        self._uniform, self._place, self._loop = sampling == "uniform", place, out_of_bound == "loop"
        self._short_side = short_side

    def __call__(self, sample: Sample) -> Sample:
        """The sample with a clip in place of its film."""
        film: Video | None = sample.get("video")
        if film is None:  # whether it has what a Film has is not asked: Python 3.11 would decode its first frame
            kind = "a picture" if "image" in sample else "no film"
            raise ValueError(f"clip takes films, and the sample holds {kind}; take a source of films, such as videos")
        shape, view = sample.get("shape"), sample.get("view")
        count = int(shape[0]) if shape else self._frames
        clip = view[0] if view else None
        numbers = self._parts(film, count, clip) if self._uniform else self._dense(film, count, clip)
        image = tv_tensors.Video(film.read(numbers, self._short_side))
        return {key: value for key, value in sample.items() if key != "video"} | {"image": image}

    def _dense(self, film: Video, count: int, clip: tuple[int, int] | None) -> list[int]:
        step: float = self._stride(count, clip is None and self._place == "random")
        if self._fps is not None:
            step *= film.fps / self._fps
        room = film.frames - 1 - int((count - 1) * step)  # the last frame at which it may begin
        start = self._start(max(0, room), clip)
        numbers = [start + int(step * number) for number in range(count)]
        if self._loop:
            return [number % film.frames for number in numbers]
        return [min(number, film.frames - 1) for number in numbers]

    def _stride(self, count: int, random: bool) -> int:
        if not random:
            return self._low
        high = max(self._low, self._high * (self._frames // count))
        return self._low + drawn(high - self._low + 1)

    def _start(self, room: int, clip: tuple[int, int] | None) -> int:
        """The first of ``room`` + 1 frames at which a clip may begin."""
        if clip is not None:
            number, clips = clip
            return number * room // (clips - 1) if clips > 1 else room // 2
        if self._place == "random":
            return drawn(room + 1)
        return room // 2 if self._place == "middle" else 0

    def _parts(self, film: Video, count: int, clip: tuple[int, int] | None) -> list[int]:
        bounds = [number * film.frames // count for number in range(count + 1)]
        return [self._within(low, max(1, high - low), clip) for low, high in pairwise(bounds)]

    def _within(self, low: int, length: int, clip: tuple[int, int] | None) -> int:
        """A frame of a part of ``length`` frames: clips of several views take different ones."""
        if clip is not None:
            return low + (2 * clip[0] + 1) * length // (2 * clip[1])
        return low + self._start(length - 1, None)


# --- in space ---------------------------------------------------------------------------------------------------------


@register.transform(name="scale_jitter")
class ShortSideJitter:
    """Resize to a drawn shorter side and cut a square out, anywhere, of all frames of a clip alike (Simonyan and
    Zisserman 2014, Very Deep Networks, section 3.1; SlowFast's rules).

    Where a batch is to have a shape (``shapes``), it says how large the crop is. The lower end of ``scale`` then
    shrinks with it, and the upper one does not, so that small crops see as much (SlowFast's multigrid).

    Args:
        size: height and width of the crop, in pixels.
        scale: least and largest shorter side, in pixels (SlowFast's for 224); when not given they are 8/7 and 10/7 of
            ``size``, which are the same for 224.
        inverse: draw 1 / side evenly, not the side: small sides come more often.
        interpolation: how it is resized, with antialias.

    Raises:
        ValueError: the scale begins above its end, or below the size of the crop.

    Example: a crop of 112 in place of 224 is cut out of a shorter side from 128 to 320.
    """

    def __init__(
        self,
        *,
        size: Count,
        scale: tuple[Count, Count] | None = None,
        inverse: bool = False,
        interpolation: Interpolation = "bilinear",
    ) -> None:
        low, high = scale or (round(size * 8 / 7), round(size * 10 / 7))
        if low > high:
            raise ValueError(f"scale: [{low}, {high}] begins above its end; write [{high}, {low}]")
        if low < size:
            raise ValueError(f"scale: of a shorter side of {low} no crop of {size} can be cut; begin at {size}")
        self._size, self._low, self._high, self._inverse = size, low, high, inverse
        self._interpolation = interpolation

    def __call__(self, sample: Sample) -> Sample:
        """A part of the sample."""
        shape = sample.get("shape")
        height, width = shape[-2:] if shape else (self._size, self._size)
        sides = _covering(size_of(sample), self._short(min(height, width)), (height, width))
        image = _resized(sample["image"], sides, self._interpolation)
        top, left = drawn(sides[0] - height + 1), drawn(sides[1] - width + 1)
        return {**sample, "image": F.crop(image, top, left, height, width)}

    def _short(self, crop: int) -> int:
        low = round(self._low * crop / self._size)
        share = float(torch.rand(()))
        if self._inverse:
            return round(1 / (1 / self._high + share * (1 / low - 1 / self._high)))
        return round(low + share * (self._high - low))


@register.transform(name="three_crop")
def three_crop(
    sample: Sample, /, *, size: Count, short: Count | None = None, interpolation: Interpolation = "bilinear"
) -> Sample:
    """Resize the shorter side and cut a square out of the middle; of several views of a film (``views_of_films``) crop
    j of m along the longer side: with three left, middle and right, or top, middle and bottom (Wang et al. 2018,
    Non-local Neural Networks).

    Args:
        size: height and width of the crop, in pixels.
        short: the shorter side, in pixels; ``size`` when not given, so that three crops see all of the usual films.
        interpolation: how it is resized, with antialias.

    Raises:
        ValueError: ``short`` is less than ``size``.
    """
    if short is not None and short < size:
        raise ValueError(f"short: of a shorter side of {short} no crop of {size} can be cut")
    sides = shortest_edge(*size_of(sample), short or size)
    image = _resized(sample["image"], sides, interpolation)
    view = sample.get("view")
    number, crops = view[1] if view else (0, 1)
    rooms = [side - size for side in sides]
    # Rounded up in the middle, as SlowFast has it.
    along = [-(-number * room // (crops - 1)) if crops > 1 else -(-room // 2) for room in rooms]
    across = [-(-room // 2) for room in rooms]
    top, left = (along[0], across[1]) if sides[0] > sides[1] else (across[0], along[1])
    return {**sample, "image": F.crop(image, top, left, size, size)}


@register.transform(name="clip_flip")
def clip_flip(sample: Sample, /, *, probability: Fraction = 0.5) -> Sample:
    """Mirror all frames, left to right, unless a mirror image would be of another class: samples tell it as
    ``directed``, for the classes that their source is told (``directed: [turn left, turn right]``).

    Args:
        probability: how often.
    """
    flip = float(torch.rand(())) < probability
    if not flip or sample.get("directed", False):
        return sample
    return {**sample, "image": F.horizontal_flip(sample["image"])}


def _covering(size: tuple[int, int], short: int, crop: tuple[int, int]) -> tuple[int, int]:
    """Height and width with a shorter side of ``short``, or more where the crop would not fit in."""
    sides = shortest_edge(*size, short)
    more = max(1.0, *(wanted / side for wanted, side in zip(crop, sides, strict=True)))
    height, width = (max(wanted, round(side * more)) for wanted, side in zip(crop, sides, strict=True))
    return height, width


def _resized(image: Any, size: tuple[int, int], interpolation: str) -> Any:
    mode = getattr(F.InterpolationMode, interpolation.upper())
    return F.resize(image, list(size), interpolation=mode, antialias=True)
