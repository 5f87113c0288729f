"""Which frames of a video a clip has.

``clip`` comes first: it decodes them. The transforms after it, torchvision's too, change all frames of a clip alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Count, Positive, Sample, Video
from opabinia.data.transforms.sizes import check_range, random_below


@register.transform(name="clip")
@dataclass(frozen=True, kw_only=True)
class Clip:
    """Decode frames of a video: ``image`` (uint8, T x C x H x W, a ``tv_tensors.Video``) replaces ``video``.

    If the batch needs a shape (``shapes``), that has the number of frames; the stride then goes from its minimum to its
    maximum times ``frames`` // T, so that fewer frames cover as much of the video (Wu et al. 2020, A Multigrid Method
    for Efficiently Training Video Models, arXiv:1912.00998; SlowFast's long cycle). For several views of a video
    (``video_views``) clip i of n is taken, and nothing is drawn.

    Args:
        frames: T.
        stride: from one frame to the next; of two numbers one between them is drawn, or the lower taken if nothing is
            drawn. For ``dense`` only.
        sampling: ``dense``: frames at equal steps; ``uniform``: one frame from each of T equal segments of the video
            (Wang et al. 2016, Temporal Segment Networks, arXiv:1608.00859).
        position: of a dense clip in the video, or of the frame in each segment.
        out_of_bounds: for videos too short for a dense clip: ``loop`` starts over, ``repeat_last`` repeats the last
            frame.
        fps: frame rate to which ``stride`` refers: videos of another rate are sampled at other steps, for the same
            time. null takes every video at its own rate.
        short_side: downscale larger frames to this length of the shorter side, in pixels, while decoding: faster than
            resizing them later.

    Raises:
        ValueError: a stride or ``fps`` for ``uniform``, a minimum above its maximum, or a sample without a video.

    Example: ``{name: clip, frames: 8, stride: 8}`` takes frames 30, 38 ... 86 of a video, if 30 is drawn.
    """

    frames: Count
    stride: Count | tuple[Count, Count] = 1
    sampling: Literal["dense", "uniform"] = "dense"
    position: Literal["random", "middle", "start"] = "random"
    out_of_bounds: Literal["loop", "repeat_last"] = "loop"
    fps: Positive | None = None
    short_side: Count | None = None

    def __post_init__(self) -> None:
        check_range("stride", self._strides)
        if self.sampling == "uniform" and (self._strides[1] > 1 or self.fps is not None):
            raise ValueError("uniform sampling takes one frame per segment of the video; stride and fps are for dense")

    @property
    def _strides(self) -> tuple[int, int]:
        return (self.stride, self.stride) if isinstance(self.stride, int) else self.stride

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with a clip instead of its video."""
        video: Video | None = sample.get("video")
        if video is None:  # isinstance(video, Video) is not asked: Python 3.11 would evaluate `size`, and so decode
            content = "an image" if "image" in sample else "no video"
            raise ValueError(f"clip needs videos, and the sample holds {content}; take a source such as videos")
        shape, view = sample.get("shape"), sample.get("view")
        count = int(shape[0]) if shape else self.frames
        clip = view[0] if view else None
        indices = (self._uniform_indices if self.sampling == "uniform" else self._dense_indices)(video, count, clip)
        image = tv_tensors.Video(video.read(indices, self.short_side))
        return {key: value for key, value in sample.items() if key != "video"} | {"image": image}

    def _dense_indices(self, video: Video, count: int, clip: tuple[int, int] | None) -> list[int]:
        low, high = self._strides
        step: float = low
        if clip is None and self.position == "random":
            step += random_below(max(low, high * (self.frames // count)) - low + 1)
        if self.fps is not None:
            step *= video.fps / self.fps
        start = self._start(max(0, video.frames - 1 - int((count - 1) * step)), clip)
        indices = [start + int(step * number) for number in range(count)]
        if self.out_of_bounds == "loop":
            return [index % video.frames for index in indices]
        return [min(index, video.frames - 1) for index in indices]

    def _start(self, last: int, clip: tuple[int, int] | None) -> int:
        """Return the first frame of a clip that may begin at frames 0 to ``last``."""
        if clip is not None:
            number, clips = clip
            return number * last // (clips - 1) if clips > 1 else last // 2
        if self.position == "random":
            return random_below(last + 1)
        return last // 2 if self.position == "middle" else 0

    def _uniform_indices(self, video: Video, count: int, clip: tuple[int, int] | None) -> list[int]:
        bounds = [number * video.frames // count for number in range(count + 1)]
        segments = [(low, max(1, high - low)) for low, high in pairwise(bounds)]
        if clip is not None:  # each of several clips takes another frame of a segment
            return [low + (2 * clip[0] + 1) * length // (2 * clip[1]) for low, length in segments]
        return [low + self._start(length - 1, None) for low, length in segments]
