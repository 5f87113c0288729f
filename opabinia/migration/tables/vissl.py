"""Tables for VISSL: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS = read_tables("vissl", "DEFAULTS", "REASONS")

LR = "OPTIMIZER.param_schedulers.lr"

DECAY = "OPTIMIZER.param_schedulers.weight_decay"


RESNET_DEPTHS = (18, 34, 50, 101, 152, 200)

RESNEXTS = {
    (50, 32, 4): "resnext50_32x4d",
    **{(101, 32, width): f"resnext101_32x{width}d" for width in (4, 8, 16, 32)},
}
"""timm's names by depth, groups and width of a group."""

TRANSFORMERS = {
    (192, 12, 3): ("tiny", (16,)),
    (384, 12, 6): ("small", (8, 16, 32)),
    (768, 12, 12): ("base", (8, 16, 32)),
    (1024, 24, 16): ("large", (14, 16, 32)),
}
"""timm's names of vision transformers and their patch sizes, by width, depth and heads."""

REGNET_SIZES = {
    (20, 232, 115.89, 2.53, 232): "regnety_320",
    (20, 352, 147.48, 2.4, 328): "regnety_640",
    (27, 456, 160.83, 2.52, 264): "regnety_1280",
    (27, 640, 230.83, 2.53, 373): "regnety_2560",
}
"""timm's names of the RegNetY that VISSL gives by depth, w_0, w_a, w_m and width of a group (SEER)."""

ANYNETS = {"regnety_160": [[2, 4, 11, 1], [224, 448, 1232, 3024], [112, 112, 112, 112]]}
"""Depths, widths and group widths of the stages of ``anynet`` in VISSL's configs, by timm's names."""

REFUSED_TOOLS = {
    "GEO_LOCALIZATION": "classes are not mapped to places on earth",
    "extract_cluster": "images are not assigned to prototypes; opabinia extract writes their features",
}
"""Sections and engines of tools that are refused, with the reason."""

REFUSED_LOSSES = {
    "msn_loss": "VISSL's is a stub that compares the sums of the outputs",
    "clusterfit_loss": "see opabinia extract",
}
"""Losses that are refused, with the reason."""

MULTI_LABEL = ("voc2007", "voc2012", "coco2014", "openimages")
"""Beginnings of the names of datasets whose images have several labels."""

EFFICIENT_NETS = tuple(f"b{number}" for number in range(9))

_NO_ALEXNET = "timm has no AlexNet"

REFUSED_TRUNKS = {
    "alexnet_bvlc": _NO_ALEXNET,
    "alexnet_colorization": _NO_ALEXNET,
    "alexnet_deepcluster": _NO_ALEXNET,
    "alexnet_jigsaw": _NO_ALEXNET,
    "alexnet_rotnet": _NO_ALEXNET,
    "classy_vit": "its size is defined by ClassyVision; use vision_transformer",
    "resnet_sk": "timm's selective-kernel ResNets have other stems and shortcuts than SimCLR v2's",
}
"""Trunks that are refused, with the reason."""

OPTIMIZERS = {"sgd": "sgd", "adam": "adam", "adamw": "adamw", "adamw_mt": "adamw", "rmsprop": "rmsprop", "lars": "lars"}

STAGES = {f"res{number}": f"backbone.model.layer{number - 1}" for number in range(2, 6)}
"""Layers of a ResNet by VISSL's names."""
