"""Parts of pictures, with the things that have a part in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional._geometry import _compute_resized_output_size

from opabinia.config import register
from opabinia.contracts import Count, Positive, Sample
from opabinia.data.decoding.images import Box, LazyImage, planar, whole
from opabinia.data.transforms.instances import boxes_from_masks, only_image, tidied
from opabinia.data.transforms.sizes import drawn, size_of

Pixel = Annotated[int, Interval(ge=0, le=255)]
CropKind = Literal["relative", "relative_range", "absolute", "absolute_range"]


@register.transform(name="random_crop")
class RandomCrop:
    """Cut a rectangle out, anywhere, with the things that have a part in it (detectron2's RandomCrop).

    Where there are masks, boxes become the smallest ones around what is left of them.

    Args:
        kind: ``relative``: ``size`` are the shares of height and width; ``relative_range``: these are the least ones,
            and 1 the largest; ``absolute``: height and width in pixels; ``absolute_range``: least and largest of both,
            in pixels. What is larger than the image is as large as the image.
        size: two numbers; detectron2's default.

    Raises:
        ValueError: a share above 1, pixels that are no whole numbers, or a range that begins above its end.

    Example: ``relative`` of (0.5, 0.25) cuts 51 x 51 out of 101 x 203.
    """

    def __init__(self, *, kind: CropKind = "relative_range", size: tuple[Positive, Positive] = (0.9, 0.9)) -> None:
        if kind.startswith("relative") and max(size) > 1:
            raise ValueError(f"size: {kind} takes shares of the image, at most 1, not {list(size)}")
        if kind.startswith("absolute") and not all(float(side).is_integer() for side in size):
            raise ValueError(f"size: {kind} takes whole pixels, not {list(size)}")
        if kind == "absolute_range" and size[0] > size[1]:
            raise ValueError(f"size: [{size[0]}, {size[1]}] begins above its end; write [{size[1]}, {size[0]}]")
        self._kind, self._size = kind, size

    def __call__(self, sample: Sample) -> Sample:
        """A part of the sample."""
        height, width = size_of(sample)
        crop_height, crop_width = self.size(height, width)
        top, left = drawn(height - crop_height + 1), drawn(width - crop_width + 1)
        return _cropped(sample, top, left, crop_height, crop_width)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of a crop of an image with these sides, drawn where there is a range."""
        first, second = self._size
        if self._kind == "absolute":
            return min(int(first), height), min(int(second), width)
        if self._kind == "absolute_range":
            return _between(first, second, height), _between(first, second, width)
        if self._kind == "relative_range":
            first, second = (least + (1 - least) * float(torch.rand(())) for least in (first, second))
        return max(1, int(height * first + 0.5)), max(1, int(width * second + 0.5))


def _between(least: float, largest: float, side: int) -> int:
    low, high = min(int(least), side), min(int(largest), side)
    return low + drawn(high - low + 1)


@register.transform(name="fixed_size_crop")
def fixed_size_crop(sample: Sample, /, *, size: tuple[Count, Count] = (1024, 1024), fill: Pixel | None = 128) -> Sample:
    """Cut what is larger than ``size`` anywhere, and fill what is smaller at the right and below (detectron2's
    FixedSizeCrop, which cuts on the diagonal only).

    Where there are masks and something is cut off, boxes become the smallest ones around what is left of them.

    Args:
        size: height and width, in pixels.
        fill: the value of pixels that are added, from 0 to 255 (detectron2's); null adds none: batches are padded
            anyway, and then with the mean colour.
    """
    (height, width), (wanted_height, wanted_width) = size_of(sample), size
    top, left = drawn(max(0, height - wanted_height) + 1), drawn(max(0, width - wanted_width) + 1)
    if height > wanted_height or width > wanted_width:
        sample = _cropped(sample, top, left, min(height, wanted_height), min(width, wanted_width))
    if fill is None:
        return sample
    padding = [0, 0, max(0, wanted_width - width), max(0, wanted_height - height)]
    image = F.pad(sample["image"], padding, fill=[fill])
    return _moved(sample, lambda value: F.pad(value, padding)) | {"image": image}


def _cropped(sample: Sample, top: int, left: int, height: int, width: int) -> Sample:
    cut = tidied(_moved(sample, lambda value: F.crop(value, top, left, height, width)))
    return boxes_from_masks(cut)


def _moved(sample: Sample, move: Callable[[Any], Any]) -> Sample:
    return {key: move(value) if isinstance(value, tv_tensors.TVTensor) else value for key, value in sample.items()}


class RandomResizedCrop(v2.RandomResizedCrop):  # type: ignore[misc]
    """Cut a rectangle of a drawn area and shape out, anywhere, and resize it (torchvision's, of Szegedy et al. 2015,
    Going deeper with convolutions, section 6). It has no more decoded of a JPEG than it takes.

    Args:
        size: height and width, or one for both.
        scale: least and largest share of the picture's area.
        ratio: least and largest width over height.
        interpolation: how the part is resized.
        antialias: average over what becomes one pixel.
    """

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The part of a picture among the values of a sample."""
        return self.part(*v2.query_size(flat_inputs))._asdict()

    def part(self, height: int, width: int) -> Box:
        """A part of a picture with these sides, with torchvision's chances, but one draw for each trial, as a draw
        takes longer than all else."""
        low, high = (math.log(end) for end in self.ratio)
        for _ in range(_TRIALS):
            area, shape, down, across = torch.rand(4).tolist()
            pixels = height * width * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            wider = math.exp(low + shape * (high - low))
            part_height, part_width = round(math.sqrt(pixels / wider)), round(math.sqrt(pixels * wider))
            if 0 < part_height <= height and 0 < part_width <= width:
                top, left = int(down * (height - part_height + 1)), int(across * (width - part_width + 1))
                return Box(top, left, part_height, part_width)
        return self._largest(height, width)

    def _largest(self, height: int, width: int) -> Box:
        """In the middle, as large as its shape allows."""
        part_height = min(height, max(1, round(width / self.ratio[0])))
        part_width = min(width, max(1, round(height * self.ratio[1])))
        return Box((height - part_height) // 2, (width - part_width) // 2, part_height, part_width)

    def forward(self, sample: Sample) -> Sample:
        """A part of the sample."""
        if not only_image(sample):
            return super().forward(sample)  # type: ignore[no-any-return]
        image = sample["image"].as_subclass(Tensor)  # as torchvision does it, without a search for more
        top, left, height, width = self.part(*image.shape[-2:])
        return {**sample, "image": self._resized(image[:, top : top + height, left : left + width])}

    def of_encoded(self, sample: Sample) -> Sample:
        """A part of a picture that is not decoded yet: the one that is drawn of a decoded one. Where it is resized to
        half its size or less, its ends are rounded as :meth:`opabinia.data.decoding.images.Encoded.part` says.

        Raises:
            ValueError: the picture is broken.
        """
        picture: LazyImage = sample["image"]
        if picture.size is None or not self.antialias:
            return self(whole(sample))  # type: ignore[no-any-return]
        return {**sample, "image": self._resized(picture.part(self.part(*picture.size), tuple(self.size)))}

    def _resized(self, part: Tensor) -> tv_tensors.Image:
        return _resized(part, self.size, self.interpolation, self.antialias)


def _resized(part: Tensor, size: Sequence[int], interpolation: Any, antialias: bool | None) -> tv_tensors.Image:
    bilinear = interpolation in ("bilinear", F.InterpolationMode.BILINEAR)
    if bilinear and antialias and part.stride()[0] == 1 and _BYTES_ARE_RESIZED:
        # As torchvision does it where the channels of a pixel lie beside each other, in a third of the calls.
        one = part.as_strided((1, *part.shape), (part.numel(), *part.stride()))
        resized = interpolate(one, tuple(size), mode="bilinear", antialias=True)[0]
    else:
        resized = F.resize_image(part, list(size), interpolation=interpolation, antialias=antialias)
    return planar(resized).as_subclass(tv_tensors.Image)


_TRIALS = 10
_BYTES_ARE_RESIZED = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
"""Whether torchvision resizes bytes without a way through floating point numbers, which round otherwise."""


class Resize(v2.Resize):  # type: ignore[misc]
    """Resize a picture, with the things in it (torchvision's). It has a JPEG decoded no finer than it becomes.

    Args:
        size: height and width; one number is the shorter side, and the longer one follows.
        interpolation: how it is resized.
        max_size: the longest that the longer side becomes; the shorter one follows.
        antialias: average over what becomes one pixel.
    """

    def of_encoded(self, sample: Sample) -> Sample:
        """A picture that is not decoded yet, resized.

        Raises:
            ValueError: the picture is broken.
        """
        picture: LazyImage = sample["image"]
        if picture.size is None or not self.antialias:
            return self(whole(sample))  # type: ignore[no-any-return]
        height, width = picture.size
        size = _compute_resized_output_size((height, width), self.size, self.max_size)
        part = picture.part(Box(0, 0, height, width), tuple(size))
        return {**sample, "image": _resized(part, size, self.interpolation, antialias=True)}


class RandomIoUCrop(v2.RandomIoUCrop):  # type: ignore[misc]
    """Cut a rectangle out that overlaps with a thing as much as drawn, and leave out things whose middle is not in it
    (torchvision's, of Liu et al. 2016, SSD, section 2.2).

    Pictures without things, or of few pixels, stay as they are.

    Args:
        min_scale: least share of the height, and of the width.
        max_scale: their largest share.
        min_aspect_ratio: least width over height.
        max_aspect_ratio: largest width over height.
        sampler_options: overlaps (intersection over union) of which one is drawn; a rectangle is cut out that has it
            with one of the things at least. 1 leaves the picture as it is, and must be among them, for no other need be
            possible. null takes SSD's: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: rectangles that are tried before the overlap is drawn anew.

    Raises:
        ValueError: 1 is not among the overlaps.
    """

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: list[float] | None = None,
        trials: int = 40,
    ) -> None:
        if sampler_options is not None and max(sampler_options, default=0) < 1:
            raise ValueError(f"sampler_options: add 1.0 to {sampler_options}; there may be no rectangle for the others")
        super().__init__(min_scale, max_scale, min_aspect_ratio, max_aspect_ratio, sampler_options, trials)

    def forward(self, sample: Sample) -> Sample:
        """A part of the sample, or all of it."""
        empty = "boxes" in sample and not len(sample["boxes"])
        if empty or self.min_scale * min(size_of(sample)) < 1:
            return sample
        found: Sample = super().forward(sample)
        return found
