"""One reading of a folder of data."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The meaning of the files of a folder, and the sources that read them.

    Attributes:
        name: the layout in one word, such as ``class_folders`` or ``yolo``.
        task: what its annotations are for.
        description: one line for the user, with what was counted: ``12 class folders in train/ and val/``.
        train: source of the training data.
        val: source of the validation data; None: there is none.
        test: source of test data, which is never trained on; None: there is none.
        classes: names of the classes of segmentation maps, which the maps do not hold; empty for other layouts.
        notes: remarks for the user, each one sentence: what was ignored, and why.
    """

    name: str
    task: TaskName
    description: str
    train: Section
    val: Section | None = None
    test: Section | None = None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
