"""Pairs of images and maps in two folders, or in one, by their names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.file_search import find_files
from opabinia.data.sources.annotation_values import check_below_root
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import read_lines


class MapNaming(NamedTuple):
    """Beginning and end of the names of images and of maps; None: any extension of an image."""

    image_prefix: str
    image_suffix: str | None
    label_prefix: str
    label_suffix: str

    def stem(self, name: bytes) -> bytes:
        """Return the path of an image without its end."""
        suffix = self.image_suffix
        return os.path.splitext(name)[0] if suffix is None else name.removesuffix(os.fsencode(suffix))

    def map_of(self, name: bytes) -> bytes:
        """Return the path of the map of an image in the same folder."""
        folder, base = os.path.split(self.stem(name))
        base = os.fsencode(self.label_prefix) + base.removeprefix(os.fsencode(self.image_prefix))
        return os.path.join(folder, base + os.fsencode(self.label_suffix))

    def is_map(self, name: bytes) -> bool:
        """Return whether a file has the name of a map."""
        base = os.path.basename(name)
        return base.startswith(os.fsencode(self.label_prefix)) and base.endswith(os.fsencode(self.label_suffix))


def pair_with_maps(
    root: Path, images: str, labels: str, naming: MapNaming, list_file: str | None = None
) -> tuple[list[bytes], list[bytes]]:
    """Return the paths below the root of images, and of their maps, which may not exist.

    Args:
        root: the folder that holds both.
        images: the folder with images, and its subfolders.
        labels: the folder with maps in the same subfolders; it may be that of the images.
        naming: of both.
        list_file: a file below the root with the names of the images; None: all.

    Raises:
        ValueError: there are no images, or the list cannot be read.
    """
    image_files = _list_images(root, images, naming, list_file, holds_maps=images == labels)
    map_files = [os.fsencode(labels) + name[len(os.fsencode(images)) :] for name in image_files]
    return image_files, [naming.map_of(name) for name in map_files]


def _list_images(root: Path, folder: str, naming: MapNaming, list_file: str | None, *, holds_maps: bool) -> list[bytes]:
    """Return the paths of images below the root: all in the folder, or those in the list. ``holds_maps``: the maps are
    in the same folder."""
    existing_folder(root / folder, "images is the folder with the images")
    suffix = naming.image_suffix
    files = find_files(root, folder, EXTENSIONS if suffix is None else [suffix.lower()])
    if naming.image_prefix:
        files = [name for name in files if os.path.basename(name).startswith(os.fsencode(naming.image_prefix))]
    if holds_maps:
        files = [name for name in files if not naming.is_map(name)]
    if list_file is None:
        if not files:
            raise ValueError(f"{root / folder} has no image ({', '.join(EXTENSIONS) if suffix is None else suffix})")
        return files
    by_stem = {naming.stem(name): name for name in files} | {name: name for name in files}
    stems = [os.path.join(os.fsencode(folder), os.fsencode(text)) for _, text in read_lines(root / list_file)]
    check_below_root(root / list_file, root, stems)
    return [by_stem.get(stem, stem + os.fsencode(suffix or ".jpg")) for stem in stems]
