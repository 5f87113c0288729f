"""Data sets of pedestrians whose parts are listed in files: MSMT17, CUHK03."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from opabinia.config import register
from opabinia.data.sources.list_files import fields_of, refuse_bad, refuse_missing
from opabinia.data.sources.reid_base import Identities, Part, Picture, Split, data_root, listed

# --- MSMT17 -----------------------------------------------------------------------------------------------------------


@register.source
def msmt17(*, root: Path, split: Split = "train", with_val: bool = False, channels: Literal[1, 3] = 3) -> Identities:
    """MSMT17 (Wei et al. 2018), in its first version or in the second, in which faces are masked.

    Lines such as ``0000/0000_000_01_0303morning_0008_0.jpg 0`` in ``list_train.txt``, ``list_val.txt``,
    ``list_query.txt`` and ``list_gallery.txt`` name a picture below ``train`` or ``test`` (second version:
    ``mask_train_v2``, ``mask_test_v2``) and its identity; the third number in the name is the camera, of 15. 30,248
    pictures of 1,041 identities to train and 2,373 others of them for validation, 11,659 queries of 3,060, 82,161 in
    the gallery.

    Args:
        root: the folder that holds the lists, or the folder ``MSMT17_V1`` or ``MSMT17_V2`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        with_val: train on the pictures for validation too. Results are published with and without; ``all`` has them.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: a folder or list is missing, lines or names cannot be read, a picture does not exist, there is one
            identity only to train on, or no query has a match.
    """
    root = data_root(root, "MSMT17_V1", "MSMT17_V2")
    masked = (root / "mask_train_v2").is_dir()
    folders = ("mask_train_v2", "mask_test_v2") if masked else ("train", "test")

    def read(part: Part) -> list[Picture]:
        if part != "train":
            return _of_msmt17(root, folders[1], part)
        lists = ("train", "val") if with_val or split == "all" else ("train",)
        return [one for name in lists for one in _of_msmt17(root, folders[0], name)]

    return Identities(root, listed(root, split, read), cameras=15, channels=channels, numbered_anew=True)


def _of_msmt17(root: Path, folder: str, name: str) -> list[Picture]:
    file = root / f"list_{name}.txt"
    rows = fields_of(file, "path identity")
    found = [_MSMT17.fullmatch(os.path.basename(path)) for _, (path, _) in rows]
    bad = [f"{path} ({where})" for (where, (path, _)), match in zip(rows, found, strict=True) if match is None]
    refuse_bad(file, bad, len(rows), "pictures named <identity>_<number>_<camera, 01 to 15>_...")
    paths = [f"{folder}/{path}" for _, (path, _) in rows]
    refuse_missing(file, [where for where, _ in rows], root, paths)
    return [
        Picture(os.fsencode(path), identity, int(match[1]) - 1)
        for path, (_, (_, identity)), match in zip(paths, rows, found, strict=True)
        if match is not None
    ]


_MSMT17 = re.compile(r"\d+_\d+_(0[1-9]|1[0-5])_.*")

# --- CUHK03 -----------------------------------------------------------------------------------------------------------


@register.source
def cuhk03(
    *,
    root: Path,
    split: Split = "train",
    boxes: Literal["labeled", "detected"] = "labeled",
    channels: Literal[1, 3] = 3,
) -> Identities:
    """CUHK03 (Li et al. 2014) by the new protocol (Zhong et al. 2017), in the form that torchreid makes of its archive.

    The folder ``images_labeled`` holds pictures named by pair of cameras, person, side and number,
    ``1_001_1_01.png``; ``splits_new_labeled.json`` is a list with one object, whose ``train``, ``query`` and
    ``gallery`` list them as ``[path, identity, camera]``. Only the name of the file counts: ``1_001`` is the identity,
    and the side its camera, of two. Boxes drawn by people: 7,368 pictures of 767 identities to train, 1,400 queries of
    700, 5,328 in the gallery; detected ones: 7,365, 1,400 and 5,332.

    Args:
        root: the folder that holds both, or the folder ``cuhk03`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        boxes: those that people drew, or detected ones (``images_detected``, ``splits_new_detected.json``).
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: the list is missing or has another form, names cannot be read, a picture does not exist, there is
            one identity only to train on, or no query has a match.
    """
    root = data_root(root, "cuhk03")
    file = root / f"splits_new_{boxes}.json"
    parts = _new_protocol(file)

    def read(part: Part) -> list[Picture]:
        return _of_cuhk03(file, part, parts[part], root, f"images_{boxes}")

    return Identities(root, listed(root, split, read), cameras=2, channels=channels)


def _new_protocol(file: Path) -> dict[str, list[str]]:
    """The names of the pictures of each part."""
    if not file.is_file():
        raise ValueError(
            f"there is no file {file}; torchreid and FastReID write it, and the pictures, from cuhk-03.mat and "
            "cuhk03_new_protocol_config_*.mat, which are not read here"
        )
    try:
        (parts,) = json.loads(file.read_text(encoding="utf-8"))
        return {part: [os.path.basename(entry[0]) for entry in parts[part]] for part in ("train", "query", "gallery")}
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        expected = 'it is to be [{"train": [[path, identity, camera], ...], "query": ..., "gallery": ...}]'
        raise ValueError(f"{file} cannot be read ({type(error).__name__}: {error}); {expected}") from error


def _of_cuhk03(file: Path, part: str, names: Sequence[str], root: Path, folder: str) -> list[Picture]:
    found = [_CUHK03.fullmatch(name) for name in names]
    bad = [name for name, match in zip(names, found, strict=True) if match is None]
    refuse_bad(f"{file}, {part}", bad, len(names), "named <pair>_<person>_<side, 1 or 2>_<number>, as 1_001_1_01.png")
    paths = [f"{folder}/{name}" for name in names]
    refuse_missing(file, [f"{part} {number}" for number in range(len(paths))], root, paths)
    return [
        Picture(os.fsencode(path), match[1], int(match[2]) - 1)
        for path, match in zip(paths, found, strict=True)
        if match is not None
    ]


_CUHK03 = re.compile(r"(\d+_\d+)_([12])_\d+\.\w+")
