"""Words before the parser: the optional value of ``--resume``, and overrides with dashes."""

from pathlib import Path

import pytest

from opabinia.cli.command_line import with_resume_value, without_dashes

STEP = "runs/classification/digits/default/checkpoints/step-00000006"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--optimizer.lr=0.1", "optimizer.lr=0.1"),
        ("--data.train.transforms.0.size=64", "data.train.transforms.0.size=64"),
        *((word, word) for word in ("optimizer.lr=0.1", "--name=a.b=c", "--out=runs/a.b", "--resume", "--nmae=x")),
    ],
)
def test_dotted_paths_with_dashes_are_overrides(word: str, expected: str) -> None:
    assert without_dashes(word) == expected


def gets_default(*following: str) -> bool:
    """Return whether ``train RECIPE --resume`` followed by these words has the value "last"."""
    before = ["train", "classification/digits", "--resume"]
    words = with_resume_value([*before, *following])
    assert words in ([*before, "last", *following], [*before, *following])
    return len(words) > len(before) + len(following)


OTHERS = ["train.length=5ep", "--optimizer.lr=0.1", "-h", "classification/digits", "other.yaml", "", "x" * 5000, "\0"]
RESEMBLING = ["classification/two-step-distill", "step-lr.yaml", "runs/two-step-lr/default", "--out=runs/checkpoints/a"]
RESEMBLING += ["init=runs/a/checkpoints/step-00000006", "--init=runs/a/checkpoints/step-00000006"]


@pytest.mark.parametrize("following", [[], ["--name", "short"], *([word] for word in [*OTHERS, *RESEMBLING])])
def test_other_words_are_not_the_value_of_resume(following: list[str]) -> None:
    assert gets_default(*following)


@pytest.mark.parametrize(
    "path",
    [
        *(STEP, f"{STEP}/", f"./{STEP}", f"/data/{STEP}", "step-00000006", "last", "best"),
        *("runs/lr=0.1/default/checkpoints/step-00000006", "runs/a/checkpoints/last"),
        "runs/a/checkpoints/stpe-00000006",  # misspelt: reported as a missing checkpoint, not as an invalid override
    ],
)
def test_a_checkpoint_is_the_value_of_resume(path: str) -> None:
    assert not gets_default(path, "train.length=5ep", "--name", "short")


def test_checkpoints_and_runs_of_any_name_are_recognized_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("saved", "lr=0.1", "."):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "state.json").touch()
        assert not gets_default(name) and not gets_default(str(tmp_path / name))
    assert gets_default(), "the current folder is not used"
    run = tmp_path / "checkpoints" / "step-5"
    run.mkdir(parents=True)
    assert not gets_default(str(run))
    (run / "config.yaml").touch()
    assert gets_default(str(run))


@pytest.mark.parametrize(
    "arguments",
    [[], ["train", "a", "--resume=b"], ["eval", "runs/a", "--checkpoint", "last"], ["track", "a", "b", "--resume"]],
)
def test_other_commands_are_unchanged(arguments: list[str]) -> None:
    assert with_resume_value(arguments) == arguments
