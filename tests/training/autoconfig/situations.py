"""Situations to plan for."""

from __future__ import annotations

from typing import Any

from opabinia.data.layouts.layout import TaskName
from opabinia.data.profile import DatasetProfile
from opabinia.training.autoconfig.choices import Datasets
from opabinia.training.autoconfig.rules import REFERENCE
from opabinia.training.autoconfig.situation import GIB, Machine, Situation, Speed

CPU = Machine(device="cpu", memory=4 * GIB, cores=2, name="2 CPU cores")
GPU = Machine(device="cuda", gpus=1, memory=24 * GIB, cores=16, name="1 x GPU", here=False)

PROFILE: dict[str, Any] = {
    "samples": 3000,
    "val_samples": 300,
    "examined": 2000,
    "classes": ("cat", "dog"),
    "per_class": (1000, 2000),
    "short_sides": (300.0, 400.0, 400.0, 400.0, 500.0),
    "long_sides": (400.0, 500.0, 534.0, 534.0, 600.0),
}

OBJECTS: dict[str, Any] = {
    "objects_per_image": (1.0, 2.0, 5.0, 9.0, 20.0),
    "object_sides": (10.0, 40.0, 90.0, 120.0, 300.0),
    "relative_object_sides": (0.02, 0.09, 0.2, 0.3, 0.7),
}

DATA = Datasets(
    train={"name": "image_folder", "root": "data/train"},
    val={"name": "image_folder", "root": "data/val"},
    reason="2 class folders in train/ and val/",
    classes=("background", "road"),
)


def situation(
    task: TaskName = "classification",
    *,
    machine: Machine = CPU,
    budget: float = 600.0,
    weights: tuple[str, ...] = (REFERENCE,),
    speeds: tuple[Speed, ...] = (),
    **facts: Any,
) -> Situation:
    """Return a situation with the given facts about the data."""
    objects = OBJECTS if task in ("detection", "instance_segmentation", "keypoints") else {}
    profile = DatasetProfile(task=task, **{**PROFILE, **objects, **facts})
    return Situation(profile=profile, machine=machine, budget=budget, weights=weights, speeds=speeds)
