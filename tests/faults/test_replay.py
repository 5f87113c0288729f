"""Replayed steps, and weights merged into one file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from opabinia.data.sources import Digits
from opabinia.engine.checkpointing.checkpoint import read_checkpoint
from tests.faults.many import STEPS, Trained, start, steps
from tests.faults.programs import Server
from tests.faults.runs import checkpoint, contents


@pytest.mark.parametrize("step", [*(pytest.param(step, marks=pytest.mark.slow) for step in (1, 10, STEPS)), 13])
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
    folder = trained("many", 2, f"train.parallel={parallel}", "task.backbone.norm=batch", "data.drop_last=true")
    recorded = steps(folder)[12]
    for program in start(server, 2, str(folder), "--step", "13", command="replay"):
        program.expect(0)
    replay_dir = folder / "replay" / "step-00000013"
    assert json.loads((replay_dir / "step.json").read_text())["train/loss"] == recorded["train/loss"]
    halves = [json.loads((replay_dir / name).read_text())["id"] for name in ("batch.json", "batch.rank1.json")]
    assert halves[0] + halves[1] == recorded["sample_ids"]


def test_a_non_finite_step_is_replayed_with_its_batch(server: Server, trained: Trained) -> None:
    poisoned = "data.train={source: {name: poisoned, n: 65, sample: 40}}"
    folder = trained("spoiled", 1, poisoned, "train.on_nonfinite=rollback", "checkpoint.every=2it")
    skipped_steps = read_checkpoint(checkpoint(folder, STEPS)).state["left_out"]
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
    folder = trained("sharded", 2, "train.parallel=fsdp", "ema={decay: 0.9}")
    for weights in ("model", "ema"):
        out = tmp_path / f"{weights}.safetensors"
        server.run("merge", str(folder), "--checkpoint", "last", "--weights", weights, "--out", str(out))
        expected = read_checkpoint(checkpoint(folder, STEPS)).tensors[weights]
        merged = load_file(out)
        assert merged.keys() == set(expected) and all(torch.equal(merged[name], expected[name]) for name in expected)
    second = server.run("merge", str(folder), "--out", str(tmp_path / "ema.safetensors"), status=2)
    assert "exists already" in second.err
    program = server.run("merge", str(folder), "--weights", "teacher", "--out", str(tmp_path / "x"), status=2)
    assert "has no teacher; it has: " in program.err
