"""Videos that are sequences of images: in memory, as image files, or stored otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torch import Tensor
from torchvision.transforms.v2 import functional as F

from opabinia.contracts import FrameChannels
from opabinia.data.decoding.images import read_image
from opabinia.data.transforms.sizes import shortest_edge_size
from opabinia.runtime.local_copies import fetch_all


def downscaled_size(height: int, width: int, short_side: int | None) -> tuple[int, int]:
    """Return height and width with a shorter side of at most ``short_side``."""
    if short_side is None or min(height, width) <= short_side:
        return height, width
    return shortest_edge_size(height, width, short_side)


def clip_positions(indices: Sequence[int], frames: int, path: str) -> dict[int, list[int]]:
    """Return the positions in the clip by frame number, ascending.

    Raises:
        ValueError: there are none, or a frame number is out of range.
    """
    positions: dict[int, list[int]] = {}
    for position, number in enumerate(map(int, indices)):
        if not 0 <= number < frames:
            raise ValueError(f"{path} has frames 0 to {frames - 1}; there is no frame {number}")
        positions.setdefault(number, []).append(position)
    if not positions:
        raise ValueError(f"{path}: the list of frames is empty")
    return dict(sorted(positions.items()))


class FrameSequence:
    """A video whose frames are separate images (:class:`opabinia.contracts.Video`); subclasses read them.

    Args:
        path: name for messages.
        frames: number of frames.
        fps: frames per second.
        seconds: duration.
    """

    def __init__(self, path: str, frames: int, fps: float, seconds: float) -> None:
        self.path, self.frames, self.fps, self.seconds = path, frames, fps, seconds

    def frame(self, number: int) -> Tensor:
        """Return a frame (uint8, C x H x W)."""
        raise NotImplementedError

    def name(self, number: int) -> str:
        """Return the name of a frame, for messages."""
        raise NotImplementedError

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.frame(0).shape[-2:]
        return height, width

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        frames = clip_positions(indices, self.frames, self.path)
        clip: Tensor | None = None
        for number, positions in frames.items():
            frame = self.frame(number)
            size = downscaled_size(frame.shape[-2], frame.shape[-1], short_side)
            if size != tuple(frame.shape[-2:]):
                frame = F.resize(frame, list(size), antialias=True)
            if clip is None:
                clip = frame.new_empty(len(indices), *frame.shape)
            if frame.shape != clip.shape[1:]:
                raise ValueError(
                    f"{self.path}: frames differ in size: {self.name(next(iter(frames)))} has {_size(clip[0])}, "
                    f"{self.name(number)} has {_size(frame)}"
                )
            clip[positions] = frame
        assert clip is not None
        return clip


def _size(frame: Tensor) -> str:
    return f"{frame.shape[-2]} x {frame.shape[-1]}"


class FrameFolder(FrameSequence):
    """A video whose frames are image files.

    Args:
        path: their folder.
        names: the files in it, in the order of the frames.
        fps: frames per second.
        channels: 3 for color, 1 for gray.

    Raises:
        ValueError: there are no files.
    """

    def __init__(self, path: str, names: Sequence[str], *, fps: float = 30.0, channels: FrameChannels = 3) -> None:
        if not names:
            raise ValueError(f"{path} holds no images")
        super().__init__(path, len(names), fps, len(names) / fps)
        self._names, self._channels = names, channels

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        numbers = clip_positions(indices, self.frames, self.path)
        fetch_all(os.path.join(self.path, self._names[number]) for number in numbers)
        return super().read(indices, short_side)

    def frame(self, number: int) -> Tensor:
        return read_image(os.path.join(self.path, self._names[number]), self._channels)

    def name(self, number: int) -> str:
        return self._names[number]


class VideoInMemory(FrameSequence):
    """A decoded video.

    Args:
        pixels: uint8, T x C x H x W.
        path: name for messages.
        fps: frames per second.
    """

    def __init__(self, pixels: Tensor, *, path: str = "a video in memory", fps: float = 30.0) -> None:
        super().__init__(path, len(pixels), fps, len(pixels) / fps)
        self._pixels = pixels

    def frame(self, number: int) -> Tensor:
        return self._pixels[number]
