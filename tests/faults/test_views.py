"""A replayed step has the same views, from a checkpoint in the middle of an epoch."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.many import steps
from tests.faults.programs import Server

RECIPE = """
task: {name: simclr, backbone: {name: timm, model: test_resnet}, projection: 16, mean: [0.2], std: [0.25]}
data:
  train:
    source: {name: unlabeled, source: {name: synthetic, samples: 28, channels: 1, size: 32}}
    transforms:
      - name: views
        views:
          - {count: 2, transforms: [{name: RandomResizedCrop, size: 32}, blur]}
          - {count: 1, transforms: [{name: RandomResizedCrop, size: 24}]}
  batch_size: 8
optimizer: {name: sgd, lr: 0.01}
train: {length: 7it, device: cpu, num_threads: 1, log_samples: true}
checkpoint: {every: 2it, keep: 9}
seed: 3
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_replayed_step_has_the_same_views(server: Server, tmp_path: Path, workers: int) -> None:
    (tmp_path / "views.yaml").write_text(RECIPE)
    server.run("train", str(tmp_path / "views.yaml"), "--out", str(tmp_path), f"data.num_workers={workers}")
    folder = tmp_path / "views" / "default"
    views = {}
    for step in (1, 4, 7):  # from the beginning, and from checkpoints in the middle of the first and second epoch
        server.run("replay", str(folder), "--step", str(step))
        replay_dir = folder / "replay" / f"step-{step:08d}"
        replayed, recorded = json.loads((replay_dir / "step.json").read_text()), steps(folder)[step - 1]
        for name in ("train/loss", "train/std", "grad_norm"):
            assert replayed[name] == recorded[name], name
        ids = json.loads((replay_dir / "batch.json").read_text())
        assert ids == {"id": recorded["sample_ids"]}
        views[step] = load_file(replay_dir / "batch.safetensors")
        count = len(recorded["sample_ids"])
        shapes = {name: tuple(view.shape) for name, view in views[step].items()}
        assert shapes == {f"views.{number}": (count, 1, side, side) for number, side in enumerate((32, 32, 24))}
    assert not torch.equal(views[1]["views.0"], views[7]["views.0"])
