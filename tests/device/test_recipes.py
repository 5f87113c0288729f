"""Two training steps, a resume and a deterministic step of every packaged recipe on the pretended CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from opabinia.config.compose import packaged_names
from opabinia.training.run_folder import resolve
from scripts.update_golden import TINY
from tests.device.program import DeviceProgram
from tests.device.runs import Events
from tests.device.waits import problems_of_recipe
from tests.golden.test_losses import NEEDS

OVERRIDES = ("train.precision=bf16", "data.val=null", "checkpoint.best=null")

NOT_RUN: dict[str, str] = {}
"""Recipes that cannot be run without a network or a GPU, and why."""

RESIZED = (
    *("selfsup/imagenet/dino_vit_s", "selfsup/imagenet/dinov2_vit_l", "selfsup/imagenet/ibot_vit_s"),
    "detection/coco/rf_detr_small",
)
"""Recipes that resize position embeddings, which ``train.deterministic`` refuses, as docs/checkpoints.md says."""


@pytest.mark.slow
@pytest.mark.parametrize("recipe", packaged_names())
def test_a_recipe_follows_the_rules_of_devices(recipe: str, device: DeviceProgram) -> None:
    """The host waits in a step only where the run of one of the recipe's parts does (``waits.py``)."""
    if recipe in NOT_RUN:
        pytest.skip(NOT_RUN[recipe])
    if recipe in NEEDS and not find_spec(NEEDS[recipe]):
        pytest.skip(f"{NEEDS[recipe]} is not installed")
    config = resolve(recipe).config
    epochs = str(config["train"]["length"]).removesuffix("ep")  # of the baseline; the run is shorter
    of_shapes = [f"shapes.epochs={epochs}"] if "epochs" in (config["shapes"] or {}) else []
    overrides = [*TINY.get(recipe, ()), *OVERRIDES, *of_shapes]
    events: Events = device.call("tests.device.runs", "observe", recipe, overrides)
    found = [
        problem
        for problem in problems_of_recipe(set(parts_in(config)), events)
        if not (recipe in RESIZED and problem.startswith("aten::_upsample_bicubic2d_aa_backward has no deterministic"))
    ]
    assert not found, "\n".join([recipe, *found])


def parts_in(value: Any, key: str = "") -> Iterator[str]:
    """Yield the parts of a config as ``key/name``, such as ``detector/fcos``."""
    if isinstance(value, dict):
        if isinstance(value.get("name"), str):
            yield f"{key}/{value['name']}"
        for name, item in value.items():
            yield from parts_in(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from parts_in(item, KEYS.get(key, key))


KEYS = {"losses": "segmentation_loss", "metric_losses": "metric_loss"}


def test_recipes_that_are_not_run_exist() -> None:
    assert NOT_RUN.keys() <= set(packaged_names())
