"""The same command gives bitwise identical results; another seed gives others."""

from tests.faults.runs import RECIPE, Outcome, Run, Trainings, assert_same, checkpoint


def test_the_same_command_gives_identical_results(run: Run, uninterrupted: Outcome) -> None:
    run.train("data.num_workers=3")
    assert_same(Outcome.of(run.folder), uninterrupted)


def test_every_source_of_randomness_changes_the_weights(trainings: Trainings) -> None:
    """Otherwise the other tests would prove little."""
    overrides = ["data.train.transforms=[]", "data.mix=[]", "task.dropout=0", "data.shuffle=false", "seed=4"]
    runs = [trainings(RECIPE, 1, "train.length=2it", *changed) for changed in ([], *([each] for each in overrides))]
    assert len({(checkpoint(folder, 2) / "model.safetensors").read_bytes() for folder in runs}) == 6
