"""Batches that change from step to step: a killed run, and two processes, see what one undisturbed run does."""

from pathlib import Path

import pytest

from tests.faults.many import Trained, steps
from tests.faults.programs import SLOW, Server
from tests.faults.runs import Outcome, assert_same, metrics
from tests.faults.test_together import assert_same_learning

MULTIGRID = [
    "shapes={name: multigrid, size: 8, milestones: [2], bn_base_size: 3}",
    *("data.batch_size=6", "train.length=4ep", "evaluate.every=2ep", "schedule={name: constant, warmup: 1ep}"),
]
"""65 samples: epochs of 24, 12, 12, 17 samples of 4, 6, 6, 4 pixels, then of 24, 12, 6, 23 of 4, 6, 8, 4 pixels."""
SIZES = ([24, 12, 12, 17], [24, 12, 6, 23])


def test_the_batches_of_a_run(trained: Trained) -> None:
    folder = trained("one", 1, *MULTIGRID, "task.backbone.norm=batch")
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
    )  # the warm-up is over after one epoch; the drop is behind the fine-tuning's half
    assert 0 < rates[0] < rates[1] < rates[3] < 2
    log = (folder / "train.log").read_text()
    assert "65 samples, 24 steps of 6 to 24 (4 per epoch); from step 0" in log
    assert (
        log.count("epoch 0: batches of 24 x 4 x 4, 12 x 6 x 6, 12 x 6 x 6, learning rate x 2, batch norm in 4 parts")
        == 1
    )
    assert "batches of 24 x 4 x 4, 12 x 6 x 6, 6 x 8 x 8, learning rate x 0.1, batch norm in 2 parts" in log


@pytest.mark.parametrize("workers", [(0, 2), pytest.param((2, 1), marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_a_short_cycle(
    trained: Trained, server: Server, together: Path, tmp_path: Path, workers: tuple[int, int]
) -> None:
    """Saved at step 5, the second of four in its epoch; killed some steps later, resumed with other workers."""
    more = [*MULTIGRID, "task.backbone.norm=batch"]
    expected = Outcome.of(trained("whole", 1, *more))
    arguments = ("train", str(together), "--out", str(tmp_path), "--name", "killed", *more)
    program = server.start(*arguments, f"data.num_workers={workers[0]}", environment={SLOW: "0.02"})
    program.until_traced("after_step 7")
    program.kill()
    saved = tmp_path / "together" / "killed" / "checkpoints" / "last"
    assert saved.read_text().strip() == "step-00000005"
    server.run(*arguments, f"data.num_workers={workers[1]}", "--resume")
    assert_same(Outcome.of(tmp_path / "together" / "killed"), expected)


@pytest.mark.slow
def test_two_processes(trained: Trained) -> None:
    one, two = trained("one", 1, *MULTIGRID), trained("two", 2, *MULTIGRID, "data.num_workers=1")
    assert_same_learning(two, one)
    assert [line["samples"] for line in steps(two)] == [line["samples"] for line in steps(one)]
    assert [line["val/top1"] for line in metrics(two) if "val/top1" in line]


@pytest.mark.slow
def test_an_average_and_synchronised_norms(trained: Trained) -> None:
    more = [*MULTIGRID, "task.backbone.norm=batch", "train.sync_batch_norm=true", "ema={momentum: 0.9}"]
    assert_same_learning(trained("two", 2, *more), trained("one", 1, *more), 1e-4)


@pytest.mark.slow
def test_norms_over_neighbours_are_those_of_one_process(trained: Trained) -> None:
    """Of 6 samples two processes have 3 each, half of what norms are to see."""
    more = [*MULTIGRID, "shapes.long_cycle=[]", "shapes.bn_base_size=6", "task.backbone.norm=batch"]
    one, two = trained("one", 1, *more), trained("two", 2, *more)
    assert "4 x 4, 12 x 6 x 6, 6 x 8 x 8, learning rate x 1\n" in (one / "train.log").read_text()
    assert "learning rate x 1, batch norm over 2 processes" in (two / "train.log").read_text()
    assert_same_learning(two, one, 1e-4)
    assert_same_learning(trained("sharded", 2, *more, "train.parallel=fsdp"), one, 1e-4)


def test_what_does_not_divide_is_refused_before_the_first_step(server: Server, together: Path, tmp_path: Path) -> None:
    arguments = ["train", str(together), "--out", str(tmp_path), *MULTIGRID, "shapes.milestones=[4]"]
    program = server.run(*arguments, status=2)
    assert "shapes.milestones: [4] must ascend between epoch 0 and 4" in program.err
