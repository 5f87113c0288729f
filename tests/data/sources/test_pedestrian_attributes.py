from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from opabinia.data.settings import Stream
from opabinia.data.sources import market1501_attributes, pa100k
from opabinia.training.samples import read_dataset_info


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 8)).save(path)


def test_pa100k(tmp_path: Path) -> None:
    names = np.array([["1.jpg"], ["2.jpg"]], dtype=object)
    content = {f"{split}_images_name": names for split in ("train", "val", "test")}
    labels = {f"{split}_label": np.array([[1, 0, 1], [0, 0, 1]], np.uint8) for split in ("train", "val", "test")}
    attributes = np.array([["Female"], ["Hat"], ["Bag"]], dtype=object)
    savemat(tmp_path / "annotation.mat", {**content, **labels, "attributes": attributes})
    for name in ("1.jpg", "2.jpg"):
        write_image(tmp_path / "PA-100K" / "data" / name)
    (tmp_path / "annotation.mat").rename(tmp_path / "PA-100K" / "annotation.mat")

    source = pa100k(root=tmp_path, split="val")
    assert source.classes == ("Female", "Hat", "Bag") and source.info.multi_label
    assert read_dataset_info(Stream(source=source)).label_shares == (0.5, 0.0, 1.0)
    assert source[0]["label"].tolist() == [1, 0, 1] and source[1]["id"] == "data/2.jpg"
    (tmp_path / "PA-100K" / "data" / "2.jpg").unlink()
    with pytest.raises(ValueError, match=r"annotation\.mat: 1 of 2 images are not in"):
        pa100k(root=tmp_path)
    (tmp_path / "PA-100K" / "annotation.mat").write_bytes(b"no MATLAB file" * 20)
    with pytest.raises(ValueError, match=r"annotation\.mat is no MATLAB file"):
        pa100k(root=tmp_path)


def test_attributes_of_identities(tmp_path: Path) -> None:
    def table(identities: list[str], hat: list[int], age: list[int]) -> dict[str, object]:
        return {"image_index": np.array(identities, dtype=object), "hat": np.array(hat), "age": np.array(age)}

    tables = {"train": table(["0002", "0007"], [1, 2], [1, 3]), "test": table(["0003", "0004"], [2, 2], [4, 1])}
    savemat(tmp_path / "market_attribute.mat", {"market_attribute": tables})
    for name in ("0002_c1s1_1_01.jpg", "0007_c2s1_1_01.jpg", "0007_c1s1_2_01.jpg"):
        write_image(tmp_path / "bounding_box_train" / name)
    write_image(tmp_path / "query" / "0003_c1s1_1_01.jpg")
    for name in ("0000_c1s1_9_01.jpg", "-1_c1s1_9_01.jpg", "0003_c2s1_1_01.jpg"):
        write_image(tmp_path / "bounding_box_test" / name)

    source = market1501_attributes(root=tmp_path)
    assert source.classes == ("age=1", "age=2", "age=3", "age=4", "hat")
    assert source.info.labels.tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 1, 0, 1]]
    test = market1501_attributes(root=tmp_path, split="test")
    assert test.classes == source.classes and test[0]["id"].endswith("0003_c2s1_1_01.jpg") and len(test) == 1
    assert test.info.labels.tolist() == [[0, 0, 0, 1, 1]]
    write_image(tmp_path / "bounding_box_train" / "0009_c1s1_1_01.jpg")
    with pytest.raises(ValueError, match=r"market_attribute\.mat has no attributes of the identities 0009 in train"):
        market1501_attributes(root=tmp_path)
