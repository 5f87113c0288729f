"""Replayed steps, and weights merged into one file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from opabinia.data.sources import Digits
from opabinia.engine.checkpointing.checkpoint import read_checkpoint
from tests.faults.programs import Server
from tests.faults.runs import MANY_STEPS, Trained, checkpoint, contents, expect, start, steps


@pytest.mark.parametrize("step", [*(pytest.param(step, marks=pytest.mark.slow) for step in (1, 10, MANY_STEPS)), 13])
def test_a_replayed_step_has_the_same_numbers(server: Server, one_process_run: Path, step: int) -> None:
    before = {name: content for name, content in contents(one_process_run).items() if not name.startswith("replay")}
    server.run("replay", str(one_process_run), "--step", str(step))
    folder = one_process_run / "replay" / f"step-{step:08d}"
    replayed, recorded = json.loads((folder / "step.json").read_text()), steps(one_process_run)[step - 1]
    for name in ("train/loss", "train/top1", "grad_norm", "lr", "samples", "epoch"):
        assert replayed[name] == recorded[name], name
    assert json.loads((folder / "batch.json").read_text())["id"] == recorded["sample_ids"]
    tensors = load_file(folder / "batch.safetensors")
    assert tensors["image"].shape == (len(recorded["sample_ids"]), 1, 8, 8)
    norms = torch.tensor(list(replayed["gradients"].values()))
    assert norms.norm().item() == pytest.approx(recorded["grad_norm"], rel=1e-5)
    after = {name: content for name, content in contents(one_process_run).items() if not name.startswith("replay")}
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_replay_with_two_processes(server: Server, trained: Trained, parallel: str) -> None:
    folder = trained(2, f"train.parallel={parallel}", "task.backbone.norm=batch", "data.drop_last=true")
    recorded = steps(folder)[12]
    expect(start(server, 2, str(folder), "--step", "13", command="replay"))
    replay_dir = folder / "replay" / "step-00000013"
    assert json.loads((replay_dir / "step.json").read_text())["train/loss"] == recorded["train/loss"]
    halves = [json.loads((replay_dir / name).read_text())["id"] for name in ("batch.json", "batch.rank1.json")]
    assert halves[0] + halves[1] == recorded["sample_ids"]


def test_a_non_finite_step_is_replayed_with_its_batch(server: Server, trained: Trained) -> None:
    poisoned = "data.train={source: {name: poisoned, n: 65, sample: 40}}"
    folder = trained(1, poisoned, "train.on_nonfinite=rollback", "checkpoint.every=2it")
    skipped_steps = read_checkpoint(checkpoint(folder, MANY_STEPS)).state["left_out"]
    step = skipped_steps[1] + 1
    program = server.run("replay", str(folder), "--step", str(step), status=1)
    assert f"train/loss is nan at step {step}" in program.err
    replay_dir = folder / "replay" / f"step-{step:08d}"
    batch, ids = load_file(replay_dir / "batch.safetensors"), json.loads((replay_dir / "batch.json").read_text())["id"]
    assert not batch["image"][ids.index(Digits(split="train")[40]["id"])].isfinite().all()
    assert "nan" in json.loads((replay_dir / "gradients.json").read_text()).values()


@pytest.mark.parametrize(("step", "message"), [("0", "counted from 1"), ("21", "no step 21")])
def test_a_step_out_of_range_is_refused(server: Server, one_process_run: Path, step: str, message: str) -> None:
    program = server.run("replay", str(one_process_run), "--step", step, status=2)
    assert message in program.err and "Traceback" not in program.err


@pytest.mark.slow
def test_sharded_weights_are_merged_into_one_file(server: Server, trained: Trained, tmp_path: Path) -> None:
    folder = trained(2, "train.parallel=fsdp", "ema={decay: 0.9}")
    for weights in ("model", "ema"):
        out = tmp_path / f"{weights}.safetensors"
        server.run("merge", str(folder), "--checkpoint", "last", "--weights", weights, "--out", str(out))
        expected = read_checkpoint(checkpoint(folder, MANY_STEPS)).tensors[weights]
        merged = load_file(out)
        assert merged.keys() == set(expected) and all(torch.equal(merged[name], expected[name]) for name in expected)
    second = server.run("merge", str(folder), "--out", str(tmp_path / "ema.safetensors"), status=2)
    assert "exists already" in second.err
    program = server.run("merge", str(folder), "--weights", "teacher", "--out", str(tmp_path / "x"), status=2)
    assert "has no teacher; it has: " in program.err


# --- views ------------------------------------------------------------------------------------------------------------

VIEWS = """
task: {name: simclr, backbone: {name: timm, model: test_resnet}, projection: 16, mean: [0.2], std: [0.25]}
data:
  train:
    source: {name: unlabeled, source: {name: synthetic, samples: 28, channels: 1, size: 32}}
    transforms:
      - name: views
        views:
          - {count: 2, transforms: [{name: RandomResizedCrop, size: 32}, random_gaussian_blur]}
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
    (tmp_path / "views.yaml").write_text(VIEWS)
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
