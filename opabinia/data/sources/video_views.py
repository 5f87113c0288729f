"""Films, several times each: clips over time and crops in space."""

from __future__ import annotations

from typing import Any

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Sample, SourcePart


@register.source(name="views_of_films")
class ViewsOfFilms:
    """Every film of a source as n clips with m crops each, which lie beside each other and have the film's id: for the
    evaluation by many views (Wang et al. 2018, Non-local Neural Networks: 10 x 3).

    ``clip`` takes the clip, and ``three_crop`` the crop, that ``view`` of a sample tells: ((i, n), (j, m)).

    Args:
        source: whose films.
        clips: n, evenly over the film.
        crops: m, evenly along the longer side.

    Example::

        source: {name: views_of_films, source: {name: videos, root: val}, clips: 10, crops: 3}
        transforms: [{name: clip, frames: 16, stride: 4, place: middle}, {name: three_crop, size: 256}]
    """

    def __init__(self, *, source: SourcePart, clips: Count = 10, crops: Count = 3) -> None:
        self.source, self._clips, self._crops = source, clips, crops
        self.channels, self.classes = source.channels, source.classes
        if hasattr(source, "labels"):
            self.labels = np.repeat(source.labels, clips * crops, axis=0)

    def __len__(self) -> int:
        return len(self.source) * self._clips * self._crops

    def __getitem__(self, index: int) -> Sample:
        """The film, with ``view``."""
        film, view = divmod(range(len(self))[index], self._clips * self._crops)
        clip, crop = divmod(view, self._crops)
        return {**self.source[film], "view": ((clip, self._clips), (crop, self._crops))}

    def id(self, index: int) -> str:
        """That of the film."""
        own: str = self.source.id(index // (self._clips * self._crops))  # type: ignore[attr-defined]
        return own

    def fingerprint(self) -> str:
        """That of the source, and how many views."""
        own = getattr(self.source, "fingerprint", None)
        return f"{self._clips} x {self._crops} views of {own() if callable(own) else len(self.source)}"

    def __getattr__(self, name: str) -> Any:
        # Whether there may be several labels; nothing that has a row for each film, nor whole batches.
        if name != "multi_label":
            raise AttributeError(name)
        return getattr(self.source, name)
