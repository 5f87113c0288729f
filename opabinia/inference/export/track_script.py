"""Track the objects in a video or a folder of frames: ``python track.py PATH --out tracks.txt``.

Needs onnxruntime, NumPy, SciPy and Pillow, for video files also PyAV. Its folder has the detector, perhaps a model of
embeddings, the settings of the tracker (``tracker.json``) and its code. The rows of the result are those of
MOTChallenge: frame, id, left, top, width, height, score, -1, -1, -1, as ``opabinia track`` writes them.
"""

import argparse
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from configparser import ConfigParser, Error
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.inference.export.predict_script import open_image, open_onnx
from opabinia.inference.tracking.arrays import (
    DEFAULT_RATE,
    MAX_CROPS,
    STEP,
    crop_corners,
    mot_rows,
    readable_tracks,
    tracked_rows,
)
from opabinia.models.trackers.association import Ints
from opabinia.models.trackers.botsort import bot_sort
from opabinia.models.trackers.camera import Camera
from opabinia.models.trackers.kalman import Floats
from opabinia.models.trackers.ocsort import oc_sort
from opabinia.models.trackers.sequences import Frame, update
from opabinia.models.trackers.sort import byte_track, sort

Pixels = NDArray[np.uint8]
"""An image: C x H x W, gray or RGB."""

TRACKERS: dict[str, Callable[..., Ints]] = {
    "sort": sort,
    "bytetrack": byte_track,
    "ocsort": oc_sort,
    "botsort": bot_sort,
}

DETECTOR, EMBEDDER, SETTINGS = "detector.onnx", "reid.onnx", "tracker.json"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")


class TimedFrame(NamedTuple):
    """A frame: its number in files of MOTChallenge, where the first one has 1, its time in seconds, its pixels."""

    number: int
    seconds: float
    image: Pixels


class Tracker:
    """Detector, model of embeddings and tracker of a folder.

    Args:
        folder: folder of the files.

    Example::

        tracker = Tracker(Path("tracker"))
        for frame, ids in tracker.track(read_frames(Path("video.mp4"), tracker.channels)):
            print(frame.number, ids, frame.detections.boxes)      # -1: a detection without a track (yet)
    """

    def __init__(self, folder: Path) -> None:
        self.settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.detector = Model(folder / DETECTOR)
        self.embedder = Model(folder / EMBEDDER) if (folder / EMBEDDER).exists() else None
        self.classes = json.loads(self.detector.about["classes"])
        self.channels = max(model.channels for model in (self.detector, self.embedder) if model is not None)

    def track(self, frames: Iterable[TimedFrame]) -> Iterator[tuple[Frame, Ints]]:
        """Yield the detections of successive frames, and their tracks."""
        options = dict(self.settings["tracker"])
        tracker = partial(TRACKERS[options.pop("name")], **options)
        camera = Camera() if self.settings["camera_motion"] else None
        state: TrackerState = {}
        before = -STEP
        for number, seconds, image in frames:
            before = max(seconds, before + STEP)
            boxes, scores, labels = self.detect(image)
            embeddings = None if self.embedder is None else self.embed(image, boxes)
            shift = (0.0, 0.0) if camera is None else camera.shift(with_channels(image, 1)[0])
            detections = FrameDetections(boxes, scores, embeddings, before, shift)
            yield (
                Frame(number, detections, labels),
                update(tracker, state, detections, labels, self.settings["per_class"]),
            )

    def detect(self, image: Pixels) -> tuple[Floats, Floats, Ints]:
        """Return boxes, scores and labels of the detections to track, in pixels of the image."""
        prepared = self.detector.prepared(image)
        (height, width), (_, rows, columns) = image.shape[1:], prepared.shape
        if rows > self.detector.size[0] or columns > self.detector.size[1]:
            most = "the detector takes at most {} x {}, the size of its validation images".format(*self.detector.size)
            raise ValueError(f"a frame of {height} x {width} pixels comes to {rows} x {columns}: {most}")
        padded = np.zeros((1, self.detector.channels, *self.detector.size), prepared.dtype)
        padded[0, :, :rows, :columns] = prepared
        outputs = self.detector.run({"image": padded, "image_sizes": np.array([[rows, columns]])})
        boxes, scores, labels = (outputs[name][0][outputs["labels"][0] >= 0] for name in ("boxes", "scores", "labels"))
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            raise ValueError("the detector predicts numbers that are not finite")
        boxes = boxes * np.array([width / columns, height / rows] * 2, np.float32)
        boxes = boxes.clip(0, np.array([width, height] * 2, np.float32)).astype(np.float64)
        tracked = tracked_rows(boxes, scores.astype(np.float64), (height, width), self.settings["score"])
        return boxes[tracked], scores[tracked].astype(np.float64), labels[tracked].astype(np.int64)

    def embed(self, image: Pixels, boxes: Floats) -> Floats:
        """Return embeddings of the crops of boxes, of unit length (N x D)."""
        assert self.embedder is not None
        corners = crop_corners(boxes, image.shape[1:]).tolist()
        crops = [self.embedder.prepared(image[:, top:bottom, left:right]) for left, top, right, bottom in corners]
        count = MAX_CROPS if self.embedder.about["batch_size"] == "dynamic" else 1
        parts = [np.stack(crops[start : start + count]) for start in range(0, len(crops), count)]
        rows = [self.embedder.run({"image": part})["embedding"] for part in parts]
        lengths = [np.linalg.norm(part, axis=1, keepdims=True).clip(1e-12) for part in rows]
        units = [(part / length).astype(np.float64) for part, length in zip(rows, lengths, strict=True)]
        return np.concatenate(units) if units else np.zeros((0, self.embedder.width))


class Model:
    """An exported model.

    Attributes:
        about: its metadata.
        channels: channels of its images.
        size: their height and width; those of a detector may be smaller.
        run: the function of inputs by name to outputs by name.
    """

    def __init__(self, file: Path) -> None:
        self.about, _, self.run = open_onnx(str(file))
        self.channels, self.size = int(self.about["channels"]), tuple(json.loads(self.about["size"]))
        self._transforms = json.loads(self.about["transforms"])

    @cached_property
    def width(self) -> int:
        """Number of values of an embedding."""
        image = np.zeros((1, self.channels, *self.size), self.about["dtype"])
        return int(self.run({"image": image})["embedding"].shape[1])

    def prepared(self, image: Pixels) -> NDArray[Any]:
        """Return an image as the model takes it."""
        return prepared(image, self.channels, self._transforms, self.about["dtype"])


def prepared(image: Pixels, channels: int, transforms: list[dict[str, Any]], dtype: str) -> NDArray[Any]:
    """Return an image after the transforms, of which those that resize are known."""
    image = with_channels(image, channels)
    for transform in transforms:
        size = resized_size(image.shape[1], image.shape[2], transform)
        if size != image.shape[1:]:
            filter_ = Image.Resampling.BICUBIC if transform["interpolation"] == "bicubic" else Image.Resampling.BILINEAR
            pixels = Image.fromarray(image.transpose(1, 2, 0).squeeze()).resize(size[::-1], filter_)
            image = np.asarray(pixels).reshape(*size, channels).transpose(2, 0, 1)
    return image if dtype == "uint8" else image.astype(np.float32) / 255


def resized_size(height: int, width: int, transform: dict[str, Any]) -> tuple[int, int]:
    """Return the size of an image after ``Resize``, with height and width, or ``resize_shortest_edge``."""
    match transform:
        case {"name": "Resize", "size": [rows, columns]}:
            return rows, columns
        case {"name": "Resize", "size": int(short) | [int(short)], "max_size": None}:
            long = int(short * max(height, width) / min(height, width))
            return (short, long) if height <= width else (long, short)
        case {"name": "resize_shortest_edge", "short_edge_length": int(short) | [int(short)], "max_size": longest}:
            scale = short / min(height, width)
            sides = (short, scale * width) if height < width else (scale * height, short)
            down = 1.0 if longest is None else min(1.0, longest / max(sides))
            return max(1, int(sides[0] * down + 0.5)), max(1, int(sides[1] * down + 0.5))
    raise ValueError(f"the transform {transform['name']} is none of Resize and resize_shortest_edge")


def with_channels(image: Pixels, channels: int) -> Pixels:
    """Return an image in gray or RGB."""
    if len(image) == channels:
        return image
    if channels == 3:
        return image.repeat(3, 0)
    weights = np.array([0.299, 0.587, 0.114], np.float32).reshape(3, 1, 1)
    gray: Pixels = (image * weights).sum(0, keepdims=True).round().astype(np.uint8)
    return gray


# --- frames -----------------------------------------------------------------------------------------------------------


def read_frames(path: Path, channels: int, rate: float | None = None) -> Iterator[TimedFrame]:
    """Yield the frames of a video file, a folder or a sequence of MOTChallenge (a folder with ``img1``).

    Args:
        path: path of the video, folder or sequence.
        channels: 3 for color, 1 for gray.
        rate: frames per second of folders; None: that of ``seqinfo.ini``, or :data:`DEFAULT_RATE`.

    Raises:
        OSError, ValueError: there are no frames, or one is broken.
    """
    if not path.is_dir():
        yield from read_video(path, channels)
        return
    root = path.parent if (path.parent / "seqinfo.ini").is_file() else path
    info = read_info(root / "seqinfo.ini")
    is_sequence = bool(info) or (root / "img1").is_dir()
    folder = root / info.get("imdir", "img1") if is_sequence else path
    files = [name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES) and name[0] != "."]
    if not files:
        raise ValueError(f"{folder} has no images")
    if is_sequence:
        if unnumbered := [name for name in files if not re.search(r"\d", name)]:
            raise ValueError(f"{folder / unnumbered[0]}: its name has no number, which is that of the frame")
        by_number = {int(re.findall(r"\d+", name)[-1]): name for name in files}
    else:
        by_number = dict(enumerate(sorted(files, key=natural_key), 1))
    rate = rate or frame_rate(root / "seqinfo.ini", info)
    first = min(by_number)
    for number in sorted(by_number):
        file = folder / by_number[number]
        try:
            image = np.asarray(open_image(str(file), channels))
        except Exception as error:  # PIL raises any on damaged files
            raise ValueError(f"{file} cannot be decoded: {error}") from error
        pixels = image.reshape(*image.shape[:2], channels).transpose(2, 0, 1)
        yield TimedFrame(number, (number - first) / rate, pixels)


def read_info(file: Path) -> dict[str, str]:
    """Return the section ``Sequence`` of ``seqinfo.ini``; empty without the file.

    Raises:
        ValueError: it is no INI file.
    """
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(file, encoding="utf-8")
    except Error as error:
        raise ValueError(f"{file} is not an INI file: {str(error).splitlines()[0]}") from error
    return dict(parser["Sequence"]) if parser.has_section("Sequence") else {}


def frame_rate(file: Path, info: dict[str, str]) -> float:
    """Return the frames per second that ``seqinfo.ini`` has, or :data:`DEFAULT_RATE`.

    Raises:
        ValueError: they are not a number above 0.
    """
    text = info.get("framerate", str(DEFAULT_RATE))  # ConfigParser's keys are in lower case
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise ValueError(f"{file}: frameRate: {text} is not a number above 0")
    return rate


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares digits by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def read_video(path: Path, channels: int) -> Iterator[TimedFrame]:
    """Yield the frames of a video file, upright. Frames that cannot be decoded are skipped.

    Raises:
        OSError, ValueError: it cannot be opened or read; or PyAV is missing.
    """
    try:
        import av
    except ImportError as error:
        raise ValueError("reading video files needs PyAV: pip install av") from error
    with av.open(f"file:{path}", options={"protocol_whitelist": "file"}) as container:
        stream = next(iter(container.streams.video), None)
        if stream is None:
            raise ValueError(f"{path} has no video stream")
        number, start = 0, 0.0
        for packet in container.demux(stream):
            try:
                frames: list[Any] = packet.decode()
            except av.error.InvalidDataError:
                continue
            for frame in frames:
                seconds = number / float(stream.average_rate or 25) if frame.time is None else frame.time
                number, start = number + 1, start if number else seconds
                pixels = frame.to_ndarray(format="rgb24" if channels == 3 else "gray")
                upright = np.rot90(pixels.reshape(frame.height, frame.width, channels), round(frame.rotation / 90) % 4)
                yield TimedFrame(number, max(0.0, seconds - start), upright.transpose(2, 0, 1))


def main(folder: Path = Path(__file__).parent) -> None:
    """Write the tracks of the command line's video."""
    parser = argparse.ArgumentParser(description="Track the objects in a video or a folder of frames.")
    parser.add_argument("path", type=Path, help="a video file, a folder of frames, or a sequence of MOTChallenge")
    parser.add_argument("--out", type=Path, default="tracks.txt", help="file to write (default: tracks.txt)")
    parser.add_argument("--rate", type=float, help="frames per second of folders (default: of seqinfo.ini, or 30)")
    arguments = parser.parse_args()
    if arguments.rate is not None and not arguments.rate > 0:
        parser.error(f"--rate: {arguments.rate:g} is not above 0")
    temporary = arguments.out.with_name(f".{arguments.out.name}.{os.getpid()}")
    try:
        tracker = Tracker(folder)
        frames = read_frames(arguments.path, tracker.channels, arguments.rate)
        with temporary.open("w") as file:
            for frame, ids in tracker.track(frames):
                tracks = readable_tracks(frame, ids.tolist(), tracker.classes)
                file.writelines(mot_rows(frame.number, tracks))
        temporary.replace(arguments.out)
    except (OSError, ValueError) as error:
        temporary.unlink(missing_ok=True)
        parser.error(str(error))


if __name__ == "__main__":
    main()
