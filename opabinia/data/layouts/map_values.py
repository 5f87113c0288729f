"""Classes of segmentation maps by the values in some of them."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opabinia.contracts import IGNORE_LABEL
from opabinia.data.layouts.class_names import ClassNames
from opabinia.data.layouts.folder import UnreadableLayout
from opabinia.data.sources.segmentation_base import Color, read_map

LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".gif", ".pgm", ".ppm", ".webp")
"""Suffixes of files whose values are as they were written."""

_OPENED = 100
"""Maps that are opened, at most; fewer if they have many pixels."""
_PIXELS = 50_000_000
_MAX_VALUES = 40
"""Different values that are classes; more are shades of gray or colors."""


@dataclass
class MapValues:
    """The values in some maps.

    Attributes:
        opened: number of maps.
        gray: values of pixels.
        colors: of maps in color.
    """

    opened: int = 0
    gray: set[int] = field(default_factory=set)
    colors: set[Color] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Return the number of different values."""
        return len(self.gray) + len(self.colors)


def read_values(paths: Sequence[str]) -> MapValues:
    """Return the values in some of the maps, chosen by a seed.

    Raises:
        UnreadableLayout: a map cannot be read.
    """
    found, pixels = MapValues(), 0
    for path in random.Random(0).sample(sorted(paths), min(_OPENED, len(paths))):
        try:
            values = read_map(os.fsencode(path))
        except ValueError as error:
            raise UnreadableLayout(str(error)) from error
        found.opened += 1
        if values.ndim == 2:
            found.gray.update(np.unique(values).tolist())
        else:
            codes = np.unique(values.astype(np.int64) @ [1 << 16, 1 << 8, 1])
            found.colors.update((code >> 16, code >> 8 & 255, code & 255) for code in codes.tolist())
        pixels += values.shape[0] * values.shape[1]
        if pixels > _PIXELS or len(found.gray) + len(found.colors) > 2**16:
            break
    return found


def looks_like_maps(found: MapValues) -> bool:
    """Return whether the values may be classes: they are few."""
    return found.opened > 0 and len(found.gray) <= IGNORE_LABEL and len(found.colors) <= _MAX_VALUES


def class_options(
    where: str, found: MapValues, given: tuple[ClassNames, str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a source for maps with these values, among them ``classes``, and remarks.

    Args:
        where: the folder of the maps, for errors.
        found: values in some of the maps.
        given: names of the classes and the file that they are from.

    Raises:
        UnreadableLayout: the values are no classes, or do not fit the names.
    """
    (names, colors), file = given or (([], []), "")
    if found.colors:
        if found.gray:
            raise UnreadableLayout(
                f"{where}: some maps are in color, others in gray; save all in gray, with labels from 0"
            )
        return _colors(where, found, list(names), list(colors), file)
    values = sorted(found.gray - {IGNORE_LABEL})
    if len(values) > IGNORE_LABEL or (len(values) > _MAX_VALUES and values[-1] > 2 * len(names or values)):
        raise UnreadableLayout(
            f"{where}: {found.opened} maps have {len(values)} different gray values, up to {values[-1]}; label maps "
            "have one for each class: save them without interpolation and as PNG, with labels from 0"
        )
    counted = f"classes are those in {found.opened} maps"
    is_mask = found.gray <= {0, IGNORE_LABEL} and IGNORE_LABEL in found.gray and len(names) <= 2
    if is_mask or (values in ([0], [1], [0, 1]) and not names):
        binary = _two(list(names))
        marked = [IGNORE_LABEL] if is_mask else [1]
        note = [] if names else ["no file has the names of the classes: they are background and object"]
        return {"classes": binary, "values": dict(zip(binary, ([0], marked), strict=True))}, note
    largest = values[-1] if values else 0
    if names:
        return {"classes": list(names)} | _fit(where, list(names), values, file), [f"names of classes are from {file}"]
    unnamed = f"no file has the names of the classes; classes.txt would, with a name per line. {counted}"
    if largest < max(_MAX_VALUES, 2 * len(values)) and largest < IGNORE_LABEL:
        return {"classes": [f"class_{number}" for number in range(largest + 1)]}, [unnamed]
    named = {f"class_{number}": [value] for number, value in enumerate(values)}
    return {"classes": list(named), "values": named}, [unnamed]


def _two(names: list[str]) -> list[str]:
    """Return the names of the values 0 and 255, of which a file may have the second only."""
    return names if len(names) == 2 else ["background", names[0] if len(names) == 1 else "object"]


def _fit(where: str, names: list[str], values: Sequence[int], file: str) -> dict[str, Any]:
    """Return the options that make names fit: labels may count from 1, with 0 for background or for pixels to ignore.

    Raises:
        UnreadableLayout: there are more values than names.
    """
    largest = values[-1] if values else 0
    if largest < len(names):
        return {}
    if largest == len(names) and 0 not in values:
        return {"reduce_zero_label": True}
    if largest == len(names):
        return {"classes": ["background", *names]}
    raise UnreadableLayout(f"{where} has the value {largest}, and {file} has names for 0 to {len(names) - 1} only")


def _colors(
    where: str, found: MapValues, names: list[str], colors: list[Color], file: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the options for maps in color."""
    if colors:
        unknown = sorted(found.colors - set(colors))
        note = [f"{len(unknown)} colors that are not in {file}, such as {unknown[0]}, are ignored"] if unknown else []
        options = {"classes": names, "colors": [list(color) for color in colors]}
        return options | ({"unlisted": "ignore"} if unknown else {}), [f"names and colors are from {file}", *note]
    if len(found.colors) > _MAX_VALUES:
        raise UnreadableLayout(
            f"{where}: {found.opened} maps have {len(found.colors)} different colors; label maps have one for each "
            "class: save them without interpolation and as PNG"
        )
    listed = sorted(found.colors)
    classes = names if len(names) == len(listed) == 2 else [f"class_{number}" for number in range(len(listed))]
    reason = f"{file} has no colors" if file else "no file has the names and colors of the classes"
    return {"classes": classes, "colors": [list(color) for color in listed]}, [
        f"{reason}; label_colors.txt would, with lines such as: road 128 64 128. Classes are the {len(listed)} colors "
        f"in {found.opened} maps"
    ]
