"""Generated datasets for recipes on the pretended device, beside those of :mod:`scripts.small_data`."""

from __future__ import annotations

import json
from pathlib import Path

from scripts import small_data
from scripts.update_golden import save_pictures


def pictures_with_attributes(root: Path) -> None:
    """Images of two classes, and ``train.csv`` and ``val.csv`` with their attributes."""
    save_pictures(root)
    for split in ("train", "val"):
        files = sorted((root / split).glob("*/*.png"))
        lines = [
            f"{split}/{file.parent.name}/{file.name},{'|'.join((file.parent.name, *'ab'[: number % 3]))}"
            for number, file in enumerate(files)
        ]
        (root / f"{split}.csv").write_text("path,label\n" + "\n".join(lines) + "\n", encoding="utf-8")


def scenes_and_identities(root: Path) -> None:
    """Annotated scenes in COCO's folders and images of identities in those of Market-1501."""
    small_data.coco2017(root)
    small_data.market1501(root / "market1501")


def shorten_validation(root: Path) -> None:
    """Leave two images with objects for validation in COCO's folders, so that an evaluation has one batch."""
    for file in root.glob("annotations/*_val2017.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        with_objects = {annotation["image_id"] for annotation in content["annotations"]}
        content["images"] = [image for image in content["images"] if image["id"] in with_objects][:2]
        kept = {image["id"] for image in content["images"]}
        content["annotations"] = [annotation for annotation in content["annotations"] if annotation["image_id"] in kept]
        file.write_text(json.dumps(content), encoding="utf-8")
