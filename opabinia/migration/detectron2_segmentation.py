"""Conversion of detectron2's semantic and panoptic segmentation: the parts that its detectors do not have."""

from __future__ import annotations

import re
from typing import Any

from opabinia.config.errors import show
from opabinia.migration.recipe import Recipe, Reference, Table, lookup
from opabinia.migration.tables.detectron2 import NECKS, NORMS

NO_DETECTOR = dict.fromkeys(
    (
        "MODEL.ANCHOR_GENERATOR",
        "MODEL.RPN",
        "MODEL.ROI_HEADS",
        "MODEL.ROI_BOX_HEAD",
        "MODEL.ROI_MASK_HEAD",
        "MODEL.PANOPTIC_FPN",
    ),
    "this model has no detector",
)
"""Reasons for sections that semantic segmentation does not read."""

COMBINATION: Table = {
    "max_overlap": "COMBINE.OVERLAP_THRESH",
    "min_area": "COMBINE.STUFF_AREA_LIMIT",
    "min_score": "COMBINE.INSTANCES_CONFIDENCE_THRESH",
}


def convert_semantic(recipe: Recipe) -> None:
    """Convert ``SemanticSegmentor``: a backbone, a feature pyramid and a semantic head."""
    neck = recipe.foreign("MODEL.BACKBONE.NAME")
    if NECKS.get(neck) != "fpn":
        supported = "supported: build_resnet_fpn_backbone"
        raise recipe.foreign.problem("MODEL.BACKBONE.NAME", f"{show(neck)} is not supported", supported)
    recipe.put("task.name", "segmentation", "MODEL.META_ARCHITECTURE")
    recipe.put("task.backbone", {})
    recipe.put("task.decoder", {"name": "fpn", "neck": {"name": "fpn"}}, "MODEL.BACKBONE.NAME")
    recipe.convert("MODEL.FPN.OUT_CHANNELS", "task.decoder.neck.channels")
    recipe.convert("MODEL.FPN.NORM", "task.decoder.neck.norm", lookup(NORMS))
    _convert_head(recipe)
    weight = recipe.foreign("MODEL.SEM_SEG_HEAD.LOSS_WEIGHT")
    loss = {"name": "cross_entropy", "weight": weight}
    recipe.put("task.losses", [loss], "MODEL.SEM_SEG_HEAD.LOSS_WEIGHT")


def convert_panoptic(recipe: Recipe) -> None:
    """Convert what ``PanopticFPN`` has in addition to its detector."""
    recipe.put("task.name", "panoptic", "MODEL.META_ARCHITECTURE")
    recipe.put("task.decoder", {"name": "fpn", "neck": None}, "MODEL.SEM_SEG_HEAD.NAME")
    _convert_head(recipe)
    recipe.convert("MODEL.SEM_SEG_HEAD.LOSS_WEIGHT", "task.decoder_weight")
    recipe.convert_section("MODEL.PANOPTIC_FPN", "task", COMBINATION)
    if recipe.foreign("MODEL.PANOPTIC_FPN.INSTANCE_LOSS_WEIGHT") != 1:
        recipe.refuse("MODEL.PANOPTIC_FPN.INSTANCE_LOSS_WEIGHT", "only 1 is supported; scale the other losses")
    if not recipe.foreign("MODEL.MASK_ON"):
        recipe.refuse("MODEL.MASK_ON", "False: panoptic segmentation needs instance masks")
    if recipe.foreign("TEST.AUG.ENABLED"):
        recipe.refuse("TEST.AUG.ENABLED", "not supported for panoptic segmentation, as in detectron2")


def _convert_head(recipe: Recipe) -> None:
    """Convert the semantic head."""
    section = "MODEL.SEM_SEG_HEAD"
    expected = {
        "NAME": "SemSegFPNHead",
        "IN_FEATURES": ["p2", "p3", "p4", "p5"],
        "COMMON_STRIDE": 4,
        "IGNORE_VALUE": 255,
    }
    for name, value in expected.items():
        if recipe.foreign(f"{section}.{name}") != value:
            actual = show(recipe.foreign(f"{section}.{name}"))
            recipe.refuse(f"{section}.{name}", f"{actual} is not supported", f"supported: {show(value)}")
    recipe.convert(f"{section}.CONVS_DIM", "task.decoder.channels")
    recipe.convert(f"{section}.NORM", "task.decoder.norm", lookup({"GN": "group", "BN": "batch", "SyncBN": "batch"}))


def segmentation_source(recipe: Recipe, name: str, key: str) -> dict[str, Any]:
    """Convert a dataset with maps that detectron2 registers: COCO's panoptic ones, and Cityscapes.

    Args:
        recipe: with the task.
        name: of the dataset.
        key: that names it, for messages.

    Raises:
        ConfigError: the dataset has no maps, or detectron2 does not register it.
    """
    panoptic = re.fullmatch(r"coco_2017_(train|val)(_100)?_panoptic(?:_(separated|stuffonly))?", name)
    cityscapes = re.fullmatch(r"cityscapes_fine_sem_seg_(train|val|test)", name)
    if cityscapes and recipe.config["task"]["name"] == "segmentation":
        return {"name": "cityscapes", "root": recipe.variable("root", "path/to/cityscapes"), "split": cityscapes[1]}
    if not panoptic:
        maps = "supported: coco_2017_train_panoptic_stuffonly, coco_2017_train_panoptic_separated and so on"
        raise recipe.foreign.problem(key, f"{show(name)} has no segmentation maps", maps)
    subset, suffix, kind = panoptic[1], panoptic[2] or "", panoptic[3]
    root = recipe.variable("root", "path/to/coco")
    annotations = f"{root}/annotations/panoptic_{subset}2017{suffix}"
    source = {
        "name": "coco_panoptic",
        "root": Reference(f"{root}/{subset}2017"),
        "maps": Reference(annotations),
        "file": Reference(f"{annotations}.json"),
    }
    return {"name": "stuff_maps", "source": source} if kind == "stuffonly" else source
