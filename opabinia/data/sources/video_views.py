"""Several views of each video: clips over time and crops in space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opabinia.config import register
from opabinia.contracts import (
    Count,
    FileSource,
    FingerprintedSource,
    LabeledSource,
    MultiLabelSource,
    NamedSource,
    Sample,
    SourcePart,
)


@register.source(name="video_views")
class VideoViews:
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
        self.channels, self.classes = source.channels, source.classes
        if isinstance(source, LabeledSource):
            self.labels = np.repeat(source.labels, clips * crops, axis=0)
        if isinstance(source, MultiLabelSource):
            self.multi_label = source.multi_label

    def __len__(self) -> int:
        return len(self.source) * self._clips * self._crops

    def __getitem__(self, index: int) -> Sample:
        video, view = divmod(range(len(self))[index], self._clips * self._crops)
        clip, crop = divmod(view, self._crops)
        return {**self.source[video], "view": ((clip, self._clips), (crop, self._crops))}

    def id(self, index: int) -> str:
        """Return the id of the video."""
        assert isinstance(self.source, NamedSource)
        return self.source.id(index // (self._clips * self._crops))

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of the video, if the source knows them."""
        source = self.source
        return source.paths(index // (self._clips * self._crops)) if isinstance(source, FileSource) else ()

    def fingerprint(self) -> str:
        """Return the source's and the number of views."""
        source = self.source
        text = source.fingerprint() if isinstance(source, FingerprintedSource) else len(source)
        return f"{self._clips} x {self._crops} views of {text}"
