"""Tables for VISSL: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, ANYNETS, REFUSED_TOOLS = read_tables("vissl", "DEFAULTS REASONS ANYNETS REFUSED_TOOLS")
REFUSED_LOSSES, MULTI_LABEL, REFUSED_TRUNKS = read_tables("vissl", "REFUSED_LOSSES MULTI_LABEL REFUSED_TRUNKS")
OPTIMIZERS, STAGES = read_tables("vissl", "OPTIMIZERS STAGES")

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


EFFICIENT_NETS = tuple(f"b{number}" for number in range(9))
