"""Images without labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import Folder
from opabinia.data.layouts.layout import Layout

_COUNTED = 20_000


def read_images(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of all images below a folder, without labels."""
    names = [] if folder.only else folder.tree(EXTENSIONS, _COUNTED)
    if not names:
        return
    splits = {split: name for split, name in folder.splits.items() if folder.sub(name).holds()}
    if "train" not in splits:
        splits = {}

    def section(split: str) -> dict[str, Any] | None:
        return {"name": "images", "root": folder.at(splits[split])} if split in splits else None

    count = f"{len(names)} images" if len(names) < _COUNTED else f"more than {_COUNTED} images"
    yield Layout(
        name="images",
        task="selfsup",
        description=f"{count} without labels",
        train=section("train") or {"name": "images", "root": folder.text},
        val=section("val"),
        test=section("test"),
        notes=folder.others(splits.values()) if splits else (),
    )
