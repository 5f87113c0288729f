"""Conversion of OpenMMLab's configs, which are Python files that inherit from each other, without executing them."""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration import openmmlab
from opabinia.migration.openmmlab_training import modernize
from tests.migration.recipes import write_files

# --- reader -----------------------------------------------------------------------------------------------------------


def read(folder: Path, text: str, **bases: str) -> Any:
    files = {f"{name}.py": body for name, body in bases.items()} | {"own.py": text}
    return openmmlab.read(write_files(folder, files)).plain()


def test_dictionaries_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    own = """_base_ = ['./first.py', './second.py']
model = dict(head=dict(_delete_=True, width=2), stages=[3])
pipeline = [dict(type='A', size={{_base_.size}}), *()] if False else 0
"""
    with pytest.raises(ConfigError, match=r"own.py:3: is code, which is not executed: \[dict"):
        read(tmp_path, own, first="size = (4, 2)\nmodel = dict(head=dict(depth=1), stages=[1, 2])", second="lr = 0.1")
    own = """_base_ = ['./first.py', './second.py']
model = dict(head=dict(_delete_=True, width=2), stages=[3])
pipeline = [dict(type='A', size={{_base_.size}}), dict(type='B', **_base_.model.head)]
_base_.extra.value = 5
_base_.schedule[1].milestones = [8, _base_.schedule[1].milestones[0]]
"""
    first = "size = (4, 2)\nmodel = dict(head=dict(depth=1), stages=[1, 2], name='net')\nextra = dict(value=1)"
    first += "\nschedule = [dict(by_epoch=True), dict(milestones=[3], gamma=0.1)]"
    assert read(tmp_path, own, first=first, second="lr = 0.1") == {
        "size": [4, 2],
        "lr": 0.1,
        "extra": {"value": 5},
        "schedule": [{"by_epoch": True}, {"milestones": [8, 3], "gamma": 0.1}],
        "model": {"head": {"width": 2}, "stages": [3], "name": "net"},
        "pipeline": [{"type": "A", "size": [4, 2]}, {"type": "B", "depth": 1}],
    }


def test_arithmetic_of_constants(tmp_path: Path) -> None:
    text = """mean = [1.4, 2.6]
bgr = mean[::-1]
rounded = [round(value) for value in bgr]
lr = 0.02 / 16 * 8
file = f"{'data/'}a" + '.json'
preprocessor = dict(std=dict(a=1))
std = preprocessor['std']['a']
many = [1.0] * 3
limit: int = -(7 // 2)
del mean
"""
    expected = {"bgr": [2.6, 1.4], "rounded": [3, 1], "lr": 0.01, "file": "data/a.json", "many": [1.0] * 3, "limit": -3}
    assert read(tmp_path, text) == {**expected, "preprocessor": {"std": {"a": 1}}, "std": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\nx = os.system('true')", ":1: is code, which is not executed: import os"),
        ("x = open('f').read()", ":1: is code, which is not executed: open"),
        ("x = unknown", ":1: is code, which is not executed: unknown"),
        ("x = [1]\nx.append(2)", ":2: is code, which is not executed: x.append"),
        ("for i in (1, 2):\n    x = i", ":1: is code, which is not executed: for i in"),
        ("x = dict(a=1)\nx['a'] = 2", ":2: is code"),
        ("x = 9 ** 9 ** 9", ":1: is code"),
        ("x = 'a' * 10 ** 9", ":1: is code"),
        ("x = [0] * 200000000", ":1: is code"),
        (
            "x = [1, 2]\n" + "".join(f"x{i + 1 or ''} = [x{i or ''}] * 2\n" for i in range(40)).replace("x0", "x"),
            "more than",
        ),
        ("_base_.steps[7].size = 3", ":1: is code"),
        ("_base_ = 'own.py'", "includes itself"),
        ("_base_ = 'mmdet::x.py'", "expected the path of a file"),
        ("_base_ = './missing.py'", "there is no such file"),
        ("with read_base():\n    from .x import *", ":1: is code, which is not executed: with read_base"),
        ("x = (", "is not valid Python"),
        (f"x = {'(' * 60}1{',)' * 60}", "nested more than"),
    ],
)
def test_code_is_rejected_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read(tmp_path, text)


def test_the_second_generation_becomes_the_third(tmp_path: Path) -> None:
    text = """data = dict(samples_per_gpu=2, workers_per_gpu=3, train=dict(type='A'), val=dict(type='B'))
optimizer = dict(type='SGD', lr=0.1, paramwise_cfg=dict(custom_keys={'.cls_token': dict(lr_mult=2)}))
optimizer_config = dict(grad_clip=dict(max_norm=35))
lr_config = dict(policy='CosineAnnealing', min_lr=0.01, warmup='linear', warmup_iters=500, warmup_ratio=0.1)
runner = dict(type='EpochBasedRunner', max_epochs=12)
fp16 = dict(loss_scale=512.)
variable = 1
"""
    tree = modernize(openmmlab.read(write_files(tmp_path, {"own.py": text}))).plain()
    assert tree["train_dataloader"] == {"batch_size": 2, "num_workers": 3, "dataset": {"type": "A"}}
    assert tree["optim_wrapper"]["paramwise_cfg"]["custom_keys"] == [[".cls_token", {"lr_mult": 2}]]
    assert tree["optim_wrapper"]["clip_grad"] == {"max_norm": 35}
    assert tree["optim_wrapper"]["type"] == "AmpOptimWrapper" and tree["train_cfg"] == {"max_epochs": 12}
    warmup, cosine = tree["param_scheduler"]
    assert (warmup["type"], warmup["end"], warmup["start_factor"]) == ("LinearLR", 500, 0.1)
    assert (cosine["type"], cosine["eta_min"]) == ("CosineAnnealingLR", 0.01)
    assert "variable" not in tree and "data" not in tree
