from __future__ import annotations

import pytest
import torch

from opabinia.data.sources.digit_scenes import DigitScenes
from opabinia.data.sources.digits import Digits
from opabinia.data.sources.wrapper import ImageLabels


def test_labels_are_the_classes_of_the_objects() -> None:
    scenes = DigitScenes(split="val")
    with_objects, labels_only = ImageLabels(source=scenes), ImageLabels(source=scenes, objects=False)
    assert len(with_objects) == len(scenes) and with_objects.info.multi_label
    for index in range(5):
        expected = torch.zeros(10).index_fill(0, scenes[index]["labels"], 1)
        assert with_objects[index].keys() == scenes[index].keys() | {"label"}
        assert torch.equal(with_objects[index]["label"], expected) and torch.equal(
            torch.from_numpy(with_objects.info.labels[index]), expected
        )
        assert labels_only[index].keys() == {"image", "id", "label"}
    assert with_objects.info.boxes and with_objects.info.present is not None
    assert not labels_only.info.boxes and labels_only.info.present is None


def test_a_source_without_objects_is_refused() -> None:
    with pytest.raises(ValueError, match="source: Digits does not know which objects are in an image"):
        ImageLabels(source=Digits())
