import json
import logging
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import nn, zeros

from opabinia.models.layers import IMAGENET_MEAN, IMAGENET_STD, Normalize
from opabinia.training.initial_normalization import trained_normalization, warn_of_other_normalization


def make_run(root: Path, task: str, channels: int) -> Path:
    checkpoint = root / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (root / "config.yaml").write_text(f"task: {task}\n")
    (root / "checkpoints" / "last").write_text("step-00000001\n")
    (checkpoint / "state.json").write_text(json.dumps({"facts": {"channels": channels}}))
    save_file({"x": zeros(1)}, checkpoint / "model.safetensors")
    return root


def test_mean_and_std_of_weights_of_runs_and_the_hub(tmp_path: Path) -> None:
    inception = "{name: timm, model: inception_v3.tv_in1k, pretrained: true}"
    runs = {
        "{mean: [0.4], std: null}": ((0.4,), (0.5,)),
        "{mean: null}": ((0.5,), (0.5,)),
        f"{{backbone: {inception}, std: [0.1]}}": ((0.5,), (0.1,)),
        "{backbone: {name: torchvision_video, pretrained: true}}": None,
    }
    for number, (task, expected) in enumerate(runs.items()):
        run = make_run(tmp_path / str(number), task, 1)
        for weights in (run, run / "checkpoints" / "step-00000001" / "model.safetensors"):
            normalization = trained_normalization(weights)
            assert expected == (normalization and tuple(map(tuple, normalization))), task
    files = {
        "preprocessor_config.json": ({"image_mean": [0.1], "image_std": [0.2]}, ([0.1], [0.2])),
        "config.json": ({"pretrained_cfg": {"mean": [0.3], "std": [0.4]}}, ([0.3], [0.4])),
    }
    for name, (content, expected_values) in files.items():
        folder = tmp_path / name
        folder.mkdir()
        save_file({"x": zeros(1)}, folder / "model.safetensors")
        assert trained_normalization(folder) is None
        (folder / name).write_text(json.dumps(content))
        assert trained_normalization(folder) == expected_values
    unnormalized = {"image_mean": [0.1], "image_std": [0.2], "do_normalize": False}
    (tmp_path / "preprocessor_config.json" / "preprocessor_config.json").write_text(json.dumps(unnormalized))
    assert trained_normalization(tmp_path / "preprocessor_config.json") == ((0.0,), (1.0,))


def test_another_mean_gives_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path / "run", "{mean: [0.4], std: [0.25]}", 3)
    with caplog.at_level(logging.WARNING):
        warn_of_other_normalization(nn.Sequential(Normalize([0.4, 0.4, 0.4], [0.25], 3)), run)
        (tmp_path / "w.safetensors").touch()
        warn_of_other_normalization(nn.Sequential(Normalize([0.1], [0.25], 3)), tmp_path / "w.safetensors")
        assert not caplog.messages
        warn_of_other_normalization(nn.Sequential(Normalize(IMAGENET_MEAN, IMAGENET_STD, 3)), run)
    assert caplog.messages == [
        f"init: {run} was trained with the mean [0.4] and the std [0.25] of images, "
        "task.mean is [0.485, 0.456, 0.406] and task.std [0.229, 0.224, 0.225]"
    ]
