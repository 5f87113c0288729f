"""Person re-identification: Market-1501, DukeMTMC-reID."""

from __future__ import annotations

from opabinia.config import register
from opabinia.contracts import Channels, Count, InputPath
from opabinia.data.sources.reid_base import MARKET_FOLDERS, IdentityFiles, Split, dataset_root, read_folders


@register.source
def market1501(
    *,
    root: InputPath,
    split: Split = "train",
    cameras: Count = 6,
    more_distractors: bool = False,
    channels: Channels = 3,
) -> IdentityFiles:
    """Market-1501 (Zheng et al. 2015), and other datasets with its layout and file names.

    The folders ``bounding_box_train``, ``query`` and ``bounding_box_test`` hold images whose names begin with identity
    and camera, such as ``0002_c1s1_000451_03.jpg``. Images of identity -1 (junk) are dropped; those of identity 0
    (distractors) are in the gallery and never trained on. 12,936 images of 751 identities to train, 3,368 queries of
    750, 15,913 in the gallery.

    Args:
        root: the folder that holds these three, or the folder ``Market-1501-v15.09.15`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        cameras: number of cameras. For your own data in this naming, the largest number after ``c``.
        more_distractors: add the folder ``images`` (the 500,000 distractors) to the gallery.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, names do not follow the pattern, there is one identity only to train
            on, or no query has a match.
    """
    folders = {subset: [name] for subset, name in MARKET_FOLDERS.items()}
    folders["gallery"] += ["images"] * more_distractors
    return read_folders(dataset_root(root, "Market-1501-v15.09.15"), folders, split, cameras, channels, {"0000"})


@register.source
def dukemtmc(*, root: InputPath, split: Split = "train", cameras: Count = 8, channels: Channels = 3) -> IdentityFiles:
    """DukeMTMC-reID (Zheng et al. 2017), in the layout of Market-1501, with names like ``0005_c2_f0046985.jpg``.

    16,522 images of 702 identities to train, 2,228 queries of 702, 17,661 in the gallery. Its authors have withdrawn
    the dataset; this source reads other data with this naming, too.

    Args:
        root: the folder that holds ``bounding_box_train``, ``query`` and ``bounding_box_test``, or the folder
            ``DukeMTMC-reID`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        cameras: number of cameras.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: see ``market1501``.
    """
    folders = {subset: [name] for subset, name in MARKET_FOLDERS.items()}
    return read_folders(dataset_root(root, "DukeMTMC-reID"), folders, split, cameras, channels, {"0000"})
