"""Making readings of several splits, and readings of the same annotations for other tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opabinia.data.layouts.folder import Folder, UnreadableLayout
from opabinia.data.layouts.layout import Layout, Section, TaskName

Sections = Mapping[str, Section]
"""The source of each split."""


def make_layout(
    name: str,
    task: TaskName,
    description: str,
    sections: Sections,
    *,
    notes: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> Layout:
    """Return a layout with these splits, of which ``train`` is one."""
    return Layout(
        name=name,
        task=task,
        description=description,
        train=sections["train"],
        val=sections.get("val"),
        test=sections.get("test"),
        classes=tuple(classes),
        notes=tuple(notes),
    )


def convert(layout: Layout, task: TaskName, change: Callable[[Section], dict[str, Any]]) -> Layout:
    """Return a layout for another task, with changed sections."""
    train, val, test = (
        None if section is None else change(section) for section in (layout.train, layout.val, layout.test)
    )
    assert train is not None
    return replace(layout, task=task, train=train, val=val, test=test)


def with_masks(layout: Layout) -> list[Layout]:
    """Return the readings of boxes with instance masks, and of the segmentation maps that these make."""
    masks = convert(layout, "instance_segmentation", lambda section: {**section, "masks": True})
    return [masks, convert(masks, "segmentation", lambda section: {"name": "object_maps", "source": section})]


def with_alternatives(layout: Layout, others: Sequence[Layout]) -> list[Layout]:
    """Return a layout with a remark that names the tasks of the others, and these."""
    options = ", ".join(f"--task {other.task}" for other in others)
    note = [f"the annotations can be used for other tasks, too: {options}"] if options else []
    return [replace(layout, notes=(*layout.notes, *note)), *others]


def check_training(folder: Folder, sections: Sections, expected: str) -> None:
    """Raise UnreadableLayout if there are splits, but none to train on; ``expected`` says what should be there."""
    if sections and "train" not in sections:
        raise UnreadableLayout(f"{folder.text} has data for {' and '.join(sections)}, and none to train on; {expected}")
