"""Classes of segmentation maps by the values in some of them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import ndimage

from opabinia.contracts import IGNORE_LABEL
from opabinia.data.layouts.class_names import ClassNames
from opabinia.data.layouts.folder import DoubtfulLayout, UnreadableLayout
from opabinia.data.sources.segmentation_base import Color, blocks_of_rows, color_codes, read_map
from opabinia.runtime.text import plural

LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".gif", ".pgm", ".ppm", ".webp")
"""Suffixes of files whose values are as they were written."""

_OPENED = 1000
"""Maps that are opened, at most; fewer if they have many pixels."""
_PIXELS = 50_000_000
MAX_CLASSES = 40
"""Different values that are classes; more are shades of gray or colors."""


@dataclass
class MapValues:
    """The values in some maps.

    Attributes:
        opened: number of maps.
        gray: number of pixels with each value.
        colors: of maps in color, with each color.
        lossy: maps are JPEG, which changes values.
    """

    opened: int = 0
    gray: Counter[int] = field(default_factory=Counter)
    colors: Counter[Color] = field(default_factory=Counter)
    lossy: bool = False

    @property
    def count(self) -> int:
        """Return the number of different values."""
        return len(self.gray) + len(self.colors)


def read_values(paths: Sequence[str]) -> MapValues:
    """Return the values in some of the maps, chosen by a seed.

    Raises:
        UnreadableLayout: a map cannot be read.
    """
    found, pixels = MapValues(lossy=any(path.lower().endswith((".jpg", ".jpeg")) for path in paths)), 0
    for path in random.Random(0).sample(sorted(paths), min(_OPENED, len(paths))):
        try:
            values = read_map(os.fsencode(path))
        except ValueError as error:
            raise UnreadableLayout(str(error)) from error
        found.opened += 1
        for rows in blocks_of_rows(values):
            codes = rows if values.ndim == 2 else color_codes(rows)
            counts = dict(zip(*(part.tolist() for part in np.unique(codes, return_counts=True)), strict=True))
            if values.ndim == 2:
                found.gray.update(counts)
            else:
                found.colors.update({(code >> 16, code >> 8 & 255, code & 255): n for code, n in counts.items()})
        pixels += values.shape[0] * values.shape[1]
        if pixels > _PIXELS or found.count > 2**16:
            break
    return found


def looks_like_maps(found: MapValues) -> bool:
    """Return whether the values may be classes: they are few."""
    return found.opened > 0 and len(found.gray) <= IGNORE_LABEL and len(found.colors) <= MAX_CLASSES


def number_objects(paths: Sequence[str]) -> bool:
    """Return whether the values in maps may be numbers of objects instead of classes: they count from 1 in each map, to
    another number in some, and nearly every value is one connected area."""
    areas, single, counts = 0, 0, set[int]()
    for path in random.Random(0).sample(sorted(paths), min(_MEASURED, len(paths))):
        try:
            values = read_map(os.fsencode(path))
        except ValueError:  # reported when values are read
            return False
        numbers = np.unique(values[values > 0])[:_MAX_NUMBERS].tolist()
        if values.ndim == 3 or max(numbers, default=0) > (1 + _GAPS) * len(numbers):
            return False
        places = ndimage.find_objects(values) if numbers else []
        crops = (values[places[number - 1]] == number for number in numbers)
        single += sum(ndimage.label(crop, np.ones((3, 3)))[1] == 1 for crop in crops)
        areas += len(numbers)
        counts.add(len(numbers))
    return len(counts - {0}) > 1 and single >= (1 - _TORN) * areas


_MEASURED = 20
"""Maps whose areas are counted, at most."""
_MAX_NUMBERS = 1000
"""Values of a map that are looked at, at most."""
_GAPS = 0.25
"""Numbers that no object has, as a share of the objects, at most."""
_TORN = 0.1
"""Share of the objects that are in several parts, at most."""


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
    if found.colors and found.gray:
        raise UnreadableLayout(f"{where}: some maps are in color, others in gray; save all in gray, with labels from 0")
    if found.lossy or _too_many(found, len(names)):
        options, notes = _nearest(where, found, names, colors, file)
        return {**options, "unlisted": "nearest"}, notes
    return _exact(where, found, names, colors, file)


def _too_many(found: MapValues, names: int) -> bool:
    """Return whether values are too many for classes, of which ``names`` have a name."""
    if found.colors:
        return not names and len(found.colors) > MAX_CLASSES
    values = found.gray.keys() - {IGNORE_LABEL}
    if len(values) <= MAX_CLASSES:
        return False
    around_few = not names and frequent_values({(value,): count for value, count in found.gray.items()}) is not None
    return len(values) > IGNORE_LABEL or max(values) > 2 * (names or len(values)) or around_few


def _nearest(
    where: str, found: MapValues, names: Sequence[str], colors: Sequence[Color], file: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the options for maps with many values, which lie around those of classes.

    Raises:
        UnreadableLayout: it is not clear what these are.
    """
    counts: Mapping[Any, int] = found.colors or {(value,): count for value, count in found.gray.items()}
    main = frequent_values(counts, colors if found.colors else ())
    if main is None:
        kind = f"{len(found.colors)} different colors" if found.colors else f"{len(found.gray)} different gray values"
        reason = "JPEG changes the values in maps" if found.lossy else "label maps have one for each class"
        raise (DoubtfulLayout if found.lossy else UnreadableLayout)(
            f"{where}: {found.opened} maps have {kind}; {reason}: save them without interpolation and as PNG, with "
            "labels from 0"
        )
    if found.colors:
        reduced = MapValues(found.opened, colors=Counter({(r, g, b): 1 for r, g, b in main}))
    else:
        reduced = MapValues(found.opened, gray=Counter(value for (value,) in main))
    options, notes = _exact(where, reduced, names, colors, file)
    kind = "are JPEG" if found.lossy else f"have {found.count} different values"
    shown = ", ".join("/".join(map(str, value)) for value in main[:8])
    return options, [*notes, f"maps {kind}: pixels get the class of the nearest of the values {shown}"]


def frequent_values(counts: Mapping[Any, int], given: Sequence[Color] = ()) -> list[tuple[int, ...]] | None:
    """Return the few values around which all others lie, sorted; None if there are none, or not certain.

    Pixels at the edges of areas, at most a tenth, may have any value. Values that are nearer to each other than
    compression changes them may be different classes: then nothing is certain.

    Args:
        counts: number of pixels with each value (tuples of one or three numbers).
        given: values of classes; then most pixels must be near one of these.
    """
    values = np.array(list(counts), dtype=np.int32)
    pixels = np.array(list(counts.values()), dtype=np.int64)
    left, total, chosen, edges = pixels.copy(), pixels.sum(), list[tuple[int, ...]](), 0
    if given:
        distances = np.stack([np.abs(values - color).max(1) for color in given]).min(0)
        return sorted(given) if left[distances <= _SPREAD].sum() >= (1 - _EDGES) * total else None
    while left.any():
        best = int(left.argmax())
        distances = np.abs(values - values[best]).max(1)
        near = distances <= _SPREAD
        around = pixels[near].sum()
        if left[best] >= around / 4 and around >= _RARE * total:
            others = left[near & (distances > _NOISE)]
            if others.size and others.max() > left[best] / 10:
                return None
            chosen.append(tuple(values[best].tolist()))
        else:
            edges += int(left[near].sum())
        left[near] = 0
        if len(chosen) > MAX_CLASSES or edges > _EDGES * total:
            return None
    return sorted(chosen) if len(chosen) > 1 else None


_SPREAD = 24
"""Difference to its true value that a pixel may have."""
_NOISE = 4
"""Difference that JPEG makes in areas of one value."""
_EDGES = 0.1
"""Share of pixels with other values, at most."""
_RARE = 0.001
"""Share of pixels of a class, at least."""


def _exact(
    where: str, found: MapValues, names: Sequence[str], colors: Sequence[Color], file: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the options for maps whose values are those of classes.

    Raises:
        UnreadableLayout: they do not fit the names.
    """
    if found.colors:
        return _colors(where, found, list(names), list(colors), file)
    shades = _shades(found)
    if shades and (len(names) in (0, len(shades)) or (len(names) == 1 and shades == [0, IGNORE_LABEL])):
        return _by_shade(found, shades, names, file)
    values = sorted(found.gray.keys() - {IGNORE_LABEL})
    if values in ([0], [1], [0, 1]) and not names:
        return {"classes": _two([]), "values": dict(zip(_two([]), ([0], [1]), strict=True))}, [_UNNAMED_TWO]
    largest = values[-1] if values else 0
    if names:
        return {"classes": list(names)} | _fit(where, list(names), values, file), [f"names of classes are from {file}"]
    unnamed = _unnamed(found)
    if largest < max(MAX_CLASSES, 2 * len(values)) and largest < IGNORE_LABEL:
        return {"classes": [f"class_{number}" for number in range(largest + 1)]}, [unnamed]
    named = {f"class_{number}": [value] for number, value in enumerate(values)}
    return {"classes": list(named), "values": named}, [unnamed]


_UNNAMED_TWO = "no file has the names of the classes: they are background and object"


def _unnamed(found: MapValues) -> str:
    """Return the remark on classes without names."""
    counted = f"Classes are those in {plural(found.opened, 'map')}"
    return f"no file has the names of the classes; classes.txt would, with a name per line. {counted}"


_STRAY = 1e-4
"""Share of the pixels that a shade of gray has which is a class, at least."""


def _shades(found: MapValues) -> list[int]:
    """Return the values of classes that are shades of gray, such as 0, 128 and 255, without those of few pixels; none
    if values are labels, which are small or near to each other. 255 is a class if it is a shade."""
    pixels = found.gray.total()
    values = sorted(value for value, count in found.gray.items() if count >= _STRAY * pixels)
    far = all(after - before > _SPREAD for before, after in pairwise(values))
    labels = [value for value in values if value != IGNORE_LABEL]
    if labels in ([], [0]) and IGNORE_LABEL in values:
        return [0, IGNORE_LABEL]
    return values if len(values) > 1 and far and labels[-1] >= MAX_CLASSES else []


def _by_shade(
    found: MapValues, shades: Sequence[int], names: Sequence[str], file: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the options for maps whose classes are these shades of gray; other values get the nearest one."""
    note = f"names of classes are from {file}" if names else _unnamed(found)
    classes = list(names) or [f"class_{number}" for number in range(len(shades))]
    if len(names) < 2 and shades == [0, IGNORE_LABEL]:
        classes, note = _two(names), note if names else _UNNAMED_TWO
    options: dict[str, Any] = {
        "classes": classes,
        "values": {name: [shade] for name, shade in zip(classes, shades, strict=True)},
    }
    strays = sorted(found.gray.keys() - {*shades})
    if not strays:
        return options, [note]
    shown = ", ".join(map(str, shades))
    rare = f"a few pixels have other values, such as {strays[0]}: they get the class of the nearest of {shown}"
    return {**options, "unlisted": "nearest"}, [note, rare]


def _two(names: Sequence[str]) -> list[str]:
    """Return the names of the values 0 and 255, of which a file may have the second only."""
    return list(names) if len(names) == 2 else ["background", names[0] if len(names) == 1 else "object"]


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
    """Return the options for maps in color.

    Raises:
        UnreadableLayout: none has a color of the file.
    """
    if colors and not found.colors.keys() & {*colors}:
        raise UnreadableLayout(
            f"{where}: no color of {file}, such as {colors[0]}, occurs in the maps, which have {max(found.colors)}; "
            "expected red, green, blue"
        )
    if colors:
        unknown = sorted(found.colors.keys() - set(colors))
        note = [f"{len(unknown)} colors that are not in {file}, such as {unknown[0]}, are ignored"] if unknown else []
        options = {"classes": names, "colors": [list(color) for color in colors]}
        return options | ({"unlisted": "ignore"} if unknown else {}), [f"names and colors are from {file}", *note]
    listed = sorted(found.colors)
    classes = names if len(names) == len(listed) == 2 else [f"class_{number}" for number in range(len(listed))]
    if not names and listed == [(0, 0, 0), (255, 255, 255)]:
        classes = _two([])
    reason = f"{file} has no colors" if file else "no file has the names and colors of the classes"
    counted = f"{plural(len(listed), 'color')} in {plural(found.opened, 'map')}"
    return {"classes": classes, "colors": [list(color) for color in listed]}, [
        f"{reason}; label_colors.txt would, with lines such as: road 128 64 128. Classes are from {counted}"
    ]
