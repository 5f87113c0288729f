"""Drawn videos: strips of the frames that a model has seen, and clips of them with the prediction as an overlay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from io import BytesIO
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from opabinia.contracts import Sample, Video
from opabinia.runtime.files import write_atomic
from opabinia.visualization.drawing import COLORS, FRAME_COLORS, side_by_side, stack_vertically, text_color, to_pil

MAX_FRAMES, FRAME_HEIGHT, MIN_WIDTH = 8, 128, 560
"""Maximum number of frames of a clip in a strip, their height, and the minimum width of strips, which leaves room for
text."""

CLIP_SIDE = 256
"""Shorter side of written clips in pixels."""


class RecordingVideo:
    """A video that records which frames are read. Frames requested twice in a row, as by crops of one clip, are decoded
    once.

    Args:
        video: the video to read.

    Attributes:
        requests: frame numbers of each read.
    """

    def __init__(self, video: Video) -> None:
        self._video = video
        self.path = video.path
        self.requests: list[list[int]] = []
        self._last: tuple[int | None, Tensor] | None = None

    @property
    def frames(self) -> int:
        return self._video.frames

    @property
    def seconds(self) -> float:
        return self._video.seconds

    @property
    def fps(self) -> float:
        return self._video.fps

    @property
    def size(self) -> tuple[int, int]:
        return self._video.size

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        numbers = [int(index) for index in indices]
        if not self.requests or self.requests[-1] != numbers or self._last is None or self._last[0] != short_side:
            self._last = short_side, self._video.read(numbers, short_side)
        self.requests.append(numbers)
        return self._last[1].clone()


def representative_image(sample: Sample) -> Tensor:
    """Return the image of a sample (C x H x W), or the middle frame of its video."""
    if "video" not in sample:
        image: Tensor = sample["image"]
        return image
    video: Video = sample["video"]
    return video.read([video.frames // 2])[0]


class SampledClip(NamedTuple):
    """A clip of a video as a model has seen it.

    Attributes:
        frames: frame numbers.
        name: such as ``clip 2 of 10``; empty for a single clip.
        label: predicted class of the whole video.
        text: that class, with its probability in each crop of this clip.
    """

    frames: list[int]
    name: str
    label: int
    text: str


def sampled_clips(
    frames: Sequence[list[int]], prediction: Mapping[str, Tensor], classes: Sequence[str]
) -> list[SampledClip]:
    """Return the clips of a video with their predictions.

    Args:
        frames: frame numbers of each of V views; crops of a clip follow each other and have the same.
        prediction: ``probabilities`` (K), and for several views those of each as ``views`` (V x K).
        classes: their names.
    """
    label = int(prediction["probabilities"].argmax())
    views = prediction["views"][:, label] if "views" in prediction else prediction["probabilities"][label : label + 1]
    shares = iter([f"{float(probability):.1%}" for probability in views])
    clips = [(numbers, len(list(crops))) for numbers, crops in groupby(frames)]
    names = [f"clip {number} of {len(clips)}" if len(clips) > 1 else "" for number in range(1, len(clips) + 1)]
    return [
        SampledClip(numbers, name, label, " ".join([classes[label], *islice(shares, crops)]))
        for name, (numbers, crops) in zip(names, clips, strict=True)
    ]


def draw_strip(video: Video, clips: Sequence[SampledClip], title: str = "", verdict: str | None = None) -> Image.Image:
    """Draw frames of a video side by side, each below its time; a row for each clip.

    Args:
        video: read at low resolution.
        clips: to show; of many frames some at equal distances.
        title: above all rows.
        verdict: a key of :data:`opabinia.visualization.drawing.FRAME_COLORS`, the color of a frame around the strip.

    Raises:
        OSError, ValueError: the video cannot be read.
    """
    rows = [Image.new("RGB", (MIN_WIDTH, 0))]
    for clip in clips:
        count = min(MAX_FRAMES, len(clip.frames))
        numbers = [clip.frames[index * (len(clip.frames) - 1) // max(1, count - 1)] for index in range(count)]
        frames = []
        for frame in map(to_pil, video.read(numbers, FRAME_HEIGHT)):
            # Tiny frames keep their hard edges.
            method = Image.Resampling.NEAREST if frame.height * 2 < FRAME_HEIGHT else Image.Resampling.LANCZOS
            width = max(1, round(frame.width * FRAME_HEIGHT / frame.height))
            frames.append(frame.resize((width, FRAME_HEIGHT), method))
        rows.append(side_by_side(frames, [f"{number / video.fps:.2f} s" for number in numbers]))
    strip = stack_vertically(rows, [title, *(f"{clip.name}: {clip.text}" if clip.name else "" for clip in clips)])
    return ImageOps.expand(strip, 5, FRAME_COLORS[verdict]) if verdict else strip


def write_clip(path: Path, video: Video, clips: Sequence[SampledClip]) -> None:
    """Write the frames of clips, one after the other, at the speed of the video, with predictions as overlay (mp4).

    Args:
        path: of the file.
        video: to read frames of.
        clips: to write.

    Raises:
        OSError, ValueError: the video cannot be read, or the file cannot be written.
    """
    frames = (frame for clip in clips for frame in _labeled_frames(video, clip))
    content = _encode_mp4(frames, _frame_rate(video.fps, clips[0].frames))
    write_atomic(path, content)


def _labeled_frames(video: Video, clip: SampledClip) -> Iterator[NDArray[Any]]:
    """Yield the frames of a clip (uint8, H x W x 3), tiny ones enlarged, with its name and text in the upper left
    corner."""
    text = "\n".join(filter(None, (clip.name, clip.text)))
    color = COLORS[clip.label % len(COLORS)]
    for frame in video.read(clip.frames, CLIP_SIDE):
        image = to_pil(frame)
        factor = max(1, CLIP_SIDE // min(image.size))
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
        draw = ImageDraw.Draw(image)
        for size in range(max(10, min(image.size) // 14), 7, -1):  # as large as the width allows
            font = ImageFont.load_default(size)
            _, _, right, bottom = draw.textbbox((0, 0), text, font=font)
            if right + 8 <= image.width:
                break
        draw.rectangle((0, 0, right + 8, bottom + 6), fill=color)
        draw.text((4, 2), text, fill=text_color(color), font=font)
        # The codec needs even sides.
        yield np.pad(np.asarray(image), ((0, image.height % 2), (0, image.width % 2), (0, 0)), mode="edge")


def _encode_mp4(frames: Iterator[NDArray[Any]], frame_rate: Fraction) -> bytes:
    """Return an mp4 file of frames of equal size."""
    import av

    content = BytesIO()
    first = next(frames)
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=frame_rate, options={"crf": "18"})
        stream.pix_fmt, (stream.height, stream.width) = "yuv420p", first.shape[:2]
        for pixels in chain([first], frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return content.getvalue()


def _frame_rate(fps: float, numbers: Sequence[int]) -> Fraction:
    """Return the frames per second at which a clip lasts as long as in the video; a single frame lasts a second."""
    steps = sorted(later - earlier for earlier, later in pairwise(numbers) if later > earlier)
    rate = fps / steps[len(steps) // 2] if steps else 1.0
    return Fraction(min(max(rate, 1.0), 120.0)).limit_denominator(1000)
