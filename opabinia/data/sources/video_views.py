"""Several views of each video: clips over time and crops in space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Sample, Source, SourcePart


@register.source(name="video_views")
class VideoViews(Source):
    """Each video of a source as n clips with m crops each, as consecutive samples with the video's id: for multi-view
    evaluation (Wang et al. 2018, Non-local Neural Networks: 10 x 3).

    ``clip`` and ``three_crop`` take the clip and the crop that the sample's ``view`` gives: ((i, n), (j, m)).

    Args:
        source: the source of the videos.
        clips: n, evenly spaced over the video.
        crops: m, evenly spaced along the longer side.

    Example::

        source: {name: video_views, source: {name: videos, root: val}, clips: 10, crops: 3}
        transforms: [{name: clip, frames: 16, stride: 4, place: middle}, {name: three_crop, size: 256}]
    """

    def __init__(self, *, source: SourcePart, clips: Count = 10, crops: Count = 3) -> None:
        self.source, self._clips, self._crops = source, clips, crops
        self.info = source.info.select(np.repeat(np.arange(len(source)), clips * crops))

    def __len__(self) -> int:
        return len(self.source) * self._clips * self._crops

    def __getitem__(self, index: int) -> Sample:
        video, view = divmod(range(len(self))[index], self._clips * self._crops)
        clip, crop = divmod(view, self._crops)
        return {**self.source[video], "view": ((clip, self._clips), (crop, self._crops))}

    def id(self, index: int) -> str:
        """Return the id of the video."""
        return self.source.id(index // (self._clips * self._crops))

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of the video."""
        return self.source.paths(index // (self._clips * self._crops))

    def fingerprint(self) -> str:
        """Return the source's and the number of views."""
        return f"{self._clips} x {self._crops} views of {self.source.fingerprint()}"
