"""Batch shapes that change between steps: killed runs, and two processes, have the batches of an uninterrupted run."""

import pytest

from tests.faults.programs import SLOW
from tests.faults.runs import Outcome, Run, Trained, assert_same_learning, metrics, steps

MULTIGRID = [
    "shapes={name: multigrid, size: 8, milestones: [2], bn_base_size: 3}",
    *("data.batch_size=6", "train.length=4ep", "evaluate.every=2ep", "schedule={name: constant, warmup: 1ep}"),
]
"""65 samples: epochs of 24, 12, 12, 17 samples of 4, 6, 6, 4 pixels, then of 24, 12, 6, 23 of 4, 6, 8, 4 pixels."""
SIZES = ([24, 12, 12, 17], [24, 12, 6, 23])


def test_the_batches_of_a_run(trained: Trained) -> None:
    folder = trained(1, *MULTIGRID, "task.backbone.norm=batch")
    lines = steps(folder)
    counts = [len(line["sample_ids"]) for line in lines]
    epochs = [counts[first : first + 4] for first in range(0, len(counts), 4)]
    assert epochs[0] == SIZES[0] and epochs[-1] == SIZES[1]
    assert len(epochs) == 6 and all(epoch in SIZES for epoch in epochs)
    for number in range(6):  # each sample once
        ids = [name for line in lines[4 * number : 4 * number + 4] for name in line["sample_ids"]]
        assert len(ids) == len(set(ids)) == 65
    rates = [round(line["lr"] / 0.01, 6) for line in lines]
    assert (
        rates[4] == 2 and rates[-1] == 0.1
    )  # the warm-up ends after one epoch; the drop follows half of the fine-tuning
    assert 0 < rates[0] < rates[1] < rates[3] < 2
    log = (folder / "train.log").read_text()
    assert "65 samples, 24 steps of 6 to 24 (4 per epoch); from step 0" in log
    assert (
        log.count("epoch 0: batches of 24 x 4 x 4, 12 x 6 x 6, 12 x 6 x 6, learning rate x 2, batch norm in 4 parts")
        == 1
    )
    assert "batches of 24 x 4 x 4, 12 x 6 x 6, 6 x 8 x 8, learning rate x 0.1, batch norm in 2 parts" in log


@pytest.mark.parametrize("workers", [(0, 2), pytest.param((2, 1), marks=pytest.mark.slow)])
def test_a_run_killed_within_a_short_cycle_resumes(trained: Trained, many_run: Run, workers: tuple[int, int]) -> None:
    """Saved at step 5, the second of four in its epoch; killed some steps later, resumed with other workers."""
    overrides = [*MULTIGRID, "task.backbone.norm=batch"]
    expected = Outcome.of(trained(1, *overrides))
    program = many_run.start(*overrides, f"data.num_workers={workers[0]}", environment={SLOW: "0.02"})
    program.until_traced("after_step 7")
    program.kill()
    assert many_run.last_step == 5
    many_run.resume_exactly(expected, *overrides, f"data.num_workers={workers[1]}")


@pytest.mark.slow
def test_two_processes_train_the_same(trained: Trained) -> None:
    one_process, two_processes = trained(1, *MULTIGRID), trained(2, *MULTIGRID, "data.num_workers=1")
    assert_same_learning(two_processes, one_process)
    assert [line["samples"] for line in steps(two_processes)] == [line["samples"] for line in steps(one_process)]
    assert [line["val/top1"] for line in metrics(two_processes) if "val/top1" in line]


@pytest.mark.slow
def test_ema_and_synchronized_batch_norm(trained: Trained) -> None:
    overrides = [*MULTIGRID, "task.backbone.norm=batch", "train.sync_batch_norm=true", "ema={decay: 0.9}"]
    assert_same_learning(trained(2, *overrides), trained(1, *overrides), 1e-4)


@pytest.mark.slow
def test_batch_norm_over_two_processes_equals_that_of_one(trained: Trained) -> None:
    """Of 6 samples two processes have 3 each, half of the base size of batch norm."""
    overrides = [*MULTIGRID, "shapes.long_cycle=[]", "shapes.bn_base_size=6", "task.backbone.norm=batch"]
    one_process, two_processes = trained(1, *overrides), trained(2, *overrides)
    assert "4 x 4, 12 x 6 x 6, 6 x 8 x 8, learning rate x 1\n" in (one_process / "train.log").read_text()
    assert "learning rate x 1, batch norm over 2 processes" in (two_processes / "train.log").read_text()
    assert_same_learning(two_processes, one_process, 1e-4)
    assert_same_learning(trained(2, *overrides, "train.parallel=fsdp"), one_process, 1e-4)


def test_invalid_milestones_are_refused_before_the_first_step(many_run: Run) -> None:
    program = many_run.train(*MULTIGRID, "shapes.milestones=[4]", status=2)
    assert "shapes.milestones: [4] must ascend between epoch 0 and 4" in program.err
