"""Multi-task runs: the same mixture, losses and weights on any number of processes, and after SIGKILL."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.many import start
from tests.faults.programs import Server
from tests.faults.runs import checkpoint, metrics

STEPS = 12
RECIPE = """
# `few` has 2 samples in a batch, fewer than three processes; `parity` learns on the images of `digits`.
plugins: [tests.faults.parts]
task:
  name: multitask
  backbone: {name: grouped}
  mean: [0.3]
  std: [0.38]
  tasks:
    digits:
      task: classification
      data:
        train:
          source: {name: some_digits, n: 65}
          transforms: [{name: RandomAffine, degrees: 10, translate: [0.1, 0.1]}]
        val: {source: {name: some_digits, n: 31, split: val}}
    parity:
      task: {name: classification, loss: {name: cross_entropy, label_smoothing: 0.2}}
      stream: digits
      weight: 0.5
    few:
      task: classification
      data:
        train: {source: {name: some_digits, n: 11}, transforms: [RandomHorizontalFlip]}
data: {batch_size: 15}
optimizer: {name: adamw, lr: 0.01, weight_decay: 0.1}
train: {length: 12it, log_samples: true, num_threads: 1}
evaluate: {every: 6it, batch_size: 20}
checkpoint: {every: 4it, keep: 9}
hooks: {trace: {}}
loggers: []
seed: 3
"""


def trained(server: Server, folder: Path, name: str, processes: int, *overrides: str) -> Path:
    """Train on some processes; return the run folder."""
    recipe = folder / "mixture.yaml"
    recipe.write_text(RECIPE)
    for program in start(server, processes, str(recipe), "--out", str(folder), "--name", name, *overrides):
        program.expect(0)
    return folder / "mixture" / name


def steps(run: Path) -> list[dict[str, object]]:
    return [line for line in metrics(run) if "grad_norm" in line]


def assert_same_learning(found: Path, expected: Path, tolerance: float = 2e-5) -> None:
    """The same samples, and losses and weights that differ by float noise only."""
    assert len(steps(found)) == STEPS
    for line, other in zip(steps(found), steps(expected), strict=True):
        assert line["sample_ids"] == other["sample_ids"] and line.keys() == other.keys()
        names = [name for name in line if "loss" in name or name == "grad_norm"]
        found_values, values = ([row[name] for name in names] for row in (line, other))
        assert found_values == pytest.approx(values, abs=tolerance), line["step"]


TURNS = ("data.train.source.mixing=steps", "task.tasks.few.data.train.source.n=20")
SYNCHRONIZED = ("task.backbone.norm=batch", "task.norms=shared", "train.sync_batch_norm=true")
SHARDED = "train.parallel={name: fsdp, min_num_params: 60}"
VARIETIES = {
    "plain": [],
    "workers": ["data.num_workers=3"],
    "micro-batches": ["train.micro_batch_size=3"],
    "taking turns in micro-batches": [*TURNS, "train.micro_batch_size=2"],
    "taking turns, uncertainty": [*TURNS, "task.balance=uncertainty"],
    "clipped and averaged": ["train.step={name: standard, clip_norm: 0.5}", "ema={decay: 0.9}"],
    "synchronized norms": SYNCHRONIZED,
    "synchronized norms, taking turns": [*SYNCHRONIZED, *TURNS],
    "sharded": [SHARDED],
    "sharded, taking turns": [SHARDED, *TURNS, "ema={decay: 0.9}"],
    "sharded in half precision": ["train.parallel={name: fsdp, param_dtype: bf16, reduce_dtype: fp32}"],
}


@pytest.mark.slow
@pytest.mark.parametrize("variety", VARIETIES)
def test_the_same_learning_on_any_number_of_processes(server: Server, tmp_path: Path, variety: str) -> None:
    overrides = VARIETIES[variety]
    processes = 2 if "turns" in variety else 3
    many = trained(server, tmp_path, "many", processes, *overrides)
    one = trained(server, tmp_path, "one", 1, *overrides)
    assert_same_learning(many, one, 0.05 if "half" in variety else 2e-5)
    if not {"sharded", "synchronized"}.intersection(variety.replace(",", "").split()):
        found, expected = (load_file(checkpoint(run, STEPS) / "model.safetensors") for run in (many, one))
        for name, tensor in expected.items():
            assert torch.allclose(tensor, found[name], atol=1e-3), name
