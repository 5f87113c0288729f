from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from opabinia.data.sources import Cuhk03Archive

h5py = pytest.importorskip("h5py")


def write(folder: Path) -> None:
    """Write two pairs of cameras with two persons each: images 1 and 6 of each, and image 7 of the last person."""
    with h5py.File(folder / "cuhk-03.mat", "w") as archive:
        empty = archive.create_dataset("empty", data=np.zeros(2, np.uint64))

        def image(pair: int, person: int, number: int) -> object:
            if number not in ((1, 6, 7) if (pair, person) == (2, 2) else (1, 6)):
                return empty.ref
            pixels = np.full((3, 4, 9), 10 * pair + person, np.uint8)  # 3 x width x height
            pixels[:, 0, 0] = number
            return archive.create_dataset(f"image{pair}{person}{number}", data=pixels).ref

        def cells(name: str, rows: list[list[object]]) -> object:
            return archive.create_dataset(name, data=np.array(rows, dtype=h5py.ref_dtype), dtype=h5py.ref_dtype).ref

        pairs = [
            cells(f"pair{pair}", [[image(pair, person, number) for person in (1, 2)] for number in range(1, 11)])
            for pair in (1, 2)
        ]
        cells("labeled", [pairs])
        test_set = archive.create_dataset("set0", data=np.array([[1.0, 2.0], [2.0, 2.0]])).ref  # (1, 2), (2, 2)
        cells("testsets", [[test_set]])


def test_both_protocols(tmp_path: Path) -> None:
    write(tmp_path)
    train = Cuhk03Archive(root=tmp_path, test_set=0)
    assert train.classes == ("1_001", "2_001") and len(train) == 4 and train.info.cameras is not None
    test = Cuhk03Archive(root=tmp_path, split="test", test_set=0)
    names = ["1_002_1_01.png", "2_002_1_01.png", "1_002_2_06.png", "2_002_2_06.png", "2_002_2_07.png"]
    assert [test.id(index) for index in range(len(test))] == names
    assert test.info.queries is not None and test.info.queries.tolist() == [True, True, False, False, False]
    sample = test[4]
    assert sample["image"].shape == (3, 9, 4) and sample["image"][0, 0, 0] == 7 and sample["image"][0, 1, 0] == 22
    assert (sample["camera"], sample["label"]) == (1, 1)
    lists = {"train_idx": [1, 2, 4, 5], "query_idx": [3], "gallery_idx": [6, 7]}
    files = [f"{name}.png" for name in ("1_001_1_01", "1_001_2_06", "2_002_1_01", "1_002_1_01", "1_002_2_06")]
    content = {"filelist": np.array([*files, "2_002_2_06.png", "2_002_2_07.png"], dtype=object)[:, None]}
    savemat(tmp_path / "cuhk03_new_protocol_config_labeled.mat", {**content, **lists})
    new = Cuhk03Archive(root=tmp_path)
    assert new.classes == ("1_001", "1_002") and new[3]["image"][0, 0, 0] == 6
    assert len(Cuhk03Archive(root=tmp_path, split="test")) == 3
    with pytest.raises(ValueError, match=r"detected\.mat"):
        Cuhk03Archive(root=tmp_path, boxes="detected")
    with pytest.raises(ValueError, match="has no labeled images and test sets of CUHK03"):
        Cuhk03Archive(root=tmp_path, test_set=5)
    (tmp_path / "cuhk-03.mat").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"cuhk-03\.mat cannot be read"):
        Cuhk03Archive(root=tmp_path, test_set=0)
