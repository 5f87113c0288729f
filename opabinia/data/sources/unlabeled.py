"""Images without labels: of a folder, or of any other source."""

from __future__ import annotations

from typing import Literal

from opabinia.config import register
from opabinia.contracts import Batch, Indices, InputPath, Sample, SourceInfo, SourcePart
from opabinia.contracts.ranges import Channels, Fraction
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.sources.folder import existing_folder, find_files
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.wrapper import Wrapper


@register.source
class Images(ImageFiles):
    """All images below a folder, at any depth, without labels; hidden files and files of other types are skipped.

    They are sorted by path, which is the id. Symbolic links are followed unless they lead to a parent folder.

    Args:
        root: the folder.
        split: ``val``: every n-th image, ``train``: the others; null: all images.
        val_fraction: share of the images in ``val``; with 0 ``train`` has all of them.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the folder is missing or has no images.
    """

    def __init__(
        self,
        *,
        root: InputPath,
        channels: Channels = 3,
        split: Literal["train", "val"] | None = None,
        val_fraction: Fraction = 0.1,
    ) -> None:
        root = existing_folder(root, "root is the folder that holds the images")
        names = find_files(root)
        held_out = names[:: max(2, round(1 / val_fraction))] if val_fraction else []
        if split is not None:
            names = held_out if split == "val" else sorted(set(names) - set(held_out))
        if split == "val" and not val_fraction:
            raise ValueError("val_fraction: 0 leaves no image for val")
        super().__init__(root, names, SourceInfo(channels=channels))
        if not len(self):
            found = f"no image for {split}" if held_out else f"no image at any depth ({', '.join(EXTENSIONS)})"
            raise ValueError(f"{root} has {found}")


@register.source
class Unlabeled(Wrapper):
    """The images of any source without their annotations: no classes, identities or boxes.

    This way sources with different classes, or without any, can be combined by ``concat``.

    Args:
        source: the source of the images.

    Example::

        source:
          name: concat
          sources:
            - {name: images, root: photos}
            - {name: unlabeled, source: {name: coco, root: coco/train2017, file: coco/instances_train2017.json}}
        sampler: {name: mixed, weights: [3, 1]}
    """

    def __init__(self, *, source: SourcePart) -> None:
        super().__init__(source, source.info.without_labels())

    def convert(self, sample: Sample, index: int) -> Sample:
        return _without_label(sample)

    def batch(self, indices: Indices) -> Batch | None:
        batch = self.source.batch(indices)
        return None if batch is None else _without_label(batch)


def _without_label(sample: Sample) -> Sample:
    return {"image": sample["image"], "id": sample["id"]}
