"""One reading of a folder of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

TaskName = Literal[
    "classification",
    "detection",
    "instance_segmentation",
    "keypoints",
    "segmentation",
    "panoptic",
    "reid",
    "video",
    "selfsup",
]
"""Tasks that a dataset can be used for."""

TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)

Section = Mapping[str, Any]
"""The section of a source in a config: plain values, with ``name``."""

Sections = Mapping[str, Section]
"""The source of each split: ``train``, and ``val`` and ``test`` if there are some. Test data is never trained on."""


@dataclass(frozen=True)
class Layout:
    """The meaning of the files of a folder, and the sources that read them.

    Attributes:
        name: the layout in one word, such as ``class_folders`` or ``yolo``.
        task: what its annotations are for.
        description: one line for the user, with what was counted: ``12 class folders in train/ and val/``.
        sections: the source of each split.
        notes: remarks for the user, each one sentence: what was ignored, and why.
        classes: names of the classes of segmentation maps, which the maps do not hold; empty for other layouts.
    """

    name: str
    task: TaskName
    description: str
    sections: Sections
    notes: Sequence[str] = ()
    classes: Sequence[str] = ()

    @property
    def train(self) -> Section:
        """Source of the training data."""
        return self.sections["train"]

    @property
    def val(self) -> Section | None:
        """Source of the validation data; None: there is none."""
        return self.sections.get("val")

    @property
    def test(self) -> Section | None:
        """Source of the test data; None: there is none."""
        return self.sections.get("test")


def change_sources(section: Section, change: Callable[[Section], Section]) -> dict[str, Any]:
    """Return a section with a change of it, and of all sections of sources within it."""
    changed = dict(change(section))
    if "source" in section:
        changed["source"] = change_sources(section["source"], change)
    if "sources" in section:
        changed["sources"] = [change_sources(inner, change) for inner in section["sources"]]
    return changed
