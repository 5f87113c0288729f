"""Images in parquet files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from opabinia.data.sources import ParquetImages
from tests.data.layouts.folders import encoded_image

pyarrow = pytest.importorskip("pyarrow")
IMAGES = [encoded_image(".png", "L", (value,)) for value in (10, 20, 30)]


def write(file: Path, columns: dict[str, Any], names: list[str] | None = None) -> str:
    """Write a file, with names of classes as the ``datasets`` library stores them."""
    from pyarrow import parquet

    table = pyarrow.table(columns)
    if names is not None:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, file, row_group_size=2)
    return str(file)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("labels", "names", "classes", "expected"),
    [
        ([1, 0, 1], ["cat", "dog"], ("cat", "dog"), [1, 0, 1]),
        ([2, 0, 1], None, ("0", "1", "2"), [2, 0, 1]),
        (["b", "a", "b"], None, ("a", "b"), [1, 0, 1]),
    ],
)
def test_samples(
    packed: bool,
    labels: list[Any],
    names: list[str] | None,
    classes: tuple[str, ...],
    expected: list[int],
    tmp_path: Path,
) -> None:
    images: list[Any] = [{"bytes": image, "path": "x.png"} for image in IMAGES] if packed else IMAGES
    files = [write(tmp_path / f"{number}.parquet", {"image": images, "label": labels}, names) for number in range(2)]
    source = ParquetImages(files=files, channels=1)
    assert source.classes == classes and len(source) == 6
    assert source.info.labels is not None and source.info.labels.tolist() == expected * 2
    assert [int(source[index]["image"][0, 0, 0]) for index in range(6)] == [10, 20, 30] * 2
    assert source.id(4) == "1.parquet/1" and source[4]["label"] == expected[1]


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({"image": IMAGES}, {}, "no column 'label'; columns: image"),
        ({"image": [1, 2], "label": [0, 1]}, {}, "holds int64, expected the bytes"),
        ({"image": IMAGES, "label": [0, None, 1]}, {}, "is empty in 1 of 3 rows"),
        ({"image": IMAGES, "label": [0, -1, 1]}, {}, "labels -1 to 1 for 2 classes"),
        ({"image": IMAGES, "label": ["a", "b", "c"]}, {"classes": ["a", "b"]}, "c are none of the 2 classes"),
    ],
)
def test_errors(columns: dict[str, Any], given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        ParquetImages(files=[write(tmp_path / "a.parquet", columns)], **given)


def test_rows_without_an_image(tmp_path: Path) -> None:
    source = ParquetImages(files=[write(tmp_path / "a.parquet", {"image": [None, *IMAGES[1:]], "label": [0, 1, 0]})])
    with pytest.raises(ValueError, match=r"a.parquet/0 has no image"):
        source[0]


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"a.parquet is not a parquet file"):
        ParquetImages(files=[str(tmp_path / "a.parquet")])


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.parquet", {"image": IMAGES, "label": [0, 1, 2]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install"):
        ParquetImages(files=[file])
