"""What is measured on embeddings is the same on any number of processes, to the last digit."""

import json
import shutil
from pathlib import Path

import pytest

from tests.faults.many import start
from tests.faults.programs import Server

MEASURES = (
    "evaluate.evaluators.neighbours.evaluator={name: knn, k: 7}",
    "evaluate.evaluators.probe.evaluator={name: linear_probe, layers: [embedding, backbone.layers.0], epochs: 20}",
    "evaluate.evaluators.shots.evaluator={name: low_shot, shots: [1, 2], repeats: 3}",
    "evaluate.evaluators.machines.evaluator={name: linear_svm, costs: [0.1, 1.0]}",
    "evaluate.evaluators.groups.evaluator=clustering",
    "evaluate.evaluators.alarm.evaluator=collapse",
)


@pytest.mark.slow
def test_measures_are_the_same_on_any_number_of_processes(server: Server, alone: Path, tmp_path: Path) -> None:
    run = shutil.copytree(alone, tmp_path / "run")
    found = []
    for processes in (1, 2, 3):
        # Some samples that are fewer than a batch for each process: one of three sees none of the last round.
        for program in start(server, processes, str(run), *MEASURES, "evaluate.batch_size=30", command="eval"):
            program.expect(0, 300)
        written = [json.loads((run / "eval" / "val" / name).read_text()) for name in ("scores.json", "details.json")]
        found.append(written)
    scores, details = found[0]
    assert {"val/knn_top1", "val/linear_top1", "val/low_shot_2", "val/svm_top1", "val/nmi", "val/rank"} <= scores.keys()
    assert {"linear_probe", "low_shot", "linear_svm", "clusters"} <= details.keys()
    assert found[1] == found[0] == found[2]
