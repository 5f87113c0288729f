"""Image retrieval: the revisited Oxford and Paris datasets."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import InputPath, Sample, SourceInfo
from opabinia.data.decoding.images import EncodedImage, decode_sample
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.list_files import check_files_exist, existing_file
from opabinia.data.sources.named import NamedFiles
from opabinia.models.weights.safe_pickle import read_pickle

RELEVANCE = ("easy", "hard", "junk")
"""Values 1, 2 and 3 of a label."""


@register.source(name="revisited")
class Revisited(NamedFiles):
    """Revisited Oxford or Paris (Radenović et al. 2018), for the evaluator ``revisited``: first the queries, cropped to
    their box, then the gallery.

    ``gnd_roxford5k.pkl`` or ``gnd_rparis6k.pkl`` lists the images in the folder ``jpg``, and for each of 70 queries a
    box and the images that are easy and hard matches or junk; nothing in it is executed. A sample's ``label`` (uint8)
    has a value for each query: 1 easy, 2 hard, 3 junk, 0 no match. There is no training data.

    Args:
        file: the annotations.
        root: the folder with ``jpg``; the annotations' own folder when not given.

    Raises:
        ValueError: the annotations are missing or malformed, or an image is missing.
    """

    def __init__(self, *, file: InputPath, root: InputPath | None = None) -> None:
        file = existing_file(file)
        root = (root or file.parent).expanduser()
        content = read_pickle(file, depth=4)
        try:
            self._boxes = [[round(float(side)) for side in query["bbx"]] for query in content["gnd"]]
            names = [[f"jpg/{name}.jpg" for name in content[key]] for key in ("qimlist", "imlist")]
            self._labels = np.zeros((len(names[1]), len(self._boxes)), np.uint8)
            for column, query in enumerate(content["gnd"]):
                for value, kind in enumerate(RELEVANCE, 1):
                    self._labels[np.asarray(query[kind], np.int64), column] = value
            if len(names[0]) != len(self._boxes) or any(len(box) != 4 for box in self._boxes):
                raise ValueError(f"{len(names[0])} queries, {len(self._boxes)} boxes of left, top, right, bottom")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            expected = "expected imlist, qimlist and gnd with bbx, easy, hard and junk"
            raise ValueError(f"{file} has other annotations ({type(error).__name__}: {error}); {expected}") from error
        listed = [name for part in names for name in part]
        check_files_exist(file, root, [(f"image {index}", name) for index, name in enumerate(listed)])
        info = SourceInfo(queries=np.arange(len(listed)) < len(self._boxes))
        super().__init__(root, [os.fsencode(name) for name in listed], info)

    def __getitem__(self, index: int) -> Sample:
        image = EncodedImage.file(self.path(index), 3)
        sample: dict[str, Any] = decode_sample({"image": image, "id": self.id(index)})
        count = len(self._boxes)
        if index < count:
            left, top, right, bottom = self._boxes[index]
            sample["image"] = tv_tensors.Image(sample["image"][:, max(top, 0) : bottom, max(left, 0) : right])
        label = np.zeros(count, np.uint8) if index < count else self._labels[index - count]
        return {**sample, "label": torch.from_numpy(label.copy()), "query": index < count}

    def fingerprint(self) -> str:
        """Return a text that changes with the images, their order and the annotations."""
        names = b"\0".join(self.names[index] for index in range(len(self)))
        digest = short_digest(names, self._labels.tobytes(), str(self._boxes).encode())
        return f"{len(self)} images, {len(self._boxes)} queries, {digest}"
