"""Weights & Biases and MLflow, offline, with the real packages; and their errors and missing packages."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opabinia.contracts import Clock
from opabinia.engine.loggers.base import ExperimentLogger
from opabinia.engine.loggers.mlflow import MLflow
from opabinia.engine.loggers.wandb import WeightsAndBiases

START = Clock(total_steps=100, steps_per_epoch=10)
VALUES = {"epoch": 1.0, "samples": 80, "train/loss": 1.25}
LINE: dict[str, Any] = {"step": 10, **VALUES, "sample_ids": ["a"], "val/top1": None}


def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "toy" / "default"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("optimizer: {name: sgd, lr: 0.1}\nhooks: [a, b]\n")
    return folder


class Toy(ExperimentLogger):
    """Records its calls; the one named ``fails`` raises an error."""

    name = "json"  # any installed module

    def __init__(self, folder: Path, clock: Clock, fails: str = "") -> None:
        super().__init__(folder, clock)
        self.fails, self.calls = fails, list[Any]()

    def _record(self, method: str, *args: Any) -> None:
        if method == self.fails:
            raise ConnectionError(f"no {method}\nwith details")
        self.calls.append((method, *args))

    def start_run(self, run_id: str | None, title: str, config: Any) -> str:
        self._record("start", run_id, title, config)
        return run_id or "seven"

    def log_values(self, values: Any, step: int) -> None:
        self._record("log", values, step)

    def end_run(self) -> None:
        self._record("end")


def test_the_run_starts_with_the_first_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    toy = Toy(folder, START)
    assert not toy.calls and not (folder / "json_id").exists()
    toy.write(LINE)
    toy.close()
    toy.close()
    config = {"optimizer": {"name": "sgd", "lr": 0.1}, "hooks": ["a", "b"]}
    assert toy.calls == [("start", None, "runs/toy/default", config), ("log", VALUES, 10), ("end",)]


def test_a_run_that_was_not_started_is_not_ended(tmp_path: Path) -> None:
    toy = Toy(run_folder(tmp_path), START)
    toy.close()
    assert toy.calls == []


@pytest.mark.parametrize(("step", "known"), [(20, "seven"), (0, None)])
def test_only_a_resumed_run_continues_the_trackers_run(step: int, known: str | None, tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    Toy(folder, START).write(LINE)
    resumed = Toy(folder, Clock(step=step, total_steps=100))
    resumed.write(LINE)
    assert resumed.calls[0][1] == known


@pytest.mark.parametrize("fails", ["start", "log", "end"])
def test_an_error_is_logged_once_and_disables_the_logger(
    fails: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(run_folder(tmp_path), START, fails)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            toy.write(LINE)
        toy.close()
    assert [record.message for record in caplog.records] == [
        f"logger json is disabled after an error (metrics.jsonl has all values): no {fails}"
    ]


@pytest.mark.parametrize(("part", "name"), [(WeightsAndBiases, "wandb"), (MLflow, "mlflow")])
def test_the_error_for_a_missing_package_names_the_extra(
    part: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"^{name} needs a package .*pip install 'opabinia\[{name}\]'"):
        part(tmp_path, START)


# --- real packages ----------------------------------------------------------------------------------------------------


@pytest.mark.slow  # it creates a database of about fifty tables
@pytest.mark.filterwarnings("ignore")  # deprecation warnings of its dependencies
def test_mlflow_has_the_metrics_and_the_config(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    folder, uri = run_folder(tmp_path), f"sqlite:///{tmp_path / 'mlflow.db'}"
    for clock, step in ((START, 10), (Clock(step=10, total_steps=100), 20)):
        logger = MLflow(folder, clock, experiment="toys", tracking_uri=uri)
        logger.write({**LINE, "step": step, "train/loss": 1 / step})
        logger.close()
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
      "loggers=[terminal, wandb]", "data.val=null"])
"""


@pytest.mark.slow
def test_a_run_with_wandb_offline_sends_nothing(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    # A proxy that does not exist: any upload would fail.
    environment = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9", "WANDB_API_KEY": ""}
    result = subprocess.run(
        [sys.executable, "-c", WHOLE_RUN, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    (folder,) = tmp_path.glob("classification/digits/*")
    (run_file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert run_file.stem == f"run-{(folder / 'wandb_id').read_text().strip()}"
    content = run_file.read_bytes()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines
    for line in lines:
        assert str(line["train/loss"]).encode() in content
