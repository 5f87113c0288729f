"""The values that annotation files may hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opabinia.data.sources import Table, VideoList, coco
from opabinia.data.sources.annotation_values import (
    MAX_SIDE,
    errors_in,
    flag,
    leaves_root,
    numbers,
    parse_flag,
    shortened,
    text,
)
from opabinia.data.sources.labels import multi_hot
from tests.data.sources.hostile import deep


def test_texts_numbers_and_flags() -> None:
    assert text(" a ") == "a" and text(5) == "5" and text(0.5) == "0.5"
    for wrong in (None, True, [], ["a"], {"a": 1}, "", "nan", float("nan"), "a" * 5000, 10**4200):
        with pytest.raises(ValueError, match=r"neither text|not a name|characters"):
            text(wrong)
    assert numbers([1, 2.5]) == [1, 2.5] and numbers([]) == []
    for values in ([True], ["1"], [None], [float("nan")], [1, float("nan")], [1e9], [-1e9], [10**400], "1", [1, 2, 3]):
        assert numbers(values, len(values) if len(values) < 3 else 2) is None
    assert [flag(value) for value in (0, 1, True, False, None)] == [False, True, True, False, False]
    assert [parse_flag(value) for value in ("0", "1", "true", "FALSE")] == [False, True, True, False]
    for wrong in ("0", 2, 0.5, [1], {}):
        with pytest.raises(ValueError, match="none of 0, 1, true and false"):
            flag(wrong)
    assert len(shortened(deep(10))) <= 60
    assert np.float32(MAX_SIDE - 1) == MAX_SIDE - 1, "float32 holds the largest coordinate"
    with pytest.raises(ValueError, match="too many for the memory"):
        multi_hot([[0]] * 10_000, 1_000_000)


@pytest.mark.parametrize(
    ("error", "types", "message"),
    [(ValueError("no"), (), "a: no"), (OSError(13, "Denied", "b"), (OSError,), "a: Denied"), (KeyError("k"), (), None)],
)
def test_errors_begin_with_their_place(error: Exception, types: tuple[type[Exception], ...], message: str) -> None:
    with pytest.raises(ValueError if message else type(error)) as caught, errors_in("a: ", *types):
        raise error
    assert message is None or str(caught.value) == message


@pytest.mark.parametrize(
    ("root", "name", "leaves"),
    [
        ("/data", "a/../b.png", False),
        ("/data", "..b.png", False),
        ("/data", "a/../../b.png", True),
        ("/data", "/etc/passwd", True),
        ("/data", "/data/a.png", False),
        ("/data", "/database/a.png", True),
        ("/", "/etc/passwd", False),
    ],
)
def test_paths_that_lead_out_of_root(root: str, name: str, leaves: bool) -> None:
    assert leaves_root(Path(root), name) == leaves == leaves_root(Path(root), name.encode())


@pytest.mark.parametrize("file", ["train.json", "coco.json", "a.jsonl", "labels.json"])
def test_deep_json_is_an_error_of_every_reader(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("[" * 100_000)
    (tmp_path / "0.mp4").touch()
    (tmp_path / "list.txt").write_text("0.mp4 a")
    with pytest.raises(ValueError, match=rf"{file}.* cannot be read: maximum recursion"):
        if file == "coco.json":
            coco(root=tmp_path, file=tmp_path / file)
        elif file == "a.jsonl":
            Table(file=tmp_path / file)
        elif file == "labels.json":
            VideoList(file=tmp_path / "list.txt", class_file=tmp_path / file)
        else:
            VideoList(file=tmp_path / file)
