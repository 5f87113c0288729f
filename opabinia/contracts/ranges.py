"""Number types with a range, channels of images, and paths that must exist, for signatures of parts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeGuard

from annotated_types import Ge, Gt, Interval

from opabinia.config import MustExist, register

Fraction = Annotated[float, Interval(ge=0, le=1)]

NonNegative = Annotated[float, Ge(0)]

Positive = Annotated[float, Gt(0)]

Count = Annotated[int, Ge(1)]

FrameChannels = Literal[1, 3]
"""Channels of a frame of a video: 1 for gray, 3 for color."""

InputPath = Annotated[Path, MustExist()]
"""A file or folder that a part reads: a config with a missing one is rejected before anything is built."""


class _AllowInfinity:
    """Allows ``.inf`` as a number in YAML."""

    allow_inf_nan = True


NormOrder = Annotated[float, Ge(1), _AllowInfinity()]
"""p of a p-norm: 1, 2, infinity."""


# --- channels of images -----------------------------------------------------------------------------------------------

MAX_CHANNELS = 1024

ChannelCount = Annotated[int, Interval(ge=1, le=MAX_CHANNELS)]


@register.section
@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Images with any number of channels and any type of value: files of 8 bits stay uint8 unless there is a
    ``max_value``, all others become float32 in 0..1. Nothing is converted: files must have these channels.

    Args:
        count: channels of an image.
        max_value: value that becomes 1; larger ones become 1, too. null: 65535 of files with unsigned 16-bit integers;
            floating point values must be in 0..1 then, and other types are an error.
        min_value: value that becomes 0; smaller ones become 0, too. It needs ``max_value``.
        no_data: value of pixels without data, as GDAL's NoData; NaN and infinity are such, too.
        fill: value in place of pixels without data, in units of the file; null: such pixels are an error.

    Raises:
        ValueError: the range is empty, or values without the others that they need.
    """

    count: ChannelCount
    max_value: float | None = None
    min_value: float | None = None
    no_data: float | None = None
    fill: float | None = None

    def __post_init__(self) -> None:
        if self.max_value is None and self.min_value is not None:
            raise ValueError("min_value: give max_value, too")
        if self.max_value is not None and self.max_value <= (self.min_value or 0.0):
            raise ValueError(f"max_value: {self.max_value:g} is not above min_value, {self.min_value or 0.0:g}")
        if self.no_data is not None and self.fill is None:
            raise ValueError("no_data: give fill, the value in place of such pixels")

    def __str__(self) -> str:
        """Return the values that are given, as in a config."""
        given = (f"{name}: {value:g}" for name, value in asdict(self).items() if value is not None)
        return f"{{{', '.join(given)}}}"


Channels = ChannelCount | Pixels
"""Channels of images as they are read. 1 and 3: 8-bit gray and color; files of other kinds are converted to it. Any
other number, and :class:`Pixels`: the channels of the files as they are."""


def pixels_of(channels: Channels) -> Pixels:
    """Return ``channels`` with the range of values."""
    return channels if isinstance(channels, Pixels) else Pixels(count=channels)


def channel_count(channels: Channels) -> int:
    """Return the number of channels."""
    return pixels_of(channels).count


def frame_channels(channels: Channels) -> FrameChannels:
    """Return ``channels`` of frames of videos.

    Raises:
        ValueError: they are neither gray nor color.
    """
    if are_8bit_images(channels):
        return channels
    raise ValueError(f"channels: videos have 1 or 3, not {channels}")


def are_8bit_images(channels: Channels) -> TypeGuard[FrameChannels]:
    """Return whether images are read as 8-bit gray or color."""
    return channels in (1, 3)
