"""Readings of the same annotations for other tasks, and checks of their splits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from opabinia.data.layouts.folder import Folder, UnreadableLayout
from opabinia.data.layouts.layout import Layout, Section, TaskName, change_sources


def convert(layout: Layout, task: TaskName, change: Callable[[Section], dict[str, Any]]) -> Layout:
    """Return a layout for another task, with changed sections."""
    return replace(layout, task=task, sections={split: change(section) for split, section in layout.sections.items()})


def with_masks(layout: Layout) -> list[Layout]:
    """Return the readings of boxes with instance masks, and of the segmentation maps that these make."""
    masks = convert(layout, "instance_segmentation", lambda section: change_sources(section, _masks))
    return [masks, convert(masks, "segmentation", lambda section: {"name": "object_maps", "source": section})]


def _masks(section: Section) -> Section:
    """Return a source of boxes with masks; one of several sources as it is."""
    return section if "sources" in section else {**section, "masks": True}


def with_alternatives(layout: Layout, others: Sequence[Layout]) -> list[Layout]:
    """Return a layout with a remark that names the tasks of the others, and these."""
    options = ", ".join(f"--task {other.task}" for other in others)
    note = [f"the annotations can be used for other tasks, too: {options}"] if options else []
    return [replace(layout, notes=(*layout.notes, *note)), *others]


def together(sections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the only source, or one of all samples of several."""
    return sections[0] if len(sections) == 1 else {"name": "concat", "sources": sections}


def check_training(folder: Folder, splits: Collection[str], expected: str) -> None:
    """Raise UnreadableLayout if there are splits, but none to train on; ``expected`` says what should be there."""
    if splits and "train" not in splits:
        raise UnreadableLayout(f"{folder.text} has data for {' and '.join(splits)}, and none to train on; {expected}")
