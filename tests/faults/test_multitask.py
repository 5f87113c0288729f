"""Multi-task runs: the same batches, losses and weights on any number of processes, and after SIGKILL."""

import random
from pathlib import Path

import pytest
import torch

from tests.faults.programs import Server
from tests.faults.runs import Outcome, Run, Trainings, assert_same, assert_same_learning, expect, start, weights
from tests.faults.test_kill import at_any_time, in_a_save, in_a_step, killed_and_resumed, spread

STEPS = 12
RECIPE = """
# `few` has 2 samples in a batch, fewer than three processes; `parity` trains on the images of `digits`.
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


ALTERNATING = ("task.alternate=true", "task.tasks.few.data.train.source.n=20")
SYNCHRONIZED = ("task.backbone.norm=batch", "task.norms=shared", "train.sync_batch_norm=true")
SHARDED = "train.parallel={name: fsdp, min_num_params: 60}"
VARIANTS = {
    "plain": [],
    "workers": ["data.num_workers=3"],
    "micro-batches": ["train.micro_batch_size=3"],
    "taking turns in micro-batches": [*ALTERNATING, "train.micro_batch_size=2"],
    "taking turns, uncertainty": [*ALTERNATING, "task.balance=uncertainty"],
    "dwa, taking turns in micro-batches": [*ALTERNATING, "task.balance=dwa", "train.micro_batch_size=2"],
    "gradnorm in micro-batches": ["task.balance=gradnorm", "train.micro_batch_size=3"],
    "half of the labels missing": [
        "task.tasks.digits.data.train.source={name: half_labeled, n: 65}",
        "train.micro_batch_size=2",
        "data.num_workers=1",
    ],
    "clipped and averaged": ["train.step={name: standard, clip_norm: 0.5}", "ema={decay: 0.9}"],
    "synchronized norms": SYNCHRONIZED,
    "synchronized norms, taking turns": [*SYNCHRONIZED, *ALTERNATING],
    "sharded": [SHARDED],
    "sharded, taking turns": [SHARDED, *ALTERNATING, "ema={decay: 0.9}"],
    "sharded in half precision": ["train.parallel={name: fsdp, param_dtype: bf16, reduce_dtype: fp32}"],
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_does_not_depend_on_the_number_of_processes(trainings: Trainings, variant: str) -> None:
    processes = 2 if "turns" in variant else 3
    several_processes, one_process = (trainings(RECIPE, number, *VARIANTS[variant]) for number in (processes, 1))
    assert_same_learning(several_processes, one_process, 0.05 if "half" in variant else 2e-5)
    if not {"sharded", "synchronized"}.intersection(variant.replace(",", "").split()):
        actual, expected = weights(several_processes, STEPS), weights(one_process, STEPS)
        for name, tensor in expected.items():
            assert torch.allclose(tensor, actual[name], atol=1e-3), name


KILLED = """
# All kinds of state: statistics of norms per stream, momentum teachers, a queue, a center, EMA weights.
plugins: [tests.faults.parts]
task:
  name: multitask
  backbone: {name: timm, model: test_resnet}
  balance: BALANCE
  alternate: ALTERNATE
  temperature: TEMPERATURE
  mean: [0.3]
  std: [0.38]
  tasks:
    digits:
      task: {name: classification, dropout: 0.2}
      data:
        train: {source: {name: some_digits, n: 65}, transforms: [{name: Resize, size: 32}, RandomHorizontalFlip]}
        val: {source: {name: some_digits, n: 40, split: val}, transforms: [{name: Resize, size: 32}]}
        mix: [{name: mixup, alpha: 0.2}]
    boxes:
      task: {name: detection, detector: {name: fcos, neck: {name: fpn_p3_p7_from_p5, channels: 32}, num_convs: 1}}
      data:
        train: {source: {name: some_scenes, n: 22}}
    views:
      task: {name: moco, queue: 48, projection: 16}
      data:
        train:
          source: {name: some_digits, n: 48}
          transforms:
            - {name: views, views: [{count: 2, transforms: [{name: RandomResizedCrop, size: 32}]}]}
    more_views:
      task: {name: dino, outputs: 32, hidden: 16, bottleneck: 8}
      stream: views
data: {batch_size: 14}
optimizer: {name: adamw, lr: 0.01}
schedule: {name: cosine, warmup: 5it}
train: {length: 21it, log_every: 3, deterministic: true, num_threads: 1}
ema: {decay: 0.9}
evaluate: {every: 8it, batch_size: 20}
checkpoint: {every: 5it}
hooks: {trace: {}}
loggers: []
seed: 3
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alternate", "temperature", "balance"),
    [("false", 1, "fixed"), ("true", 1, "uncertainty"), ("false", 2, "gradnorm"), ("true", 3, "dwa")],
)
def test_kills_at_random_moments(
    server: Server, tmp_path: Path, alternate: str, temperature: int, balance: str
) -> None:
    """Three kills, each resumed with another number of workers, most of them in mid-epoch (9 steps)."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    random.seed(seed)
    recipe = tmp_path / "faults.yaml"
    text = KILLED.replace("ALTERNATE", alternate).replace("TEMPERATURE", str(temperature)).replace("BALANCE", balance)
    recipe.write_text(text)
    whole = Run(server, recipe, tmp_path / "whole")
    expect([whole.start()])
    moments = spread([in_a_step, in_a_save, at_any_time], 18)
    folder, killed_at = killed_and_resumed(server, recipe, tmp_path / "killed", moments, [2, 0, 1, 2])
    assert killed_at
    assert_same(Outcome.of(folder), Outcome.of(whole.folder))


@pytest.mark.slow
def test_gradnorm_refuses_sharded_layers(server: Server, tmp_path: Path) -> None:
    recipe = tmp_path / "streams.yaml"
    recipe.write_text(RECIPE)
    log = expect(start(server, 2, str(recipe), "--out", str(tmp_path), SHARDED, "task.balance=gradnorm"), 2)
    assert "gradnorm needs the gradients of a whole layer; use train.parallel: ddp" in log
    assert "Traceback" not in log
