"""The importers' tables of defaults equal those of the original frameworks, value by value."""

import os
from pathlib import Path
from typing import Any

import pytest

from opabinia.migration.tables import basecls, detectron2
from tests.migration import original_defaults as originals


def differences(ours: dict[str, Any], original: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        key: (value, original.get(key, "absent"))
        for key, value in ours.items()
        if key not in original or not originals.equal(value, original[key])
    }


def unmentioned(original: dict[str, Any], *tables: dict[str, Any]) -> list[str]:
    """Return the keys of the original that the importer neither converts nor reports with a reason."""
    known = [key for table in tables for key in table]
    return [key for key in original if not any(key == name or key.startswith(f"{name}.") for name in known)]


def test_basecls() -> None:
    facts = originals.read("basecls")
    assert set(basecls.FAMILIES) == set(facts)
    for family, values in basecls.FAMILIES.items():
        original: dict[str, Any] = {}
        name = family
        while name in facts:
            original, name = facts[name]["values"] | original, facts[name]["base"]
        ours = {**basecls.DEFAULTS, **values}
        assert differences(ours, original) == {}, family
        assert unmentioned(original, ours, basecls.REASONS, {"model.name": ""}) == [], family


def test_detectron2() -> None:
    original = originals.read("detectron2")
    # Read by detectron2's RandomSubsetTrainingSampler, and set by no file of it.
    ours = {key: value for key, value in detectron2.DEFAULTS.items() if key != "DATALOADER.RANDOM_SUBSET_RATIO"}
    assert differences(ours, original) == {}
    assert unmentioned(original, ours, detectron2.REASONS) == []


@pytest.mark.parametrize("system", ["basecls", "detectron2"])
def test_the_tables_are_those_of_a_checkout(system: str) -> None:
    checkout = os.environ.get(f"OPABINIA_{system.upper()}")
    if not checkout:
        pytest.skip(f"OPABINIA_{system.upper()} names no checkout of {system}")
    table = {"basecls": originals.basecls_defaults, "detectron2": originals.detectron2_defaults}[system]
    assert table(Path(checkout)) == originals.read(system)
