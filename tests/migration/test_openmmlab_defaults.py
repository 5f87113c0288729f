"""An option that a config of OpenMMLab does not set has the default of its class there, for all classes of some configs.

Configs with a default written out must give the same recipe as configs without it.
"""

import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration import System, convert, openmmlab
from opabinia.migration.foreign_config import as_node
from opabinia.migration.tables.mmaction import CLASSES
from opabinia.migration.tables.openmmlab import OPTIMIZERS, SECTIONS
from tests.migration import original_defaults as originals
from tests.migration import test_mmaction, test_openmmlab
from tests.migration.original_defaults import openmmlab as facts

REFUSED = "refused"
TSM = test_mmaction.model("dict(type='ResNetTSM', depth=50)", "TSMHead", recognizer="2D")
SWIN = test_mmaction.model("dict(type='SwinTransformer3D', arch='tiny')", "I3DHead")
MASK_RCNN = "".join(test_openmmlab.BASES.values())
CONFIGS: list[tuple[System, str]] = [
    ("mmaction", test_mmaction.BASE + test_mmaction.I3D),
    ("mmaction", test_mmaction.BASE + test_mmaction.SEGMENTS + TSM),
    ("mmaction", test_mmaction.BASE + SWIN),
    ("mmpretrain", test_openmmlab.CLASSIFIER),
    ("mmpretrain", test_openmmlab.CLASSIFIER + "model['backbone']".join(["", ""])),
    ("mmdetection", MASK_RCNN),
    ("mmdetection", MASK_RCNN + test_openmmlab.RETINANET.replace("_delete_=True, ", "")),
]
