"""The profile of a dataset, ``profile.json`` of a run folder, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.visualization.report.blocks import Block, Table
from opabinia.visualization.report.untrusted_json import list_of, number_of, texts_of

FILE = "profile.json"

_COUNTS = {
    "samples": "training samples",
    "val_samples": "validation samples",
    "examined": "training samples that were read",
    "identities": "identities",
    "cameras": "cameras",
    "duplicates": "near-duplicates in the training data",
    "leaks": "validation samples that repeat training samples",
}
_QUANTILES = {
    "short_sides": "shorter side in pixels",
    "long_sides": "longer side in pixels",
    "aspects": "width by height",
    "objects_per_image": "objects of an image",
    "object_sides": "side of an object in pixels",
    "relative_object_sides": "side of an object by that of its image",
    "seconds": "duration in seconds",
    "fps": "frames per second",
    "images_per_identity": "images of an identity",
}


def profile_blocks(profile: Mapping[str, Any]) -> list[Block]:
    """Return tables of the facts, of the distribution of sizes, and of the classes; of damaged profiles what is
    readable."""
    rows = [(title, f"{value:,.0f}") for key, title in _COUNTS.items() if (value := number_of(profile.get(key)))]
    unreadable = texts_of(profile.get("unreadable"))
    rows += [("samples that cannot be read", ", ".join(unreadable))] if unreadable else []
    distributions = []
    for key, title in _QUANTILES.items():
        values = [number_of(value) for value in list_of(profile.get(key))]
        if len(values) == 5:
            distributions.append((title, *values))
    columns = ("what", "minimum", "10 %", "median", "90 %", "maximum")
    blocks: list[Block] = [Table("Profile of the dataset", ("what", "value"), rows)] if rows else []
    blocks += [Table("Sizes in the dataset", columns, distributions)] if distributions else []
    return [*blocks, *_classes(profile)]


def _classes(profile: Mapping[str, Any]) -> list[Block]:
    names, counts = (
        texts_of(profile.get("classes")),
        [number_of(value) or 0 for value in list_of(profile.get("per_class"))],
    )
    if not names or len(names) != len(counts):
        return []
    noun = "objects" if profile.get("object_sides") and not profile.get("pixel_shares") else "samples"
    total = sum(counts) or 1
    cells = [(name, count, count / total) for name, count in zip(names, counts, strict=True)]
    return [Table("Classes of the training data", ("class", noun, f"share of {total:,.0f}"), cells, frozenset({2}))]
