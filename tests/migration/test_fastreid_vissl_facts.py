"""The tables for FastReID and VISSL have the originals' own values, and an answer to each of their names."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.migration import vissl_trunks
from opabinia.migration.tables import fastreid, vissl
from opabinia.migration.vissl_tasks import METHODS
from opabinia.migration.vissl_transforms import CONVERTERS, PRETEXTS
from tests.migration import original_defaults as originals
from tests.migration.original_defaults.fastreid_vissl import fastreid_facts, vissl_facts
from tests.migration.test_defaults import differences, unmentioned


def test_fastreid_defaults() -> None:
    original = originals.read("fastreid")["defaults"]
    assert differences(fastreid.DEFAULTS, original) == {}
    # Of a project that is refused, and NAIC20's filter of its own dataset.
    projects = {"TEST.DSR": "", "DATASETS.RM_LT": ""}
    assert unmentioned(original, fastreid.DEFAULTS, fastreid.REASONS, projects) == []


def test_every_part_of_fastreid_is_converted_or_rejected() -> None:
    facts = originals.read("fastreid")
    names, refused = facts["names"], set(fastreid.REFUSED)
    own = {name: models for name, (_, models) in fastreid.OWN_MODELS.items() if name != "build_resnetIR_backbone"}
    builders = {**fastreid.RESNETS, **fastreid.TIMM_MODELS, **own}
    assert set(names["BACKBONE_REGISTRY"]) - {"MyBackbone"} == {"build_vit_backbone", *builders} | (
        refused & set(names["BACKBONE_REGISTRY"])
    )
    without_weights = {
        "build_resnext_backbone": ["152x"],
        "build_repvgg_backbone": ["B1g2", "B2g2", "B3g2"],
        "build_mobilenetv2_backbone": ["0.25x", "0.1x"],
    }
    for name, depths in facts["depths"].items():
        if name in builders:
            assert sorted(builders[name]) == sorted(set(depths) - set(without_weights.get(name, []))), name
    assert set(names["META_ARCH_REGISTRY"]) - refused == {name for tasks in fastreid.TASKS.values() for name in tasks}
    assert set(names["REID_HEADS_REGISTRY"]) - refused == set(fastreid.TASKS)
    assert {*fastreid.SOURCES, *fastreid.ATTRIBUTE_SOURCES} <= set(names["DATASET_REGISTRY"])


DROPPED_BY_VISSL = (
    *("DATA.TRAIN.STRATIFIED_SAMPLER", "DATA.TRAIN.POWER_LAW_SAMPLER", "DATA.TEST.STRATIFIED_SAMPLER"),
    *("DATA.TEST.POWER_LAW_SAMPLER", "MODEL.NON_TRAINABLE_PARAMS", "MODEL.HEAD", "MODEL.TRUNK", "IMG_RETRIEVAL"),
    *("LOSS", "OPTIMIZER.head_optimizer_params", "OPTIMIZER.param_schedulers.lr_head", "DISTILLATION.TEACHER_MODEL"),
    *("LOW_SHOT_BENCHMARK", "GEO_LOCALIZATION"),
    *(
        f"DATA.{split}.{key}"
        for split in ("TRAIN", "TEST")
        for key in (
            *("REMOVE_IMG_PATH_PREFIX", "NEW_IMG_PATH_PREFIX", "RANDOM_SYNTHETIC_IMAGES", "RANDOM_SYNTHETIC_LABELS"),
            "DATA_LIMIT_SAMPLING.SKIP_NUM_SAMPLES",
        )
    ),
)
"""Keys and sections that change results and are reported first, as dropped."""


def test_vissl_defaults() -> None:
    original = originals.read("vissl")["defaults"]
    empty = {"DATA.TRAIN.COLLATE_FUNCTION_PARAMS", "DATA.TEST.COLLATE_FUNCTION_PARAMS"}
    not_listed = {"LOSS.cross_entropy_multiple_output_single_target.label_smoothing"}  # read with a default of 0
    of_classy_vision = {key for key in vissl.DEFAULTS if key.startswith("MODEL.TRUNK.REGNET.")}
    assert set(differences(vissl.DEFAULTS, original)) == empty | not_listed | of_classy_vision
    assert all(original[key] == vissl.DEFAULTS[key] == {} for key in empty)
    dropped = dict.fromkeys(DROPPED_BY_VISSL)
    assert unmentioned(original, vissl.DEFAULTS, vissl.REASONS, dropped) == []


def test_every_part_of_vissl_is_converted_or_rejected() -> None:
    facts = originals.read("vissl")
    trunks = {name.removesuffix("_fsdp") for name in facts["trunks"]}
    assert trunks == vissl_trunks.BUILDERS.keys() | vissl.REFUSED_TRUNKS.keys()
    assert set(facts["losses"]) <= METHODS.keys() | vissl.REFUSED_LOSSES.keys()
    read = {"ImgReplicatePil", "ImgPilToMultiCrop", "ImgPilMultiCropRandomApply", "MNISTImgPil2RGB", *PRETEXTS}
    reported = {
        *("ImgPil2LabTensor", "ImgPilRandomColorJitter", "ImgPilRandomPhotometric", "ImgPilResizeLargerSide"),
        *("ImgPilToRawTensor", "ImgToTensor", "OneHotEncode", "SSLTransformsWrapper", "VisslAutoAugment"),
    }
    assert set(facts["transforms"]) == read | reported | {"MaskedImageModeling"} | (
        CONVERTERS.keys() & set(facts["transforms"])
    )


@pytest.mark.parametrize(("system", "read"), [("fastreid", fastreid_facts), ("vissl", vissl_facts)])
def test_the_tables_are_those_of_a_checkout(system: str, read: Callable[[Path], dict[str, Any]]) -> None:
    checkout = os.environ.get(f"OPABINIA_{system.upper()}")
    if not checkout:
        pytest.skip(f"OPABINIA_{system.upper()} names no checkout of {system}")
    assert read(Path(checkout)) == originals.read(system)
