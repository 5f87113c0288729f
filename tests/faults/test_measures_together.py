"""Metrics of embeddings are bitwise identical with any number of processes."""

import json
import shutil
from pathlib import Path

import pytest

from tests.faults.many import start
from tests.faults.programs import Server

EVALUATORS = (
    "evaluate.evaluators.neighbours.evaluator={name: knn, k: 7}",
    "evaluate.evaluators.probe.evaluator={name: linear_probe, layers: [embedding, backbone.layers.0], epochs: 20}",
    "evaluate.evaluators.shots.evaluator={name: low_shot, shots: [1, 2], repeats: 3}",
    "evaluate.evaluators.machines.evaluator={name: linear_svm, costs: [0.1, 1.0]}",
    "evaluate.evaluators.groups.evaluator=clustering",
    "evaluate.evaluators.alarm.evaluator=collapse",
)


@pytest.mark.slow
def test_metrics_do_not_depend_on_the_number_of_processes(
    server: Server, one_process_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(one_process_run, tmp_path / "run")
    results = []
    for processes in (1, 2, 3):
        # The last round has fewer batches than processes: one of three has none.
        for program in start(server, processes, str(run), *EVALUATORS, "evaluate.batch_size=30", command="eval"):
            program.expect(0, 300)
        # The best checkpoint is not of the last step, whose tables stay: those of the evaluation have their own folder.
        (details_file,) = run.glob("eval/val/step-*/details.json")
        results.append([json.loads(path.read_text()) for path in (run / "eval" / "val" / "scores.json", details_file)])
    scores, details = results[0]
    assert {"val/knn_top1", "val/linear_top1", "val/low_shot_2", "val/svm_top1", "val/nmi", "val/rank"} <= scores.keys()
    assert {"linear_probe", "low_shot", "linear_svm", "clusters"} <= details.keys()
    assert results[1] == results[0] == results[2]
