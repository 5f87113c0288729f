"""Re-identification from videos with tracks: crops of the tracked objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Count, Fraction, FrameTracks, Role, Sample, Source, SourcePart
from opabinia.data.sources.named import NamedSamples
from opabinia.data.sources.reid_base import OpenSplit, ReidImage, identity_info, open_split


class _Crop(NamedTuple):
    """A box of a track: its video, track and frame, its place in the source, and left, top, right, bottom
    in pixels."""

    sequence: str
    track: int
    frame: int
    place: int
    box: tuple[int, int, int, int]


@register.source
class TrackCrops(NamedSamples):
    """Crops of tracked objects for re-identification, from the frames of videos with tracks, such as ``mot``: an
    identity is a track of a video.

    In training, the videos are the cameras. The crops of a test identity are all of one video, so there cameras are
    unknown: each crop is searched among all others. A sample's id is ``<video>/<track>/<frame>``.

    Args:
        source: the frames.
        split: ``train``, ``test`` or ``all``: what the crops are for; the source chooses the videos.
        min_visibility: smallest visible share of an object, where it is known.
        min_size: smallest width and height in pixels, within the image.
        min_gap: frames between two crops of a track at least: neighboring frames are nearly copies.

    Raises:
        ValueError: the source has no tracks, or too few identities.

    Example::

        source: {name: track_crops, source: {name: mot, root: videos, exclude: [street-5]}}
    """

    def __init__(
        self,
        *,
        source: SourcePart,
        split: OpenSplit = "train",
        min_visibility: Fraction = 0.3,
        min_size: Count = 16,
        min_gap: Count = 10,
    ) -> None:
        self._source = source
        self._crops = _distant_crops(source, min_visibility, min_size, min_gap)
        cameras = {name: camera for camera, name in enumerate(dict.fromkeys(crop.sequence for crop in self._crops))}
        images = []
        for crop in self._crops:
            identity = f"{crop.sequence}/{crop.track}"
            images.append(ReidImage(f"{identity}/{crop.frame}".encode(), identity, cameras[crop.sequence]))
        listing = open_split("track_crops", split, images)
        info = identity_info(listing, cameras=0 if split == "test" else len(cameras), channels=source.channels)
        super().__init__([image.name for image in images], info)

    def __getitem__(self, index: int) -> Sample:
        crop = self._crops[range(len(self))[index]]
        left, top, right, bottom = crop.box
        image = self._source[crop.place]["image"][:, top:bottom, left:right]
        return self.sample(tv_tensors.Image(image.clone()), index)

    def paths(self, index: int) -> Sequence[bytes]:
        return self._source.paths(self._crops[index].place)


def _distant_crops(source: Source, min_visibility: float, min_size: int, min_gap: int) -> list[_Crop]:
    """Return boxes of each track that are large and visible, with a gap of frames between them, in order of video,
    track and frame."""
    by_track: dict[tuple[str, int], list[_Crop]] = {}
    order: dict[str, int] = {}
    for index in range(len(source)):
        ground_truth = source.ground_truth(index)
        if ground_truth is None or ground_truth.track is None:
            raise ValueError(f"source: {type(source).__name__} has no videos with tracks, as mot has")
        frame, (height, width) = ground_truth.track, ground_truth.size
        order.setdefault(frame.sequence, len(order))
        for row in np.flatnonzero(_are_good(frame, min_visibility)).tolist():
            left, top = np.floor(frame.truth.boxes[row, :2]).clip(0).astype(int).tolist()
            right, bottom = np.ceil(frame.truth.boxes[row, 2:]).clip(0, (width, height)).astype(int).tolist()
            track = int(frame.truth.ids[row])
            crops = by_track.setdefault((frame.sequence, track), [])
            is_distant = not crops or frame.frame - crops[-1].frame >= min_gap
            if is_distant and min(right - left, bottom - top) >= min_size:
                crops.append(_Crop(frame.sequence, track, frame.frame, index, (left, top, right, bottom)))
    crops = [crop for track in by_track.values() for crop in track]
    return sorted(crops, key=lambda crop: (order[crop.sequence], crop.track, crop.frame))


def _are_good(frame: FrameTracks, min_visibility: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which objects count and are visible enough."""
    good = frame.truth.roles == Role.COUNTED
    return np.asarray(good if frame.visibility is None else good & (frame.visibility >= min_visibility))
