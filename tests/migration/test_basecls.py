"""Conversion of basecls configs, which are Python files, without executing them."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import timm

from opabinia.config import ConfigError
from opabinia.migration.basecls import convert, pycls_decay
from opabinia.migration.tables.basecls import FAMILIES, MODELS
from tests.migration.recipes import resolve, unconverted, write_files


def config_of(family: str, body: str, before: str = "") -> str:
    return f"""
from basecls.configs import {family}
{before}
_cfg = dict({body})

class Cfg({family}):
    def __init__(self, values_or_file=None, **kwargs):
        super().__init__(_cfg)
        self.merge(values_or_file, **kwargs)
"""


def convert_text(folder: Path, text: str, gpus: int = 8, *overrides: str) -> Any:
    return convert(write_files(folder, {"own.py": text}), gpus, overrides)


def test_a_regnet_on_eight_gpus(tmp_path: Path) -> None:
    body = """batch_size=64, model=dict(name="regnety_004"), augments={"rand_aug": {"magnitude": 5}},
    solver=dict(basic_lr=0.1 / 2), model_ema=dict(momentum=0.99992), extra=dict(thing=-3), output_dir="here" """
    recipe = convert_text(tmp_path, config_of("RegNetConfig", body))
    config = resolve(recipe, tmp_path)
    assert (config["data"]["batch_size"], config["optimizer"]["lr"]) == (512, 0.4)
    # Defaults of the base class and of all classes.
    assert (config["optimizer"]["weight_decay"], config["optimizer"]["nesterov"]) == (2e-5, True)
    assert [rule["kind"] for rule in config["param_groups"]["rules"]] == ["norm", "bias"]
    assert config["task"]["backbone"]["model"] == "regnety_004" and config["task"]["loss"]["label_smoothing"] == 0.1
    assert config["task"]["mean"] == [0.485, 0.456, 0.406] and config["task"]["std"] == [0.229, 0.224, 0.225]
    names = [step["name"] for step in config["data"]["train"]["transforms"]]
    assert names == ["RandomResizedCrop", "RandomHorizontalFlip", "timm_policy", "RandomErasing"]
    assert config["data"]["train"]["transforms"][2]["policy"] == "rand-m5-n2-p0.5-mstd0.5-inc1"
    assert config["data"]["val"]["transforms"][0]["crop"] == pytest.approx(224 / 232)
    [mix] = config["data"]["mix"]
    assert [entry["alpha"] for entry in mix["mixes"]] == [0.2, 1.0] and mix["weights"] == [0.5, 0.5]
    assert (config["schedule"]["name"], config["schedule"]["warmup_rule"], config["schedule"]["interval"]) == (
        "cosine",
        "whole",
        "epoch",
    )
    assert (config["ema"]["decay"], str(config["ema"]["start"])) == (0.99992, "5ep")
    assert config["ema"]["warmup"] is False
    assert config["hooks"]["precise_bn"]["batches"] == 16 and config["seed"] == 42
    assert unconverted(recipe) == {"extra.thing": "no equivalent", "output_dir": "--out"}
    assert any("the totals of 8 GPUs (--gpus)" in note for note in recipe.notes)


def test_gradient_accumulation_becomes_a_larger_batch(tmp_path: Path) -> None:
    config = resolve(
        convert_text(tmp_path, config_of("SwinConfig", 'model=dict(name="swin_tiny_patch4_window7_224")'), 4), tmp_path
    )
    assert (config["data"]["batch_size"], config["train"]["micro_batch_size"]) == (512, 64)
    assert config["optimizer"]["lr"] == pytest.approx(5e-4) and config["train"]["step"]["clip_norm"] == 5
    kinds = [(rule["kind"], rule["weight_decay"]) for rule in config["param_groups"]["rules"]]
    assert kinds == [("norm", 0), ("bias", 0), ("embedding", 0)]


def test_intermediate_base_classes(tmp_path: Path) -> None:
    text = """
from basecls.configs import ResNetConfig
_base = dict(batch_size=16, solver=dict(max_epoch=7, lr_schedule="step", lr_decay_steps=(3, 5)))
class Short(ResNetConfig):
    def __init__(self, values=None):
        super().__init__(_base)
_cfg = dict(batch_size=8, model=dict(name="resnet18"), augments=dict(name="SimpleAugment"))
class Cfg(Short):
    def __init__(self, values=None):
        super().__init__(_cfg)
"""
    config = resolve(convert_text(tmp_path, text, 1), tmp_path)
    assert (config["data"]["batch_size"], str(config["train"]["length"])) == (8, "7ep")
    assert [str(milestone) for milestone in config["schedule"]["milestones"]] == ["3ep", "5ep"]
    names = [step["name"] for step in config["data"]["train"]["transforms"]]
    assert names == ["RandomResizedCrop", "RandomHorizontalFlip", "RandomErasing"]


def test_code_is_rejected_and_not_executed(tmp_path: Path) -> None:
    before = f"import os\nopen({str(tmp_path / 'run')!r}, 'w')\n"
    body = (
        'model=dict(name="resnet50"), batch_size=os.cpu_count(), solver=dict(basic_lr=[1 for _ in "ab"], max_epoch=9), '
        "own=os.name"
    )
    text = config_of("ResNetConfig", body, before)
    with pytest.raises(ConfigError) as caught:
        convert_text(tmp_path, text)
    assert "own.py:6: batch_size: is code, which is not executed: os.cpu_count(); add batch_size=VALUE" in str(
        caught.value
    )
    assert [problem.path for problem in caught.value.problems] == ["batch_size", "solver.basic_lr"]
    recipe = convert_text(tmp_path, text, 8, "batch_size=32", "solver.basic_lr=0.1")
    assert recipe.config["data"]["batch_size"] == 256 and recipe.config["train"]["length"] == "9ep"
    assert str(recipe.unconverted()[0]).startswith("own = 'os.name' (")
    assert not (tmp_path / "run").exists()


def test_names_of_literals_are_replaced_by_their_values(tmp_path: Path) -> None:
    before = "LR: float = 0.05\nMEAN = (103.5, 116.3, 123.7)\nSOLVER = dict(max_epoch=7)\nNAME = 'resnet50'"
    body = "model=dict(name=NAME), preprocess=dict(img_mean=MEAN), solver=SOLVER, batch_size=SIZE"
    text = config_of("ResNetConfig", body, f"{before}\nSIZE = 2 * 8").replace(
        "dict(max_epoch=7)", "dict(basic_lr=LR*2)"
    )
    config = resolve(convert_text(tmp_path, text, 1), tmp_path)
    assert (config["optimizer"]["lr"], config["data"]["batch_size"]) == (0.1, 16)
    assert config["task"]["backbone"]["model"] == "resnet50" and config["task"]["mean"][2] == round(103.5 / 255, 8)
    for change in ("LR += 1", "if x:\n    LR = 0.1", "for LR in (1, 2): pass"):
        with pytest.raises(ConfigError, match=r"solver\.basic_lr: is code, which is not executed: LR"):
            convert_text(tmp_path, config_of("ResNetConfig", "solver=dict(basic_lr=LR)", f"LR = 0.05\n{change}"))
    for change in ("_cfg['batch_size'] = 4", "_cfg.update(x)"):
        changed = config_of("ResNetConfig", "batch_size=2").replace("\nclass", f"\n{change}\nclass")
        with pytest.raises(ConfigError, match="the values of Cfg are computed by code"):
            convert_text(tmp_path, changed)


def test_the_argument_of_init_may_be_the_values_themselves(tmp_path: Path) -> None:
    text = """
from basecls.configs import RegNetConfig
class Cfg(RegNetConfig):
    def __init__(self, values_or_file=None):
        super().__init__(dict(batch_size=8, model=dict(name="regnety_004")))
"""
    assert resolve(convert_text(tmp_path, text, 1), tmp_path)["data"]["batch_size"] == 8


@pytest.mark.parametrize("family", ["BaseConfig", "ResNetConfig", "ViTConfig"])
def test_weight_decay_may_be_a_number_or_pairs(family: str, tmp_path: Path) -> None:
    text = config_of(family, 'model=dict(name="resnet50")')
    config = resolve(convert_text(tmp_path, text, 1, "solver.weight_decay=0.02"), tmp_path)
    assert config["optimizer"]["weight_decay"] == 0.02 and not config["param_groups"]
    config = resolve(convert_text(tmp_path, text, 1, 'solver.weight_decay=((0, "bias"), 0.02)'), tmp_path)
    assert [(rule["kind"], rule["weight_decay"]) for rule in config["param_groups"]["rules"]] == [("bias", 0)]


def test_weight_decay_of_a_resmlp_is_that_of_its_own_layers(tmp_path: Path) -> None:
    config = resolve(convert_text(tmp_path, config_of("ResMLPConfig", 'model=dict(name="resmlp_s12")')), tmp_path)
    rules = [rule["kind"] or rule["pattern"] for rule in config["param_groups"]["rules"]]
    assert rules == [r"\.(alpha|beta)$", r"\.ls\d$", "bias"], "there are no norms"
    names = [name for name, _ in timm.create_model("resmlp_12_224").named_parameters()]
    assert [sum(bool(re.search(rule, name)) for name in names) for rule in rules[:2]] == [50, 24]


def test_resnets_have_the_recipe_of_regnets(tmp_path: Path) -> None:
    config = resolve(convert_text(tmp_path, config_of("ResNetConfig", 'model=dict(name="resnet50")')), tmp_path)
    assert (str(config["train"]["length"]), config["task"]["loss"]["label_smoothing"]) == ("300ep", 0.1)
    assert (str(config["checkpoint"]["every"]), config["checkpoint"]["keep"]) == ("10ep", 30)
    names = [step["name"] for step in config["data"]["train"]["transforms"]]
    assert names[2:] == ["timm_policy", "RandomErasing"] and config["data"]["mix"]
    assert (config["optimizer"]["weight_decay"], config["ema"]["decay"]) == (2e-5, 0.99998)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    config = resolve(convert_text(tmp_path, config_of(family, 'model=dict(name="resnet50")')), tmp_path)
    assert config["data"]["batch_size"] > 0 and not math.isinf(config["optimizer"]["lr"])


def test_models_have_names_in_timm() -> None:
    import re

    import timm

    zoo = """resnet18 resnet50d wide_resnet50_2 resnext101_32x8d se_resnet18 se_resnext50_32x4d se_resnext101_64x4d
    regnetx_002 regnety_320 effnet_b0 effnet_b8 effnet_l2 effnet_b4_lite effnetv2_b3 effnetv2_s effnetv2_l hrnet_w18
    hrnet_w64 hrnet_w18_small_v1 hrnet_w18_small_v2 mbnetv1_x100 mbnetv2_x035 mbnetv2_x140 mbnetv3_large_x075
    mbnetv3_small_x100 resmlp_s12 resmlp_b24 repvgg_a0 repvgg_b1g4 repvgg_b3 vgg11_bn vgg19_bn vit_tiny_patch16_224
    vit_base_patch32_384 swin_large_patch4_window12_384"""
    known = set(timm.list_models())
    for name in zoo.split():
        [timm_name] = [re.sub(pattern, to, name) for pattern, to in MODELS if re.fullmatch(pattern, name)]
        assert timm_name in known, name


def test_models_that_timm_does_not_have(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, config_of("SNetConfig", 'model=dict(name="snetv2_x100")'))
    config = resolve(recipe, tmp_path)
    assert config["task"]["backbone"]["model"] == "snetv2_x100" == recipe.config["vars"]["model"]
    assert any("timm has no snetv2_x100" in note for note in recipe.notes)
    assert (config["schedule"]["name"], str(config["schedule"]["warmup"])) == ("linear", "0ep")


def test_resnext152_is_a_resnet152_with_groups(tmp_path: Path) -> None:
    backbone = convert_text(tmp_path, config_of("ResNetConfig", 'model=dict(name="se_resnext152_32x8d")')).config
    expected = {"name": "timm", "model": "seresnet152", "options": {"cardinality": 32, "base_width": 8}}
    assert backbone["task"]["backbone"] == expected


@pytest.mark.parametrize(("every", "keep"), [("1e999", 1), (7, 43), (400, 1)])
def test_all_checkpoints_are_kept(every: Any, keep: int, tmp_path: Path) -> None:
    recipe = convert_text(
        tmp_path, config_of("ResNetConfig", f'model=dict(name="resnet50"), save_every_n_epoch={every}')
    )
    assert recipe.config["checkpoint"]["keep"] == keep


def test_overrides(tmp_path: Path) -> None:
    text = config_of("ResNetConfig", 'model=dict(name="resnet50")')
    recipe = convert_text(
        tmp_path, text, 2, "solver.basic_lr=1", "augments.mixup.cutmix_alpha=0.0", "loss.name=BinaryCrossEntropy"
    )
    config = resolve(recipe, tmp_path)
    assert config["optimizer"]["lr"] == 2 and config["data"]["mix"][0]["name"] == "mixup"
    assert config["task"]["loss"]["name"] == "binary_cross_entropy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no class, so it is not a config of basecls"),
        ("def (:", "own.py:1: is not valid Python"),
        ("class Cfg(Own): pass", "the base class 'Own' is not supported; supported: BaseConfig"),
        (config_of("ResNetConfig", "batch_size='many'"), "batch_size: expected a number, got 'many'"),
        (config_of("ResNetConfig", "solver=dict(lr_schedule='own')"), "'own' is not supported"),
        (config_of("ResNetConfig", "solver=dict(weight_decay=())"), "own.py:4: solver.weight_decay"),
        ("x = " + "[" * 5000 + "]" * 5000, "is not valid Python|cannot be read as Python"),
        (config_of("ResNetConfig", "a=" + "dict(a=" * 45 + "1" + ")" * 45), "nested more than 40 levels deep"),
    ],
)
def test_unsupported_values_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_text(tmp_path, text)


@pytest.mark.parametrize(("alpha", "decay"), [(1e-5, 0.9967231750488281), (1e-4, 0.967232), (1.0, 0.0)])
def test_the_decay_of_the_ema_follows_pycls_rule(alpha: float, decay: float) -> None:
    """Values of pycls: batch size 1024, 100 epochs, an update every 32 steps."""
    assert pycls_decay(alpha, 1024, 100, 32) == pytest.approx(decay, abs=1e-7)
