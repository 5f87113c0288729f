"""Films to be looked at: strips of the frames that a model has seen, and clips of them with what it says burnt in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from io import BytesIO
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from opabinia.contracts import Sample, Video
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.visualization.drawing import COLOURS, FRAMES, side_by_side, stack_vertically, to_pil

FRAMES_OF_STRIP, HEIGHT = 8, 128
"""Of a strip: how many frames of a clip it shows at most, and their height in pixels."""

SIDE, LEAST_WIDTH = 256, 560
"""The shorter side of clips that are written; strips are so wide at least, so that there is room for words."""

Pixels = NDArray[Any]
"""Of a picture: uint8, H x W x 3."""


class Noted:
    """A film that notes which frames were asked for. The same ones asked for again at once are not decoded again, as
    crops of one clip ask.

    Args:
        film: what it stands for.

    Attributes:
        asked: numbers of the frames, for each time.
    """

    def __init__(self, film: Video) -> None:
        self._film = film
        self.path = film.path
        self.asked: list[list[int]] = []
        self._last: tuple[int | None, Tensor] | None = None

    @property
    def frames(self) -> int:
        return self._film.frames

    @property
    def seconds(self) -> float:
        return self._film.seconds

    @property
    def fps(self) -> float:
        return self._film.fps

    @property
    def size(self) -> tuple[int, int]:
        return self._film.size

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        numbers = [int(number) for number in indices]
        if not self.asked or self.asked[-1] != numbers or self._last is None or self._last[0] != short_side:
            self._last = short_side, self._film.read(numbers, short_side)
        self.asked.append(numbers)
        return self._last[1].clone()


def picture_of(sample: Sample) -> Tensor:
    """What stands for a sample where there is room for one picture (C x H x W): of a film the frame in its middle."""
    if "video" not in sample:
        image: Tensor = sample["image"]
        return image
    film: Video = sample["video"]
    return film.read([film.frames // 2])[0]


# --- what was seen ----------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """A clip of a film as a model has seen it.

    Attributes:
        frames: their numbers.
        name: which clip it is, such as ``clip 2 of 10``; nothing where there is one.
        label: the likeliest class of the whole film.
        text: that class, with its probability in each crop of this clip.
    """

    frames: list[int]
    name: str
    label: int
    text: str


def seen_clips(frames: Sequence[list[int]], prediction: Mapping[str, Tensor], classes: Sequence[str]) -> list[Seen]:
    """Clips of a film with what is said of them.

    Args:
        frames: numbers of those in each of V views; crops of a clip, which follow each other, have the same.
        prediction: ``probabilities`` (K), and of several views those of each as ``views`` (V x K).
        classes: their names.
    """
    label = int(prediction["probabilities"].argmax())
    each = prediction["views"][:, label] if "views" in prediction else prediction["probabilities"][label : label + 1]
    clips = [(numbers, [places[0] for places in group]) for numbers, group in _together(frames)]
    names = [f"clip {number} of {len(clips)}" for number in range(1, len(clips) + 1)] if len(clips) > 1 else [""]
    return [
        Seen(numbers, name, label, f"{classes[label]} " + " ".join(f"{float(each[place]):.1%}" for place in places))
        for name, (numbers, places) in zip(names, clips, strict=True)
    ]


def _together(frames: Sequence[list[int]]) -> Iterator[tuple[list[int], Iterator[tuple[int, list[int]]]]]:
    """Places of views that have the same frames, as long as they follow each other."""
    return groupby(enumerate(frames), key=lambda one: one[1])


# --- strips -----------------------------------------------------------------------------------------------------------


def strip(film: Video, clips: Sequence[Seen], title: str = "", verdict: str | None = None) -> Image.Image:
    """Frames of a film side by side, each with its time above; a row for each clip.

    Args:
        film: of which frames are read, small.
        clips: that are shown; of many frames some at equal distances.
        title: above all of them.
        verdict: a key of :data:`opabinia.visualization.drawing.FRAMES`, which colours an edge around it.

    Raises:
        OSError, ValueError: the film cannot be read.
    """
    heading = Image.new("RGB", (LEAST_WIDTH, 0))
    texts = [f"{one.name}: {one.text}" if one.name else "" for one in clips]
    whole = stack_vertically([heading, *(_row(film, one.frames) for one in clips)], [title, *texts])
    return ImageOps.expand(whole, 5, FRAMES[verdict]) if verdict else whole


def _row(film: Video, numbers: Sequence[int]) -> Image.Image:
    count = min(FRAMES_OF_STRIP, len(numbers))
    shown = [numbers[place * (len(numbers) - 1) // max(1, count - 1)] for place in range(count)]
    frames = [_fitted(to_pil(frame)) for frame in film.read(shown, HEIGHT)]
    return side_by_side(frames, [f"{number / film.fps:.2f} s" for number in shown])


def _fitted(frame: Image.Image) -> Image.Image:
    """A frame at the height of a strip; tiny ones keep their hard edges."""
    width = max(1, round(frame.width * HEIGHT / frame.height))
    method = Image.Resampling.NEAREST if frame.height * 2 < HEIGHT else Image.Resampling.LANCZOS
    return frame.resize((width, HEIGHT), method)


# --- clips ------------------------------------------------------------------------------------------------------------


def write_clip(path: Path, film: Video, clips: Sequence[Seen]) -> None:
    """Write the frames of clips, one clip after the other, at the pace of the film, with what is said of each burnt in
    (mp4).

    Args:
        path: of the file.
        film: of which frames are read.
        clips: that are written.

    Raises:
        OSError, ValueError: the film cannot be read, or the file cannot be written.
    """
    content = _encoded((one for clip in clips for one in _labelled(film, clip)), _pace(film.fps, clips[0].frames))
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)


def _labelled(film: Video, clip: Seen) -> Iterator[Pixels]:
    """The frames of a clip, tiny ones enlarged, with its name and text in the upper left corner."""
    words = "\n".join(filter(None, (clip.name, clip.text)))
    for frame in film.read(clip.frames, SIDE):
        picture = to_pil(frame)
        times = max(1, SIDE // min(picture.size))
        picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
        _write(picture, words, COLOURS[clip.label % len(COLOURS)])
        # Players want even sides.
        yield np.pad(np.asarray(picture), ((0, picture.height % 2), (0, picture.width % 2), (0, 0)), mode="edge")


def _write(picture: Image.Image, words: str, colour: tuple[int, int, int]) -> None:
    """Words in the upper left corner, as large as the width allows."""
    draw = ImageDraw.Draw(picture)
    for size in range(max(10, min(picture.size) // 14), 7, -1):
        font = ImageFont.load_default(size)
        _, _, right, bottom = draw.textbbox((0, 0), words, font=font)
        if right + 8 <= picture.width:
            break
    draw.rectangle((0, 0, right + 8, bottom + 6), fill=colour)
    draw.text((4, 2), words, fill=(30, 30, 30) if sum(colour) > 380 else (255, 255, 255), font=font)


def _encoded(frames: Iterator[Pixels], pace: Fraction) -> bytes:
    """An mp4 file of frames of one size, so many a second."""
    import av

    content = BytesIO()
    first = next(frames)
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=pace, options={"crf": "18"})
        stream.pix_fmt, (stream.height, stream.width) = "yuv420p", first.shape[:2]
        for pixels in chain([first], frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return content.getvalue()


def _pace(fps: float, numbers: Sequence[int]) -> Fraction:
    """Frames a second of a clip that lasts as long as what it shows; a single frame stays for a second."""
    steps = sorted(later - earlier for earlier, later in pairwise(numbers) if later > earlier)
    pace = fps / steps[len(steps) // 2] if steps else 1.0
    return Fraction(min(max(pace, 1.0), 120.0)).limit_denominator(1000)
