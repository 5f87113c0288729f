"""CUHK03 as its authors distribute it: images and test sets in one MATLAB file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Interval
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import InputPath, Sample
from opabinia.data.sources.annotation_values import errors_in
from opabinia.data.sources.named import NamedSamples
from opabinia.data.sources.pedestrian_attributes import read_mat
from opabinia.data.sources.reid_base import ReidImage, Split, Subset, dataset_root, identity_info, read_split

Boxes = Literal["labeled", "detected"]


@register.source(name="cuhk03_archive")
class Cuhk03Archive(NamedSamples):
    """CUHK03 (Li et al. 2014) from ``cuhk-03.mat``, without unpacking it (needs the extra ``opabinia[matlab]``).

    With a ``test_set`` by the first protocol: the images of its 100 persons by the first camera are queries, those by
    the second the gallery, and all other persons are for training; the evaluator ``repeated_gallery`` draws single
    images of the gallery. Without one by the new protocol (Zhong et al. 2017), which is in
    ``cuhk03_new_protocol_config_labeled.mat`` or ``..._detected.mat`` in the same folder.

    Images are named as torchreid names their files, ``1_001_1_01.png``: pair of cameras, person, camera, number.

    Args:
        root: the folder that holds ``cuhk-03.mat``, or the folder ``cuhk03_release`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        boxes: labeled by people, or detected.
        test_set: one of the 20 test sets, from 0; null: the new protocol.

    Raises:
        ValueError: h5py is not installed, a file is missing or malformed, or see ``cuhk03``.
    """

    def __init__(
        self,
        *,
        root: InputPath,
        split: Split = "train",
        boxes: Boxes = "labeled",
        test_set: Annotated[int, Interval(ge=0, le=19)] | None = None,
    ) -> None:
        self.file, self.boxes = dataset_root(root, "cuhk03_release") / "cuhk-03.mat", boxes
        with _open(self.file) as archive:
            where = f"{self.file} has no {boxes} images and test sets of CUHK03: "
            with errors_in(where, KeyError, ValueError, TypeError, IndexError, AttributeError):
                subsets = _first_protocol(archive, boxes, test_set) if test_set is not None else None
        if subsets is None:
            subsets = _new_protocol(self.file.with_name(f"cuhk03_new_protocol_config_{boxes}.mat"))

        def read(subset: Subset) -> list[ReidImage]:
            named = [(name, re.fullmatch(r"(\d+_\d+)_([12])_\d+\.png", name)) for name in subsets[subset]]
            if invalid := [name for name, match in named if match is None]:
                raise ValueError(f"{self.file}: {invalid[0]!r} is not <pair>_<person>_<camera>_<number>.png")
            return [ReidImage(name.encode(), match[1], int(match[2]) - 1) for name, match in named if match]

        listing = read_split(self.file, split, read)
        super().__init__([image.name for image in listing.images], identity_info(listing, cameras=2))

    def __getitem__(self, index: int) -> Sample:
        pair, person, _, number = map(int, re.findall(r"\d+", self.id(index)))
        with _open(self.file) as archive:
            pixels = archive[_persons(archive, self.boxes, pair - 1)[number - 1, person - 1]][()]
        # MATLAB's arrays are stored with their axes reversed: channels, width, height.
        return self.sample(tv_tensors.Image(torch.from_numpy(pixels).transpose(1, 2).contiguous()), index)


def _open(file: Path) -> Any:
    """Open the archive; it is opened for each image, since processes cannot share it."""
    try:
        import h5py
    except ImportError as error:
        raise ValueError(f"{file}: reading it needs h5py: pip install 'opabinia[matlab]'") from error
    with errors_in(f"{file} cannot be read: ", OSError):
        return h5py.File(file)


def _persons(archive: Any, boxes: Boxes, pair: int) -> Any:
    """Return the references to the images of a pair of cameras: 10 x persons, five of each camera."""
    return archive[archive[boxes][0, pair]]


def _first_protocol(archive: Any, boxes: Boxes, test_set: int) -> dict[Subset, list[str]]:
    """Return the names of the images of each subset by one of the test sets."""
    tested = {(int(pair), int(person)) for pair, person in archive[archive["testsets"][0, test_set]][()].T}
    subsets: dict[Subset, list[str]] = {"train": [], "query": [], "gallery": []}
    for pair, person, number in _images(archive, boxes):
        camera = 1 if number <= 5 else 2
        subset: Subset = "train" if (pair, person) not in tested else "query" if camera == 1 else "gallery"
        subsets[subset].append(f"{pair}_{person:03d}_{camera}_{number:02d}.png")
    return subsets


def _images(archive: Any, boxes: Boxes) -> Iterator[tuple[int, int, int]]:
    """Yield pair of cameras, person and number of each image, from 1; persons have fewer than ten."""
    for pair in range(archive[boxes].shape[1]):
        references = _persons(archive, boxes, pair)[()]
        for person in range(references.shape[1]):
            for number in range(references.shape[0]):
                if archive[references[number, person]].ndim == 3:
                    yield pair + 1, person + 1, number + 1


def _new_protocol(file: Path) -> dict[Subset, list[str]]:
    """Return the names of the images of each subset by the new protocol."""
    content = read_mat(file)
    with errors_in(f"{file} has no lists of the new protocol: ", KeyError, ValueError, TypeError, IndexError):
        names = [str(name) for name in np.atleast_1d(content["filelist"])]
        subsets: tuple[Subset, ...] = ("train", "query", "gallery")
        indices = {subset: np.atleast_1d(content[f"{subset}_idx"]) for subset in subsets}
        return {subset: [names[int(index) - 1] for index in column] for subset, column in indices.items()}
