"""Files of arrays that are computed again when they are damaged."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opabinia.runtime.array_files import Arrays, cached_arrays


def decode(arrays: Arrays) -> float:
    if arrays["numbers"].shape != (1000,):
        raise ValueError("not 1000 numbers")
    return float(arrays["numbers"].sum())


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)


def other(path: Path, **arrays: float) -> None:
    np.savez(path, **{name: np.zeros(int(size)) for name, size in arrays.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage",
    [
        change,
        lambda path: path.write_bytes(path.read_bytes()[:3000]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not an archive"),
        lambda path: np.savez(path, numbers=np.array([{}], object)),
        lambda path: other(path, numbers=999),
        lambda path: other(path, others=1000),
    ],
)
def test_damaged_files_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    path, made = tmp_path / "folder" / "sum.npz", list[int]()

    def compute() -> Arrays:
        made.append(1)
        return {"numbers": np.arange(1000.0)}

    with caplog.at_level(logging.WARNING, "opabinia"):
        assert [cached_arrays(path, compute, decode) for _ in range(2)] == [499500] * 2 and len(made) == 1
        assert not caplog.text
        damage(path)
        assert [cached_arrays(path, compute, decode) for _ in range(2)] == [499500] * 2 and len(made) == 2
    assert "sum.npz is broken and made again" in caplog.text
    assert [file.name for file in path.parent.iterdir()] == ["sum.npz"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder").write_text("a file")
    assert cached_arrays(tmp_path / "folder" / "sum.npz", lambda: {"numbers": np.ones(1000)}, decode) == 1000
    assert "is not kept" in caplog.text
