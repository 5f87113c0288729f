"""Drawn videos: strips of the frames that a model has seen, and clips of them with the prediction as an overlay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from opabinia.contracts import Sample, Video
from opabinia.runtime.files import temporary_file
from opabinia.runtime.text import one_line
from opabinia.visualization.drawing import COLORS, side_by_side, stack_vertically, text_color, to_pil

MAX_FRAMES, FRAME_HEIGHT, MIN_WIDTH = 8, 128, 560
"""Maximum number of frames of a clip in a strip, their height, and the minimum width of strips, which leaves room for
text."""

CODECS = ("libx264", "libopenh264", "mpeg4")
"""Encoders of written videos: H.264, or MPEG-4 where FFmpeg was built without it."""

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
    percentages = iter([f"{float(probability):.1%}" for probability in views])
    clips = [(numbers, len(list(crops))) for numbers, crops in groupby(frames)]
    names = [f"clip {number} of {len(clips)}" if len(clips) > 1 else "" for number in range(1, len(clips) + 1)]
    return [
        SampledClip(numbers, name, label, " ".join([classes[label], *islice(percentages, crops)]))
        for name, (numbers, crops) in zip(names, clips, strict=True)
    ]


def draw_strip(video: Video, clips: Sequence[SampledClip], title: str = "") -> Image.Image:
    """Draw frames of a video side by side, each below its time; a row for each clip.

    Args:
        video: read at low resolution.
        clips: to show; of many frames some at equal distances.
        title: above all rows.

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
    return stack_vertically(rows, [title, *(f"{clip.name}: {clip.text}" if clip.name else "" for clip in clips)])


def write_clip(path: Path, video: Video, clips: Sequence[SampledClip]) -> None:
    """Write the frames of clips, one after the other, at the speed of the video, with predictions as overlay (mp4).

    Args:
        path: path of the file.
        video: to read frames of.
        clips: to write.

    Raises:
        OSError, ValueError: the video cannot be read, or the file cannot be written.
    """
    rate = _frame_rate(video.fps, clips[0].frames)
    with write_video(path, rate, 1 / rate) as write:
        frames = ((clip, frame) for clip in clips for frame in video.read(clip.frames, CLIP_SIDE))
        for number, (clip, frame) in enumerate(frames):
            text = "\n".join(map(one_line, filter(None, (clip.name, clip.text))))
            write(draw_label(to_pil(frame), text, COLORS[clip.label % len(COLORS)]), number)


def draw_label(image: Image.Image, text: str, color: tuple[int, int, int] = COLORS[0]) -> Image.Image:
    """Return an image, enlarged by a whole factor if it is tiny, with a text on a color in the upper left corner."""
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
    return image


@contextmanager
def write_video(path: Path, rate: Fraction, time_base: Fraction) -> Iterator[Callable[[Image.Image, int], None]]:
    """Write a video (mp4): yield a function that adds an image at a time, in units of ``time_base``.

    The first of :data:`CODECS` that PyAV's FFmpeg can encode is used. All images get the size of the first.

    Args:
        path: path of the file.
        rate: usual number of images per second.
        time_base: seconds; the times must increase.

    Raises:
        DiskError: the file cannot be written.
    """
    import av

    codec = next(name for name in CODECS if name in av.codecs_available)
    with temporary_file(path) as temporary, av.open(str(temporary), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.codec_context.time_base = stream.time_base = time_base
        stream.pix_fmt = "yuv420p"
        if codec == "libx264":
            stream.options = {"crf": "18"}
        else:
            stream.bit_rate = 8_000_000
        first: list[tuple[int, int]] = []

        def write(image: Image.Image, time: int) -> None:
            if not first:
                first.append(image.size)
                stream.width, stream.height = (side + side % 2 for side in image.size)  # the codec needs even sides
            width, height = first[0]
            pixels = np.asarray(image if image.size == (width, height) else image.resize((width, height)))
            pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time, time_base
            container.mux(stream.encode(frame))

        yield write
        container.mux(stream.encode())


def _frame_rate(fps: float, numbers: Sequence[int]) -> Fraction:
    """Return the frames per second at which a clip lasts as long as in the video; a single frame lasts a second."""
    steps = sorted(later - earlier for earlier, later in pairwise(numbers) if later > earlier)
    rate = fps / steps[len(steps) // 2] if steps else 1.0
    return Fraction(min(max(rate, 1.0), 120.0)).limit_denominator(1000)
