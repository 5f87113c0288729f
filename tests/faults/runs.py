"""Recipes of the fault tests, runs of them, and the results of a run."""

import json
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.faults.programs import PAUSE, Program, Server

STEPS = 30
EVALUATIONS = (8, 15, 23, 30)
SAVES = (5, 10, 15, 20, 25, 30)

RECIPE = """
# 30 steps of digits with all sources of randomness: order, augmentation, mixup, dropout.
plugins: [tests.faults.parts]
task: {name: classification, backbone: {name: tiny, width: 8}, dropout: 0.2, mean: [0.3], std: [0.38]}
data:
  train:
    source: {name: some_digits, n: 118, split: train}
    transforms: [RandomHorizontalFlip]
  val:
    source: {name: some_digits, n: 90, split: val}
  batch_size: 8
  mix: [{name: mixup, alpha: 0.2}]
optimizer: {name: adamw, lr: 0.01}
schedule: {name: cosine, warmup: 5it}
train: {length: 2ep, log_every: 3, deterministic: true}
evaluate: {every: 0.5ep, batch_size: 20}
checkpoint: {every: 5it}
hooks: {trace: {}}
seed: 3
"""


MANY_STEPS = 20
MANY_RECIPE = """
# 65 samples in batches of 32: the last batch of an epoch has one sample, fewer than there are processes.
plugins: [tests.faults.parts]
task: {name: classification, backbone: {name: grouped}, mean: [0.3], std: [0.38]}
data:
  train:
    source: {name: some_digits, n: 65, split: train}
    transforms:
      - {name: RandomAffine, degrees: 10, translate: [0.1, 0.1]}
  val:
    source: {name: some_digits, n: 91, split: val}
  batch_size: 32
optimizer: {name: adamw, lr: 0.01}
schedule: {name: cosine, warmup: 5it}
train: {length: 20it, log_samples: true, num_threads: 1}
evaluate: {every: 10it, batch_size: 20}
checkpoint: {every: 5it, keep: 9}
hooks: {trace: {}}
seed: 3
"""
"""A recipe whose training does not depend on the number of processes."""


# --- programs of runs -------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def start(
    server: Server,
    processes: int,
    *arguments: str,
    command: str = "train",
    environments: Sequence[Mapping[str, str]] = (),
    **options: Any,
) -> list[Program]:
    """Start the processes of one run, with an environment for each, or one for all."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if processes > 1 else {}
    programs = []
    for rank in range(processes):
        variables = environments[rank % len(environments)] if environments else {}
        environment = {**address, "RANK": str(rank), "WORLD_SIZE": str(processes), **variables}
        programs.append(server.start(*(command, *arguments), environment=environment, **options))
    return programs


def expect(programs: Sequence[Program], status: int = 0, seconds: float = 300) -> str:
    """Wait for programs; return what they wrote to stderr."""
    for program in programs:
        program.expect(status, seconds)
    return "".join(program.err for program in programs)


@dataclass(frozen=True)
class Run:
    """A run of a recipe in a folder of its own."""

    server: Server
    recipe: Path
    out: Path
    name: str = "default"

    @property
    def folder(self) -> Path:
        return self.out / self.recipe.stem / self.name

    @property
    def last_step(self) -> int:
        """The step of the newest checkpoint."""
        return int((self.folder / "checkpoints" / "last").read_text().strip().removeprefix("step-"))

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments that choose the recipe and the folder."""
        return str(self.recipe), "--out", str(self.out), "--name", self.name

    def start(
        self, *overrides: str, pause: str = "", environment: Mapping[str, str] | None = None, **options: Any
    ) -> Program:
        """Start the run, and wait until it pauses."""
        environment = {**(environment or {}), **({PAUSE: pause} if pause else {})}
        program = self.server.start("train", *self.words, *overrides, environment=environment, **options)
        if pause:
            program.until_paused()
        return program

    def train(self, *overrides: str, status: int = 0, **options: Any) -> Program:
        """Run to the end, and expect this exit status."""
        program = self.start(*overrides, **options)
        program.expect(status)
        return program

    def resume_exactly(self, expected: "Outcome", *overrides: str) -> Program:
        """Resume to the end, and expect these results."""
        program = self.train("--resume", *overrides)
        assert_same(Outcome.of(self.folder), expected)
        return program


Trained = Callable[..., Path]
"""Trains on a number of processes, with overrides; returns the run folder, which is not to be changed."""


class Trainings:
    """Trains recipes to the end. A training that was done before is not repeated."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._done: dict[tuple[object, ...], Path] = {}

    def __call__(self, recipe: str, processes: int, *overrides: str) -> Path:
        key = (recipe, processes, *overrides)
        if key not in self._done:
            out = self._folder / str(len(self._done))
            out.mkdir(exist_ok=True)
            (out / "run.yaml").write_text(recipe)
            expect(start(self._server, processes, str(out / "run.yaml"), "--out", str(out), *overrides))
            self._done[key] = out / "run" / "default"
        return self._done[key]


def copy_cut_back(run: Path, folder: Path, step: int) -> Path:
    """Copy a run folder as if the run had been killed after the checkpoint of this step."""
    copy = Path(shutil.copytree(run, folder))
    (copy / "checkpoints" / "last").write_text(f"step-{step:08d}\n")
    (copy / "results.json").unlink()
    return copy


# --- results ----------------------------------------------------------------------------------------------------------


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` without values that depend on the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k != "samples_per_s" and not k.startswith(("time/", "memory/"))}
        for line in lines
    ]


def steps(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics(folder) if "grad_norm" in line]


def scores(folder: Path) -> list[dict[str, float]]:
    """Return the scores of each evaluation."""
    lines = ({name: value for name, value in line.items() if name.startswith("val")} for line in metrics(folder))
    return [line for line in lines if line]


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


def weights(folder: Path, step: int) -> dict[str, Tensor]:
    return load_file(checkpoint(folder, step) / "model.safetensors")


def assert_same_learning(run: Path, expected_run: Path, tolerance: float = 2e-5) -> None:
    """Assert the same samples in the same order, and losses that differ by float noise only."""
    assert len(steps(run)) == len(steps(expected_run)) > 0
    for line, expected in zip(steps(run), steps(expected_run), strict=True):
        assert line.keys() == expected.keys()
        assert (line["sample_ids"], line["lr"]) == (expected["sample_ids"], expected["lr"])
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=max(1e-3, 10 * tolerance))
        names = [name for name in line if "loss" in name]
        actual_values, expected_values = ([values[name] for name in names] for values in (line, expected))
        assert actual_values == pytest.approx(expected_values, abs=tolerance), line["step"]


@dataclass
class Outcome:
    """The results of a run: the bytes of the newest checkpoint, and the metrics log."""

    model: bytes
    optimizer: bytes
    metrics: list[dict[str, Any]]
    results: dict[str, float]
    best: str

    @classmethod
    def of(cls, folder: Path) -> "Outcome":
        newest = folder / "checkpoints" / (folder / "checkpoints" / "last").read_text().strip()
        return cls(
            (newest / "model.safetensors").read_bytes(),
            (newest / "optimizer.safetensors").read_bytes(),
            metrics(folder),
            json.loads((folder / "results.json").read_text()),
            (folder / "checkpoints" / "best").read_text(),
        )


def assert_same(actual: Outcome, expected: Outcome) -> None:
    assert actual.metrics == expected.metrics
    assert actual.results == expected.results
    assert actual.best == expected.best
    assert actual.model == expected.model, "the weights differ"
    assert actual.optimizer == expected.optimizer, "the optimizer's state differs"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
