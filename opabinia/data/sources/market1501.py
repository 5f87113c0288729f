"""Data sets of pedestrians as they are published: Market-1501, DukeMTMC-reID."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from opabinia.config import register
from opabinia.contracts import Count
from opabinia.data.sources.reid_base import Identities, Part, Picture, Split, data_root, listed, named_pictures

_FOLDERS: dict[Part, str] = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}
_DISTRACTOR = "0000"


@register.source
def market1501(
    *,
    root: Path,
    split: Split = "train",
    cameras: Count = 6,
    more_distractors: bool = False,
    channels: Literal[1, 3] = 3,
) -> Identities:
    """Market-1501 (Zheng et al. 2015), and whatever else is laid out and named like it.

    The folders ``bounding_box_train``, ``query`` and ``bounding_box_test`` hold pictures whose names begin with
    identity and camera, such as ``0002_c1s1_000451_03.jpg``. Pictures of identity -1 (junk) are left out; those of
    identity 0 (distractors) stay in the gallery and are never trained on. 12,936 pictures of 751 identities to train,
    3,368 queries of 750, 15,913 in the gallery.

    Args:
        root: the folder that holds these three, or the folder ``Market-1501-v15.09.15`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        cameras: how many there are. In data of your own in this naming, the largest number after ``c``.
        more_distractors: put the folder ``images`` (the 500,000 distractors) into the gallery too.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: a folder is missing or empty, names cannot be read, there is one identity only to train on, or no
            query has a match.
    """
    return _like_market(data_root(root, "Market-1501-v15.09.15"), split, cameras, more_distractors, channels)


@register.source
def dukemtmc(*, root: Path, split: Split = "train", cameras: Count = 8, channels: Literal[1, 3] = 3) -> Identities:
    """DukeMTMC-reID (Zheng et al. 2017), laid out as Market-1501 and named ``0005_c2_f0046985.jpg``.

    16,522 pictures of 702 identities to train, 2,228 queries of 702, 17,661 in the gallery. Its authors have withdrawn
    the data set; what is here reads others in this naming, too.

    Args:
        root: the folder that holds ``bounding_box_train``, ``query`` and ``bounding_box_test``, or the folder
            ``DukeMTMC-reID`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        cameras: how many there are.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: see ``market1501``.
    """
    return _like_market(data_root(root, "DukeMTMC-reID"), split, cameras, False, channels)


def _like_market(root: Path, split: Split, cameras: int, more_distractors: bool, channels: Literal[1, 3]) -> Identities:
    def read(part: Part) -> list[Picture]:
        found = named_pictures(root, _FOLDERS[part], cameras)
        more = part == "gallery" and more_distractors
        return found + named_pictures(root, "images", cameras) if more else found

    return Identities(root, listed(root, split, read, {_DISTRACTOR}), cameras=cameras, channels=channels)
