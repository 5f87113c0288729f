"""``--resume`` has an optional value: the next word is its value only if it names a checkpoint."""

from pathlib import Path

import pytest

from opabinia.cli.command_line import with_resume_value

STEP = "runs/classification/digits/default/checkpoints/step-00000006"


def gets_default(*following: str) -> bool:
    """Return whether ``train RECIPE --resume`` followed by these words has the value "last"."""
    before = ["train", "classification/digits", "--resume"]
    words = with_resume_value([*before, *following])
    assert words in ([*before, "last", *following], [*before, *following])
    return len(words) > len(before) + len(following)


@pytest.mark.parametrize(
    "following",
    [
        [],
        ["train.length=5ep"],
        ["--name", "short"],
        ["--optimizer.lr=0.1"],
        ["-h"],
        ["classification/digits"],
        ["other.yaml"],
        [""],
        # words that resemble a checkpoint
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
def test_other_words_are_not_its_value(following: list[str]) -> None:
    assert gets_default(*following)


@pytest.mark.parametrize(
    "path",
    [
        STEP,
        f"{STEP}/",
        f"./{STEP}",
        f"/data/{STEP}",
        "step-00000006",
        "runs/lr=0.1/default/checkpoints/step-00000006",
        "runs/a/checkpoints/stpe-00000006",  # misspelt: reported as a missing checkpoint, not as an invalid override
        "runs/a/checkpoints/last",
        "last",
        "best",
    ],
)
def test_a_checkpoint_is_its_value(path: str) -> None:
    assert not gets_default(path, "train.length=5ep", "--name", "short")


def test_a_checkpoint_of_any_name_is_recognized_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("saved", "lr=0.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").touch()
        assert not gets_default(name)
        assert not gets_default(str(tmp_path / name))


def test_a_run_folder_of_any_name_is_not_its_value(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "step-5"
    run.mkdir(parents=True)
    assert not gets_default(str(run))
    (run / "config.yaml").touch()
    assert gets_default(str(run))


def test_without_a_value_the_current_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").touch()
    monkeypatch.chdir(tmp_path)
    assert gets_default()


@pytest.mark.parametrize("arguments", [[], ["train", "a", "--resume=b"], ["eval", "runs/a", "--checkpoint", "last"]])
def test_other_commands_are_unchanged(arguments: list[str]) -> None:
    assert with_resume_value(arguments) == arguments
