"""Panoptic data as semantic segmentation of stuff."""

import pytest

from opabinia.data.sources import StuffMaps, digit_maps


def test_objects_are_one_class_and_stuff_keeps_its_names() -> None:
    panoptic = digit_maps(split="val", panoptic=True)
    source = StuffMaps(source=panoptic)
    assert source.classes == ("things", "background") and not source.info.thing_labels
    sample, original = source[3], panoptic[3]
    assert sample.keys() == original.keys() - {"boxes", "labels", "masks", "ground_truth"}
    assert ((sample["mask"] == 0) == (original["mask"] != 0)).all()
    ground_truth = sample["ground_truth_map"]
    assert ground_truth.segments is None and (ground_truth.labels == sample["mask"].numpy()).all()
    assert source.id(3) == panoptic.id(3) and source.fingerprint() != panoptic.fingerprint()
    assert len(source) == len(panoptic)


def test_errors() -> None:
    with pytest.raises(ValueError, match="ObjectMaps is not panoptic"):
        StuffMaps(source=digit_maps(split="val"))
    with pytest.raises(ValueError, match="things: 'background' is a class of the source"):
        StuffMaps(source=digit_maps(split="val", panoptic=True), things="background")
