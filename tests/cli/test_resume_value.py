"""``--resume`` takes a value or stands alone; what stands behind it decides."""

from pathlib import Path

import pytest

from opabinia.cli.command_line import with_resume_value

STEP = "runs/classification/digits/default/checkpoints/step-00000006"


def alone(*behind: str) -> bool:
    """Whether ``train RECIPE --resume`` with these words behind it is given the value "last"."""
    before = ["train", "classification/digits", "--resume"]
    found = with_resume_value([*before, *behind])
    assert found in ([*before, "last", *behind], [*before, *behind])
    return len(found) > len(before) + len(behind)


@pytest.mark.parametrize(
    "behind",
    [
        [],
        ["train.length=5ep"],
        ["--name", "short"],
        ["--optimizer.lr=0.1"],
        ["-h"],
        ["classification/digits"],
        ["other.yaml"],
        [""],
        # words that look a little like a checkpoint
        ["classification/two-step-distill"],
        ["step-lr.yaml"],
        ["runs/two-step-lr/default"],
        ["init=runs/a/checkpoints/step-00000006"],
        ["--init=runs/a/checkpoints/step-00000006"],
        ["--out=runs/checkpoints/a"],
        ["x" * 5000],
        ["\0"],
    ],
)
def test_it_stands_alone(behind: list[str]) -> None:
    assert alone(*behind)


@pytest.mark.parametrize(
    "path",
    [
        STEP,
        f"{STEP}/",
        f"./{STEP}",
        f"/data/{STEP}",
        "step-00000006",
        "runs/lr=0.1/default/checkpoints/step-00000006",
        "runs/a/checkpoints/stpe-00000006",  # misspelt: said so as a checkpoint, not as an override
        "runs/a/checkpoints/last",
        "last",
        "best",
    ],
)
def test_a_checkpoint_is_its_value(path: str) -> None:
    assert not alone(path, "train.length=5ep", "--name", "short")


def test_a_checkpoint_of_any_name_is_known_by_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kept", "lr=0.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").touch()
        assert not alone(name)
        assert not alone(str(tmp_path / name))


def test_a_run_folder_is_the_recipe_whatever_it_is_called(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "step-5"
    run.mkdir(parents=True)
    assert not alone(str(run))
    (run / "config.yaml").touch()
    assert alone(str(run))


def test_in_a_checkpoints_folder_nothing_is_still_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").touch()
    monkeypatch.chdir(tmp_path)
    assert alone()


@pytest.mark.parametrize("arguments", [[], ["train", "a", "--resume=b"], ["eval", "runs/a", "--checkpoint", "last"]])
def test_everything_else_stays(arguments: list[str]) -> None:
    assert with_resume_value(arguments) == arguments
