"""Weights & Biases and MLflow, offline, as they really are; and what happens when they fail or are missing."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opabinia.contracts import Clock
from opabinia.engine.loggers.trackers import MLflow, Tracker, WeightsAndBiases

START = Clock(total_steps=100, steps_per_epoch=10)
VALUES = {"epoch": 1.0, "samples": 80, "train/loss": 1.25}
LINE: dict[str, Any] = {"step": 10, **VALUES, "sample_ids": ["a"], "val/top1": None}


def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "toy" / "default"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("optimizer: {name: sgd, lr: 0.1}\nhooks: [a, b]\n")
    return folder


class Toy(Tracker):
    """A tracker that keeps what it gets, and fails when it is told to."""

    name = "json"  # some module

    def __init__(self, folder: Path, clock: Clock, fails: str = "") -> None:
        super().__init__(folder, clock)
        self.fails, self.got = fails, list[Any]()

    def _note(self, what: str, *said: Any) -> None:
        if what == self.fails:
            raise ConnectionError(f"no {what}\nwith details")
        self.got.append((what, *said))

    def begin(self, known: str | None, title: str, config: Any) -> str:
        self._note("begin", known, title, config)
        return known or "seven"

    def send(self, values: Any, step: int) -> None:
        self._note("send", values, step)

    def end(self) -> None:
        self._note("end")


def test_a_run_begins_with_its_first_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    toy = Toy(folder, START)
    assert not toy.got and not (folder / "json_id").exists()
    toy.write(LINE)
    toy.close()
    toy.close()
    config = {"optimizer": {"name": "sgd", "lr": 0.1}, "hooks": ["a", "b"]}
    assert toy.got == [("begin", None, "runs/toy/default", config), ("send", VALUES, 10), ("end",)]


def test_a_run_that_never_began_ends_nothing(tmp_path: Path) -> None:
    toy = Toy(run_folder(tmp_path), START)
    toy.close()
    assert toy.got == []


@pytest.mark.parametrize(("step", "known"), [(20, "seven"), (0, None)])
def test_only_a_resumed_run_goes_on_in_its_place(step: int, known: str | None, tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    Toy(folder, START).write(LINE)
    again = Toy(folder, Clock(step=step, total_steps=100))
    again.write(LINE)
    assert again.got[0][1] == known


@pytest.mark.parametrize("fails", ["begin", "send", "end"])
def test_a_tracker_that_fails_is_told_once_and_ends_nothing(
    fails: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(run_folder(tmp_path), START, fails)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            toy.write(LINE)
        toy.close()
    assert [record.message for record in caplog.records] == [
        f"json takes no more numbers (metrics.jsonl has them all): no {fails}"
    ]


@pytest.mark.parametrize(("part", "name"), [(WeightsAndBiases, "wandb"), (MLflow, "mlflow")])
def test_a_missing_package_is_told_with_what_installs_it(
    part: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"writers: {name} needs a package .*pip install 'opabinia\[{name}\]'"):
        part(tmp_path, START)


# --- as they are ------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # it makes a database of some fifty tables
@pytest.mark.filterwarnings("ignore")  # what its own libraries deprecate
def test_mlflow_has_the_journals_numbers_and_the_config(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    folder, uri = run_folder(tmp_path), f"sqlite:///{tmp_path / 'mlflow.db'}"
    for clock, step in ((START, 10), (Clock(step=10, total_steps=100), 20)):
        writer = MLflow(folder, clock, experiment="toys", uri=uri)
        writer.write({**LINE, "step": step, "train/loss": 1 / step})
        writer.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("toys").experiment_id])
    assert run.info.run_name == "runs/toy/default" and run.info.status == "FINISHED"
    assert run.data.params == {"optimizer.name": "sgd", "optimizer.lr": "0.1", "hooks.0": "a", "hooks.1": "b"}
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(10, 0.1), (20, 0.05)]


WHOLE_RUN = """
import sys
from opabinia.cli import main
main(["train", "classification/digits", "train.length=6it", "train.log_every=2", "--out", sys.argv[1],
      "writers=[terminal, wandb]", "data.val=null"])
"""


@pytest.mark.slow
def test_a_run_with_wandb_offline_sends_nothing(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    # A proxy that nobody listens at: whatever wanted to go out would fail.
    environment = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9", "WANDB_API_KEY": ""}
    done = subprocess.run(
        [sys.executable, "-c", WHOLE_RUN, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("classification/digits/*")
    (kept,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert kept.stem == f"run-{(folder / 'wandb_id').read_text().strip()}"
    content = kept.read_bytes()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines
    for line in lines:
        assert str(line["train/loss"]).encode() in content
