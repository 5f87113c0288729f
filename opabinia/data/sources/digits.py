"""The embedded data: scikit-learn's 1,797 real handwritten digits."""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Indices, Sample
from opabinia.data.sampling.permutation import Permutation
from opabinia.runtime.files import cache_folder, write_atomic
from opabinia.runtime.seeds import hash32

VALIDATION_SAMPLES = 360
_SPLIT_KEY = hash32(1797)  # a seed of its own, so that no run's seed moves a digit to the other side
_FILE = "digits-1.npz"

Arrays = dict[str, NDArray[np.uint8]]

log = logging.getLogger("opabinia")


@register.source
class Digits:
    """scikit-learn's 1,797 handwritten digits, 8 x 8, grey; for trying things and for tests.

    The split is fixed and stratified: 1,437 for training and 360 for validation. From E. Alpaydin and C. Kaynak,
    Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (its test set).

    Args:
        split: which part.
    """

    channels = 1
    classes = tuple("0123456789")

    def __init__(self, *, split: Literal["train", "val"] = "train") -> None:
        images, labels = load_digits()
        self.numbers = split_digits(labels)[split]
        self.labels = labels[self.numbers].astype(np.int64)
        self._images = torch.from_numpy(images[self.numbers]).unsqueeze(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        image = tv_tensors.Image(self._images[index].clone())  # a transform may work in place
        return {"image": image, "label": int(self.labels[index]), "id": f"digits/{self.numbers[index]:04d}"}


def split_digits(labels: NDArray[np.uint8]) -> dict[str, Indices]:
    """Numbers of the digits in ``train`` and ``val``, ascending; each class gives its share to either."""
    shuffled = Permutation(len(labels), _SPLIT_KEY)(np.arange(len(labels)))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)  # 0 to 1 within its class
    by_place = np.argsort(place, kind="stable")
    return {"train": np.sort(by_place[VALIDATION_SAMPLES:]), "val": np.sort(by_place[:VALIDATION_SAMPLES])}


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """All images (uint8, 1797 x 8 x 8, 0 to 255) and labels (uint8, 1797), kept in the cache folder.

    Importing scikit-learn takes a second and more; reading the cached file a millisecond.
    """
    arrays = cached(_FILE, _from_sklearn)
    return arrays["images"], arrays["labels"]


def cached(file: str, make: Callable[[], Arrays]) -> Arrays:
    """Arrays from a file (.npz) in the cache folder, or, where it is missing or broken, made and put there."""
    path = cache_folder() / file
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("%s is broken and made anew: %s", path, error)
    made = make()
    content = io.BytesIO()
    np.savez(content, **made)  # type: ignore[arg-type]  # numpy's stub takes any name for its flag
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.getvalue())
    except OSError as error:
        log.warning("%s is not cached: %s", file, error)
    return made


def _from_sklearn() -> Arrays:
    from sklearn import datasets

    digits = datasets.load_digits()
    return {"images": np.rint(digits.images * (255 / 16)).astype(np.uint8), "labels": digits.target.astype(np.uint8)}
