"""Videos with tracks of objects: frames with bounding boxes, for detection and for the evaluation of tracks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from opabinia.config import register
from opabinia.contracts import Channels, Count, Fraction, FrameTracks, InputPath
from opabinia.contracts.tracking import Role
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_values import shortened
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.mot_files import CLASSES, mot_videos
from opabinia.data.sources.track_formats import coco_videos, cvat_videos, kitti_videos
from opabinia.data.sources.track_rows import TrackFiles, Videos, VideoTracks
from opabinia.runtime.text import plural

Format = Literal["mot", "cvat", "kitti", "coco_vid"]

_FORMATS: dict[Format, Callable[[TrackFiles], Videos]] = {
    "mot": mot_videos,
    "cvat": cvat_videos,
    "kitti": kitti_videos,
    "coco_vid": coco_videos,
}

DISTRACTORS = ["person on vehicle", "static person", "distractor", "reflection"]
"""Classes of MOT17 that a detector may find or not."""


@register.source
def mot(
    *,
    root: InputPath,
    format: Format = "mot",
    file: str | None = None,
    sequences: list[str] | None = None,
    exclude: list[str] | None = None,
    classes: list[str] | None = None,
    distractors: list[str] | None = None,
    names: list[str] | None = None,
    first_pixel: int | None = None,
    first_frame: int | None = None,
    min_visibility: Fraction = 0.0,
    every: Count = 1,
    empty: Empty = "keep",
    broken: Broken = "clip",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Frames with bounding boxes and tracks of videos (multi-object tracking).

    - ``mot``: MOTChallenge, and CVAT's "MOT 1.1". A folder for each video, with ``img1``, ``gt/gt.txt`` and perhaps
      ``seqinfo.ini`` and ``gt/labels.txt``.
    - ``cvat``: "CVAT for video 1.1". A folder for each video, with ``annotations.xml`` and ``images``; boxes between
      two of a track are interpolated.
    - ``kitti``: KITTI tracking, with ``label_02/<video>.txt`` and ``image_02/<video>``. Regions of the class
      ``DontCare`` are ignored in evaluation.
    - ``coco_vid``: CocoVID (MMTracking). A JSON file with the images below the root of all videos.

    Neighboring frames are nearly copies, so training and validation need different sequences. A sample's id is its path
    below the root.

    Args:
        root: the folder with these.
        format: see above.
        file: of ``coco_vid``, the JSON file below the root.
        sequences: names of the videos; all of them when not given.
        exclude: videos that are not read, such as those of validation.
        classes: names in the order of their labels; all, but of MOTChallenge ``pedestrian`` only, when not given.
        distractors: classes that are not trained on and ignored in evaluation; those of MOT17 when not given.
        names: of ``mot``, names of the class numbers 1, 2 ... in place of ``gt/labels.txt`` or those of MOTChallenge.
        first_pixel: coordinate of the first pixel in the files: 1 in MOTChallenge's, 0 in all others.
        first_frame: number of the first image in the annotations, if it is not the one in its name.
        min_visibility: objects that are less visible are not trained on, and ignored in evaluation.
        every: read each n-th frame of a sequence only.
        empty: ``drop`` drops frames without objects to train on.
        broken: handling of boxes that extend beyond the image: ``error`` raises; ``clip`` clips them; ``drop`` drops
            them. ``fix`` clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a file is missing or damaged, or a name is unknown; the text names file and line.
    """
    pixel = int(format == "mot") if first_pixel is None else first_pixel
    root = existing_folder(root, "root is the folder that holds the videos")
    videos = _read_videos(_FORMATS[format](TrackFiles(root, file, names, pixel, first_frame)), root, sequences, exclude)
    chosen, ignored = _chosen_classes(root, videos, classes, distractors)
    listing = DetectionListing(file=root, root=root, classes=chosen, noun=videos[0].noun)
    listing.tracks = [
        frame for video in videos for frame in _add_frames(listing, video, ignored, min_visibility, every)
    ]
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _add_frames(
    listing: DetectionListing, video: VideoTracks, ignored: list[str], min_visibility: float, every: int
) -> list[FrameTracks]:
    """Add the frames and boxes of a video; those that are ignored are so for all classes. Return the frames."""
    numbers, classes = sorted(video.images)[::every], list(listing.classes)
    images = {number: listing.add_image(os.fsencode(video.images[number]), video.size) for number in numbers}
    truth = video.ground_truth(classes, ignored)
    for row in np.flatnonzero(np.isin(video.rows.frames, numbers) & (truth.roles != Role.EXCLUDED)).tolist():
        left, top, right, bottom = truth.boxes[row].tolist()
        is_object = truth.roles[row] == Role.COUNTED
        crowd = not is_object or bool(video.rows.visibility[row] < min_visibility)
        for label in [int(truth.labels[row])] if is_object else range(len(classes)):
            image, line = images[int(video.rows.frames[row])], int(video.rows.lines[row])
            listing.add(image, line, classes[label], (left, top, right - left, bottom - top), crowd=crowd)
    return video.frames(truth, numbers)


def _read_videos(
    videos: Videos, root: Path, sequences: list[str] | None, exclude: list[str] | None
) -> list[VideoTracks]:
    """Return the chosen videos, sorted by name.

    Raises:
        ValueError: a name is unknown, there is no video, or a file is damaged.
    """
    present = sorted(videos)
    listed = ", ".join(present[:5]) + (" ..." if len(present) > 5 else "")
    if sequences == []:
        raise ValueError(f"sequences: none is named; {root} has {listed}")
    for option, chosen in (("sequences", sequences or []), ("exclude", exclude or [])):
        if unknown := [name for name in chosen if name not in present]:
            raise ValueError(f"{option}: {root} has no sequence {shortened(unknown[0])}; it has {listed}")
    selected = [name for name in present if (sequences is None or name in sequences) and name not in (exclude or [])]
    if not selected:
        raise ValueError(f"{root}: no sequence is left of {plural(len(present), 'sequence')}")
    return [videos[name]() for name in selected]


def _chosen_classes(
    root: Path, videos: Sequence[VideoTracks], classes: list[str] | None, distractors: list[str] | None
) -> tuple[list[str], list[str]]:
    """Return the classes in the order of their labels, and the distractors.

    Raises:
        ValueError: a name is unknown, or given twice or as both.
    """
    known = list(dict.fromkeys(name for video in videos for name in video.names))
    chosen = classes if classes is not None else ["pedestrian"] if known == [*CLASSES] else known
    ignored = [name for name in DISTRACTORS if name in known] if distractors is None else distractors
    for option, values in (("classes", chosen), ("distractors", ignored)):
        for name in values:
            if name not in known:
                raise ValueError(f"{option}: {root} has no class {shortened(name)}; it has {', '.join(known[:15])}")
            if values.count(name) > 1:
                raise ValueError(f"{option}: {shortened(name)} is given twice")
    if not chosen:
        raise ValueError("classes: at least one is needed")
    if distractors and (both := [name for name in distractors if name in chosen]):
        raise ValueError(f"distractors: {both[0]} is one of the classes")
    return chosen, [name for name in ignored if name not in chosen]
