"""Multi-task runs: the lines before the first step, the benchmark of each task, and automatic settings."""

from pathlib import Path

import pytest

from opabinia.cli.tables import print_benchmark, print_scores
from opabinia.config import ConfigError
from opabinia.training import launch
from opabinia.training.benchmark import benchmark
from opabinia.training.model import make_task
from opabinia.training.planning import plan_training
from opabinia.training.run_folder import build_parts, resolve
from opabinia.training.summary import describe_data, describe_model, describe_streams, run_title
from opabinia.training.validation import make_best

RECIPE = """
plugins: [tests.faults.parts]
task:
  name: multitask
  backbone: {name: tiny}
  mean: [0.3]
  std: [0.38]
  tasks:
    digits:
      task: classification
      data: {train: {source: {name: some_digits, n: 24}}, val: {source: {name: some_digits, n: 8, split: val}}}
      batch_share: 0.5
    parity: {task: classification, stream: digits}
    others:
      task: classification
      data: {train: {source: {name: some_digits, n: 12}}}
      batch_share: 0.5
data: {batch_size: 8}
optimizer: sgd
train: {length: 12it, num_threads: 1, device: cpu}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(RECIPE)
    return str(path)


def test_the_summary_names_tasks_and_streams(recipe: str) -> None:
    resolved = resolve(recipe)
    tasks = "digits: classification, parity: classification, others: classification"
    assert run_title("tiny", resolved.config["task"]) == f"tiny: multitask ({tasks}), backbone tiny"
    for alternate, parts in (("false", ["4 of 8 in a batch, 2 epochs", "4 of 8 in a batch, 4 epochs"]),
                          ("true", ["50% of the steps, 2 epochs", "50% of the steps, 6 epochs"])):  # fmt: skip
        run = build_parts(resolve(recipe, [f"task.alternate={alternate}"])).keywords
        data = run["data"]
        batches = plan_training(run["task"], data, run["train"].length, None, 0)
        model = make_task(run["task"], batches.dataset_info, 0)
        sample = batches.first_samples(1, model)
        assert describe_data(data, batches.dataset_info) == "36 samples in 2 streams; digits/val: 8; parity/val: 8"
        assert "FLOP" not in describe_model(model, sample)
        texts = describe_streams(batches, model, sample)
        assert list(texts) == ["digits", "others"]
        for text, samples, part in zip(texts.values(), (24, 12), parts, strict=True):
            assert text.startswith(f"{samples} samples of 10 classes, {part}; ") and text.endswith(
                "FLOP per sample (forward)"
            )


def test_the_benchmark_measures_each_task(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = benchmark(recipe, ["task.alternate=true"], steps=3)
    streams = result["streams"]
    assert {name: stream["samples"] for name, stream in streams.items()} == {"digits": 8, "others": 8}
    assert [list(stream["tasks"]) for stream in streams.values()] == [["digits", "parity"], ["others"]]
    assert all(stream["read"] > 0 and stream["backbone"] > 0 for stream in streams.values())
    print_benchmark(result)
    output = capsys.readouterr().out
    assert "stream digits (8 samples of a batch)" in output and "task parity" in output


def test_each_task_has_a_table_of_scores(capsys: pytest.CaptureFixture[str]) -> None:
    print_scores("a run", {"a/val_ema/top1": 0.5, "a/val/top1": 0.25, "b/val/AP": 1.0})
    output = capsys.readouterr().out
    tables = [line.split() for line in output.splitlines() if line.startswith(("┃", "│"))]
    assert ["┃", "metric", "┃", "val_ema", "┃", "val", "┃", "┃", "metric", "┃", "value", "┃"] in tables
    assert ["│", "top1", "│", "0.5000", "│", "0.2500", "│", "│", "val/AP", "│", "1.0000", "│"] in tables
    assert output.splitlines()[-1] == "csv,0.5,0.25,1"


def test_automatic_settings(recipe: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.batch_size: auto cannot divide a batch among the streams"):
        launch.train(recipe, ["data.batch_size=auto"], out=tmp_path)
    run, scores = launch.train(recipe, ["data.num_workers=auto", "train.length=2it"], out=tmp_path)
    assert "data.num_workers: " in (run / "train.log").read_text() and "parity/val/top1" in scores


def test_the_best_checkpoint_by_scores_of_several_tasks() -> None:
    scores = {"boxes/val/AP": "max", "maps/val/mIoU": "max", "maps/val/loss": "min"}
    best = make_best("boxes/val/AP + 0.5*maps/val/mIoU - 0.01*maps/val/loss", scores)
    assert best is not None and best.better == "max"
    worst = make_best("maps/val/loss", scores)
    assert worst is not None and worst.better == "min"
    with pytest.raises(ConfigError, match="some of these scores are to be high and others low; subtract the latter"):
        make_best("boxes/val/AP + maps/val/loss", scores)
