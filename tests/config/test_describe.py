"""Objects built from a config are described by the same config."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torchvision.transforms import v2

from opabinia.config import ConfigError, config_of, register
from opabinia.config.build import build
from opabinia.config.compose import packaged_names
from opabinia.data.sources import Concat, Digits
from opabinia.training.run_folder import build_parts, resolve
from opabinia.training.session import TrainingRun

FAST = ("classification/digits", "reid/digits")
RECIPES = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in packaged_names() if "digits" in name
]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "CenterCrop": {"size": 8},
    "ColorJitter": {"brightness": 0.2, "hue": 0.1},
    "GaussianBlur": {"kernel_size": 3},
    "JPEG": {"quality": (50, 90)},
    "Pad": {"padding": 2},
    "RandomAdjustSharpness": {"sharpness_factor": 2},
    "RandomAffine": {"degrees": 10, "translate": (0.1, 0.1), "interpolation": v2.InterpolationMode.BILINEAR},
    "RandomApply": {"transforms": [v2.RandomHorizontalFlip()]},
    "RandomChoice": {"transforms": [v2.Resize(3)]},
    "RandomCrop": {"size": 8},
    "RandomOrder": {"transforms": [v2.Resize(3)]},
    "RandomPosterize": {"bits": 4},
    "RandomResize": {"min_size": 8, "max_size": 32},
    "RandomResizedCrop": {"size": 32},
    "RandomRotation": {"degrees": 5},
    "RandomShortestSize": {"min_size": 8},
    "RandomSolarize": {"threshold": 0.5},
    "Resize": {"size": 32},
    "ScaleJitter": {"target_size": (32, 32)},
    "SetClampingMode": {"clamping_mode": "soft"},
}


def built(recipe: str) -> tuple[dict[str, Any], TrainingRun]:
    resolved = resolve(recipe, ["data.num_workers=0"])
    return resolved.config, TrainingRun(**build(resolved.config, origins=resolved.origins).keywords)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_described_as_it_is_written(recipe: str) -> None:
    config, run = built(recipe)
    description = config_of(run)
    assert description.warnings == ()
    assert resolve(description.config).config == config


def test_transforms_of_torchvision_are_read_back() -> None:
    _, run = built("classification/digits")
    names = [name for name in register.entries["transform"] if hasattr(v2, name)]
    assert len(names) > 40
    transforms = [getattr(v2, name)(**ARGUMENTS.get(name, {})) for name in names]
    data = replace(run.data, train=replace(run.data.train, transforms=transforms))
    description = config_of(replace(run, data=data))
    assert description.warnings == ()
    written = resolve(description.config).config["data"]["train"]["transforms"]
    assert [transform["name"] for transform in written] == names
    affine = written[names.index("RandomAffine")]
    assert (affine["degrees"], affine["translate"], affine["interpolation"]) == ([-10, 10], [0.1, 0.1], "bilinear")


def test_an_unregistered_object_is_registered_for_this_process() -> None:
    class Turned(Digits):
        """Not registered: its arguments may differ from those of its base class."""

    _, run = built("classification/digits")
    source = Concat(sources=[Digits(), Turned()])
    data = replace(run.data, train=replace(run.data.train, source=source))
    description = config_of(replace(run, data=data))
    digits, turned = description.config["data"]["train"]["source"]["sources"]
    assert digits == {"name": "digits"}
    assert turned["name"].endswith("Turned")
    assert f"data.train.source.sources.1 ({turned['name']})" in description.warnings[0]
    rebuilt = build_parts(resolve(description.config)).keywords["data"].train.source
    assert rebuilt is not source and type(rebuilt) is Concat
    assert config_of(replace(run, data=data)).config == description.config, "the same object has the same name"
    del register.entries["source"][turned["name"]]


def test_a_value_that_is_not_yaml_is_an_error() -> None:
    _, run = built("classification/digits")
    with pytest.raises(ConfigError, match=r"built in Python: train.num_threads: .* cannot be written in a config"):
        config_of(replace(run, train=replace(run.train, num_threads=np.int64(2))))


def test_overrides_apply_to_a_config_as_plain_data() -> None:
    config, _ = built("classification/digits")
    assert resolve(config, ["optimizer.lr=0.5"]).config["optimizer"]["lr"] == 0.5
    with pytest.raises(ConfigError, match="built in Python: seed: expected an integer"):
        resolve({**config, "seed": "none"})
