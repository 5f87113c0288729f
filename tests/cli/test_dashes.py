import pytest

from opabinia.cli.command_line import without_dashes


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--optimizer.lr=0.1", "optimizer.lr=0.1"),
        ("--data.train.transforms.0.size=64", "data.train.transforms.0.size=64"),
        ("optimizer.lr=0.1", "optimizer.lr=0.1"),
        ("--name=a.b=c", "--name=a.b=c"),
        ("--out=runs/a.b", "--out=runs/a.b"),
        ("--resume", "--resume"),
        ("--nmae=x", "--nmae=x"),
    ],
)
def test_dotted_paths_with_dashes_are_overrides(word: str, expected: str) -> None:
    assert without_dashes(word) == expected
