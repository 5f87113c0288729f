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
from tests.migration.recipes import resolve, write_files


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


def test_weight_decay_of_a_resmlp_is_that_of_its_own_layers(tmp_path: Path) -> None:
    config = resolve(convert_text(tmp_path, config_of("ResMLPConfig", 'model=dict(name="resmlp_s12")')), tmp_path)
    rules = [rule["kind"] or rule["pattern"] for rule in config["param_groups"]["rules"]]
    assert rules == [r"\.(alpha|beta)$", r"\.ls\d$", "bias"], "there are no norms"
    names = [name for name, _ in timm.create_model("resmlp_12_224").named_parameters()]
    assert [sum(bool(re.search(rule, name)) for name in names) for rule in rules[:2]] == [50, 24]


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


@pytest.mark.parametrize(("alpha", "decay"), [(1e-5, 0.9967231750488281), (1e-4, 0.967232), (1.0, 0.0)])
def test_the_decay_of_the_ema_follows_pycls_rule(alpha: float, decay: float) -> None:
    """Values of pycls: batch size 1024, 100 epochs, an update every 32 steps."""
    assert pycls_decay(alpha, 1024, 100, 32) == pytest.approx(decay, abs=1e-7)
