"""Arrays that are written in parts are read back exactly."""

import json
from pathlib import Path

import numpy as np
import pytest

from opabinia.contracts import DataMismatch
from opabinia.inference import feature_files
from opabinia.inference.feature_files import FeatureRows, NpyFiles, Parquet, load_array, read_rows
from opabinia.runtime.json_files import InvalidFile

IDS = ['"0\n', "1, ü", "c/2\\.png", "\udcff3", "  4 "]
"""Names of files with special characters; one is not valid UTF-8."""


def feature_rows() -> list[FeatureRows]:
    """Return features and cameras of five samples, in parts of 3 and 2."""
    numbers = np.arange(5)
    columns = {"features": np.float32(numbers[:, None] * np.ones(2)), "cameras": numbers % 2}
    return [
        FeatureRows({name: array[part] for name, array in columns.items()}, IDS[part])
        for part in (slice(3), slice(3, 5))
    ]


def write(writer: NpyFiles | Parquet, parts: list[FeatureRows]) -> None:
    for part in parts:
        writer.append(part)
    writer.close()


def test_numpy_reads_the_arrays(tmp_path: Path) -> None:
    write(NpyFiles(tmp_path), feature_rows())
    features = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert isinstance(features, np.memmap) and features.dtype == np.float32
    assert features.tolist() == [[number, number] for number in range(5)]
    assert np.load(tmp_path / "cameras.npy").tolist() == [0, 1, 0, 1, 0]
    assert json.loads((tmp_path / "ids.json").read_text()) == IDS


def test_a_damaged_header_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "features.npy"
    np.save(file, np.zeros((2, 3), np.float32))
    for old, new in [
        (b"(2, 3)", b"(2, (3"),
        (b"}", b" "),
        (b"'shape'", b"'shape\n"),
        (b"<f4", b"|O8"),
        (b"(2", b"\xff2"),
    ]:
        (tmp_path / "damaged.npy").write_bytes(file.read_bytes().replace(old, new, 1))
        with pytest.raises(InvalidFile, match=r"damaged\.npy: not a"):
            load_array(tmp_path / "damaged.npy")


@pytest.mark.parametrize(("most", "rows"), [(1, 1), (2 * 16, 2), (5 * 16, 5), (2**20, 5)])
def test_rows_are_read_in_parts(tmp_path: Path, most: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_files, "MAX_BYTES", most)
    write(NpyFiles(tmp_path), feature_rows())
    parts = list(read_rows(tmp_path))
    assert len(parts[0].ids) == rows and [name for part in parts for name in part.ids] == IDS
    assert np.array_equal(np.concatenate([part.columns["features"] for part in parts])[:, 0], np.arange(5))
    assert parts[0].columns.keys() == {"features", "cameras"}


def test_an_empty_table_is_read(tmp_path: Path) -> None:
    write(NpyFiles(tmp_path), [])
    assert json.loads((tmp_path / "ids.json").read_text()) == [] == list(read_rows(tmp_path))


def test_a_table_has_the_same_rows_in_groups(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write(Parquet(tmp_path), feature_rows())
    file = parquet.ParquetFile(tmp_path / "features.parquet")
    assert file.num_row_groups == 2
    table = file.read()
    assert str(table.schema.field("features").type) == "fixed_size_list<element: float>[2]"
    assert table["features"].to_pylist() == [[number, number] for number in range(5)]
    assert table["cameras"].to_pylist() == [0, 1, 0, 1, 0]
    assert table["ids"].to_pylist() == [*IDS[:3], r"\udcff3", IDS[4]]


@pytest.mark.parametrize("form", [NpyFiles, Parquet])
@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            np.ones((2, 3), np.float32),
            "features: 3 float32 for some samples, 2 float32 for others; if images differ",
        ),
        (np.ones((2, 2), np.float64), "features: 2 float64 for some samples, 2 float32"),
        (np.ones(2, np.float32), "features: one float32 for some samples"),
    ],
    ids=["length", "type", "shape"],
)
def test_features_of_another_shape_or_type_are_an_error(
    tmp_path: Path, form: type[NpyFiles] | type[Parquet], features: np.ndarray, message: str
) -> None:
    if form is Parquet:
        pytest.importorskip("pyarrow")
    rows = FeatureRows({"features": np.ones((2, 2), np.float32)}, ["a", "b"])
    writer = form(tmp_path)
    writer.append(rows)
    with pytest.raises(DataMismatch, match=message):
        writer.append(FeatureRows({"features": features}, ["c", "d"]))
    writer.close()
