"""Strips of frames around identity switches, for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from opabinia.contracts.tracking import Role, Tracks
from opabinia.evaluation.tracking.clear import Switch
from opabinia.inference.report_galleries import Gallery, GalleryImage, GalleryRow
from opabinia.inference.tracking.kept import KeptVideos, VideoDetections, read_frame
from opabinia.visualization.drawing import DrawnObject, draw_around, side_by_side

WORST, FRAMES, AROUND = 12, 5, 2
"""Strips of a report, frames of each from the last match with a track to the first with another one, and the distance
of a further frame before and after these."""
SIDE = 224
"""Longer side of a drawn frame in pixels."""
MARGIN, MIN_MARGIN = 1.0, 12
"""Space around the object: as a share of its longer side, and in pixels."""

_BEFORE, _AFTER, _OBJECT, _OTHER = 0, 1, 2, 9
"""Indices of colors: blue, orange, green, gray."""


class VideoSwitch(NamedTuple):
    """An identity switch in a sequence."""

    sequence: str
    switch: Switch


def draw_switches(
    videos: KeptVideos,
    read: Mapping[str, VideoDetections],
    tracks: Mapping[str, Tracks],
    switches: Mapping[str, Sequence[Switch]],
    title: str,
) -> list[Gallery]:
    """Return the gallery of the switches that cost most; none without switches.

    Args:
        videos: the frames.
        read: detections by sequence.
        tracks: predicted tracks by sequence.
        switches: identity switches by sequence.
        title: title of the gallery.

    Raises:
        DataError: a frame cannot be read.
    """
    found = [VideoSwitch(sequence, switch) for sequence in switches for switch in switches[sequence]]
    worst = sorted(found, key=lambda item: -item.switch.boxes_lost)[:WORST]
    images = [
        GalleryImage(_strip(videos, sequence, read[sequence], tracks[sequence], switch), _caption(sequence, switch))
        for sequence, switch in worst
    ]
    note = (
        f"{len(worst)} of {len(found):,}, first those that divide a track into the longest parts. Green: the object; "
        "blue: the predicted track before; orange: the one after; gray: other predicted tracks."
    )
    return [Gallery(title, [GalleryRow(images)], note)] if images else []


def _caption(sequence: str, switch: Switch) -> str:
    (before, after), (old, new) = switch.frames, switch.predicted
    return f"{sequence}: object {switch.track} is track {old} until frame {before}, track {new} from frame {after}"


def _strip(videos: KeptVideos, sequence: str, video: VideoDetections, tracks: Tracks, switch: Switch) -> Image.Image:
    """Draw some frames around a switch, cut out around the object, side by side."""
    before, after = switch.frames
    wanted = [before - AROUND, *np.linspace(before, after, FRAMES).round().astype(int).tolist(), after + AROUND]
    shown = [number for number in dict.fromkeys(wanted) if video.numbers[0] <= number <= video.numbers[-1]]
    indices = dict(zip(video.numbers.tolist(), videos.samples[sequence].tolist(), strict=True))
    truth, colors = video.truth, dict(zip(switch.predicted, (_BEFORE, _AFTER), strict=True))
    rows = (truth.ids == switch.track) & (truth.roles == Role.COUNTED) & np.isin(truth.frames, shown)
    objects = dict(zip(truth.frames[rows].tolist(), truth.boxes[rows].tolist(), strict=True))
    images = []
    for number in shown:
        image: Tensor = read_frame(videos.source, indices[number])["image"]
        rows = tracks.frames == number
        predicted = zip(tracks.ids[rows].tolist(), tracks.boxes[rows].tolist(), strict=True)
        drawn = [DrawnObject(colors.get(track, _OTHER), f"{track}", box) for track, box in predicted]
        drawn = sorted(drawn, key=lambda item: item.label)
        drawn += [DrawnObject(_OBJECT, "", objects[number])] if number in objects else []
        around = list(objects.values())
        images.append(draw_around(image, drawn, around, side=SIDE, margin=MARGIN, min_margin=MIN_MARGIN))
    return side_by_side(images, [f"frame {number}" for number in shown])
