"""Person re-identification: CUHK03."""

from __future__ import annotations

import json
import os
import re
from typing import Literal, get_args

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.list_files import check_files_exist, match_names
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, Split, Subset, dataset_root, read_split


@register.source
def cuhk03(
    *,
    root: InputPath,
    split: Split = "train",
    boxes: Literal["labeled", "detected"] = "labeled",
    channels: Channels = 3,
) -> IdentityFiles:
    """CUHK03 (Li et al. 2014) by the new protocol (Zhong et al. 2017), as torchreid unpacks its archive.

    The folder ``images_labeled`` holds images named by pair of cameras, person, side and number,
    ``1_001_1_01.png``; ``splits_new_labeled.json`` is a list with one object, whose ``train``, ``query`` and
    ``gallery`` list them as ``[path, identity, camera]``. Only the name of the file counts: ``1_001`` is the identity,
    and the side its camera, of two. Labeled boxes: 7,368 images of 767 identities to train, 1,400 queries of 700, 5,328
    in the gallery; detected boxes: 7,365, 1,400 and 5,332.

    Args:
        root: the folder that holds both, or the folder ``cuhk03`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        boxes: labeled by people, or detected (``images_detected``, ``splits_new_detected.json``).
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the list is missing or malformed, names cannot be parsed, an image is missing, there is one identity
            only to train on, or no query has a match.
    """
    root = dataset_root(root, "cuhk03")
    file = root / f"splits_new_{boxes}.json"
    if not file.is_file():
        raise ValueError(
            f"there is no file {file}; torchreid and FastReID write it, and the images, from cuhk-03.mat, which the "
            "source cuhk03_archive reads"
        )
    try:
        (content,) = json.loads(file.read_text(encoding="utf-8"))
        subsets = {name: [os.path.basename(entry[0]) for entry in content[name]] for name in get_args(Subset)}
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        expected = 'expected [{"train": [[path, identity, camera], ...], "query": ..., "gallery": ...}]'
        raise ValueError(f"{file} cannot be read ({type(error).__name__}: {error}); {expected}") from error

    def read(subset: Subset) -> list[ReidImage]:
        names = subsets[subset]
        expected = "named <pair>_<person>_<side, 1 or 2>_<number>, as 1_001_1_01.png"
        matches = match_names(f"{file}, {subset}", re.compile(r"(\d+_\d+)_([12])_\d+\.\w+"), names, expected)
        paths = [f"images_{boxes}/{name}" for name in names]
        check_files_exist(file, root, [(f"{subset} {index}", path) for index, path in enumerate(paths)])
        entries = zip(paths, matches, strict=True)
        return [ReidImage(os.fsencode(path), match[1], int(match[2]) - 1) for path, match in entries]

    return IdentityFiles(root, read_split(root, split, read), cameras=2, channels=channels)
