"""The configs packaged with other frameworks: how many are converted, and why the others are rejected.

The folders of checkouts are named by OPABINIA_BASECLS, OPABINIA_DETECTRON2, OPABINIA_FASTREID, OPABINIA_MMACTION,
OPABINIA_MMDETECTION, OPABINIA_MMPRETRAIN, OPABINIA_PADDLEVIDEO, OPABINIA_PYSLOWFAST and OPABINIA_VISSL; without them
the tests are skipped. Such configs written by hand are in ``cases``.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from opabinia.config import ConfigError
from opabinia.migration import System, convert
from tests.migration.recipes import resolve

VISSL_OPTIONS = {
    *("models", "transforms", "optimization", "optimizations", "optimizers", "optimizer", "datasets", "dataset"),
    *(
        "loss",
        "models_coarse",
        "models_fine",
        "models_middle",
        "models_in1k",
        "models_in22k",
        "partitioning",
        "permutations",
    ),
    *("epochs", "heads", "other_styles", "semi_sup_datasets", "duration", "student", "teacher", "crops", "ablation"),
    *("trunk_only", "with_head"),
}
"""Folders of parts that are merged into other configs."""


def fastreid_files(checkout: Path) -> Iterator[Path]:
    yield from (file for folder in ("configs", "projects/*/configs") for file in checkout.glob(f"{folder}/**/*.y*ml"))


def vissl_files(checkout: Path) -> Iterator[Path]:
    """Yield the configs that are complete, without those of detectron2."""
    root = checkout / "configs" / "config"
    for file in root.rglob("*.yaml"):
        folders = set(file.relative_to(root).parts[:-1])
        if "object_detection" not in folders and not folders & VISSL_OPTIONS:
            yield file


DETECTORS = "faster_rcnn mask_rcnn cascade_rcnn retinanet fcos rpn pascal_voc dcn dcnv2 gn regnet lvis strong_baselines"
CLASSIFIERS = "resnet resnext seresnet regnet res2net densenet mobilenet_v2 mobilenet_v3 efficientnet convnext deit3"
METHODS = "mocov2 mocov3 simclr byol simsiam swav barlowtwins mae densecl"
"""Folders of the architectures and methods that Opabinia has, and DenseCL."""


def files_of(folders: str) -> Callable[[Path], Iterable[Path]]:
    return lambda checkout: (file for folder in folders.split() for file in checkout.glob(f"configs/{folder}/*.py"))


FILES: dict[System, Callable[[Path], Iterable[Path]]] = {
    "basecls": lambda checkout: checkout.glob("zoo/public/*/*.py"),
    "detectron2": lambda checkout: checkout.glob("configs/**/*.yaml"),
    "fastreid": fastreid_files,
    "mmaction": lambda checkout: checkout.glob("configs/recognition/**/*.py"),
    "mmdetection": files_of(f"{DETECTORS} scratch resnet_strikes_back"),
    "mmpretrain": files_of(f"{CLASSIFIERS} vision_transformer swin_transformer {METHODS}"),
    "vissl": vissl_files,
}

EXPECTED: dict[System, dict[str, int]] = {
    "basecls": {"": 139},
    "detectron2": {
        "": 88,
        "DATASETS.TRAIN": 1,
        "MODEL.PROPOSAL_GENERATOR.NAME": 3,
    },
    "fastreid": {"": 69, "MODEL.META_ARCHITECTURE": 1},
    "mmaction": {
        "": 53,
        "model.backbone.type": 50,
        "model.backbone.arch": 2,
        "model.cls_head.type": 5,
        "code": 3,
        "model.backbone.non_local": 3,
        "model.backbone.in_channels": 2,
        "train_dataloader": 2,
        "model.backbone.inflate": 1,
        "model.backbone.non_local_cfg.mode": 1,
        "model.backbone.dim_mul_in_attention": 1,
        "model.type": 1,
        "model.backbone.slow_pathway.depth": 1,
    },
    "mmdetection": {
        "": 212,
        "model.type": 3,
        "model.roi_head.bbox_roi_extractor.roi_layer.type": 2,
        "model.roi_head.bbox_head.loss_bbox.type": 1,
        "model.rpn_head.type": 1,
        "model.train_cfg.rcnn.sampler.type": 1,
        "model.test_cfg.rcnn.nms.type": 1,
        "model.bbox_head.dcn_on_last_conv": 1,
        "model.backbone.dcn.type": 1,
    },
    "mmpretrain": {"": 147, "model.backbone.type": 6, "code": 1, "model.type": 1},
    "vissl": {
        "": 187,
        "LOSS.name": 2,
        "MODEL.TRUNK.NAME": 4,
        "DATA.TRAIN.DATASET_NAMES": 2,
        "MODEL.TRUNK.VISION_TRANSFORMERS.HIDDEN_DIM": 1,
        "GEO_LOCALIZATION": 1,
        "engine_name": 1,
    },
}
"""Number of configs that are converted (the empty key) and refused at each key; documented in docs/coming_from."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "pattern", "expected"),
    [
        ("paddlevideo", "configs/recognition/**/*.y*ml", (47, 23)),  # PaddlePaddle/PaddleVideo at ed245e9
        ("pyslowfast", "configs/**/*.yaml", (109, 82)),  # facebookresearch/SlowFast at 287ec00
    ],
)
def test_number_of_configs_of_a_checkout(
    system: System, pattern: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    """The tables in docs/coming_from: the number of configs, and of those that are converted."""
    checkout = os.environ.get(f"OPABINIA_{system.upper()}")
    if not checkout:
        pytest.skip(f"OPABINIA_{system.upper()} names no checkout of {system}")
    files, converted = list(Path(checkout).glob(pattern)), 0
    for file in files:
        with suppress(ConfigError):
            recipe = convert(system, file)
            resolve(recipe, tmp_path)
            converted += 1
    assert (len(files), converted) == expected


@pytest.mark.slow
@pytest.mark.parametrize("system", EXPECTED)
def test_configs_of_a_checkout(system: System, tmp_path: Path) -> None:
    checkout = os.environ.get(f"OPABINIA_{system.upper()}")
    if not checkout:
        pytest.skip(f"OPABINIA_{system.upper()} names no checkout of {system}")
    files = FILES[system](Path(checkout))
    keys: Counter[str] = Counter()
    for file in sorted(files):
        try:
            recipe = convert(system, file)
        except ConfigError as error:
            keys[error.problems[0].path or "code"] += 1
        else:
            resolve(recipe, tmp_path)
            keys[""] += 1
    assert keys == EXPECTED[system]
