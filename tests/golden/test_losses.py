"""How training begins: a refactoring proves itself by equal losses."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from opabinia.config.compose import packaged_names
from scripts.update_golden import COMMAND, STEPS, golden_file, losses

# On one machine the losses are the same to the last bit. Processors add in another order, and where torch has no fast
# path it resizes uint8 images in floating point, so that a pixel may be rounded to the next value. Ten steps of Adam
# (whose first updates look at the sign of a gradient only) make that larger. Measured on one processor: AVX-512 against
# AVX2 1e-4 at most, against no vectors at all 3e-3, which is what to expect on Arm. For comparison, on digits: a
# learning rate 10 % higher 9e-3, another seed 2e-2.
TOLERANCE = 5e-3
# A mean of cosines (SimSiam's) lies around 0. Measured without vectors: 9e-4.
AROUND_ZERO = 1e-3


@pytest.fixture(autouse=True)
def arithmetic_kept() -> Iterator[None]:
    """What a run sets for its process is not to last."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = False


LONG = (
    *("reid/market1501/vit", "reid/market1501/agw", "reid/market1501/bot", "reid/market1501/mgn", "reid/msmt17/sbs"),
    *("reid/msmt17/vit_camera", "reid/online_products/normalised_softmax", "reid/veri/sbs"),
    *("classification/imagenet/resnet50_a1", "classification/imagenet/resnet50_a2", "detection/coco_format"),
    *("classification/imagenet/resnet50_a3", "classification/imagenet/convnext_tiny"),
    "classification/imagenet/vit_small",
    *("detection/coco/faster_rcnn_r50_1x", "detection/coco/fcos_r50_1x", "detection/coco/retinanet_r50_1x"),
    "detection/coco/mask_rcnn_r50_1x",
    *("detection/coco/faster_rcnn_r50_3x", "detection/coco/mask_rcnn_r50_3x", "detection/coco/keypoint_rcnn_r50_1x"),
    *("detection/coco/cascade_mask_rcnn_r50_3x", "detection/coco/mask_rcnn_r50_lsj", "detection/coco/rt_detr_r50"),
    "detection/lvis/mask_rcnn_r50_1x",
    *("selfsup/digits_deepcluster", "selfsup/digits_dino", "selfsup/digits_moco_v3"),
    *(name for name in packaged_names() if name.startswith(("video/kinetics/", "video/something", "video/charades/"))),
)
"""Five seconds and more on a slow machine, or much the same as another one."""

NEEDS = {"detection/coco/rt_detr_r50": "transformers"}
"""Libraries that are extras."""


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in packaged_names()]
)
def test_the_first_losses_are_the_golden_ones(recipe: str) -> None:
    if recipe in NEEDS and not find_spec(NEEDS[recipe]):
        pytest.skip(f"{NEEDS[recipe]} is not installed")
    path = golden_file("losses", recipe)
    assert path.is_file(), f"no golden losses of {recipe}; run: {COMMAND} {recipe}"
    golden, now = ([float(line) for line in text.split()] for text in (path.read_text(), losses(recipe)))
    assert len(golden) == STEPS
    assert now == pytest.approx(golden, rel=TOLERANCE, abs=AROUND_ZERO), f"if this is meant, run: {COMMAND} {recipe}"
