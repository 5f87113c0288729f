"""Claim: `benchmark --memory` predicts the memory of a training step within 5 % of what torch allocates.

For each recipe the step of a batch is predicted with fake tensors, or with values where those decide, and the same step
is then run on the CPU while torch's profiler records every allocation of its CPU allocator. Compared are the largest
sums of live bytes, parameters and optimizer state included, in the precision that is named. Both sides use the CPU's
lists of mixed precision here, and no margin; data are generated images at the recipe's own sizes.

The columns for GPUs are predictions that no GPU has confirmed: the peak with margin, and the largest batch for 24 GiB,
as configured and with activation checkpointing.

Run: ``python benchmarks/memory.py``; ``--quick`` compares one small recipe.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from opabinia.runtime import operator_costs
from opabinia.training.batch_size_search import repeat_samples
from opabinia.training.measurement import StepParts
from opabinia.training.memory_prediction import GIB, ObservedStep, can_be_fake, predict_memory
from opabinia.training.run_folder import build_parts, resolve
from opabinia.training.session import TrainingRun
from scripts.update_golden import DATA

QUICK = "--quick" in sys.argv
RECIPES: dict[str, tuple[int, tuple[str, ...]]] = {
    "classification/imagenet/resnet50_a2": (16, ()),
    "classification/imagenet/vit_small": (16, ()),
    "classification/imagenet/convnext_tiny": (8, ()),
    "detection/coco/fcos_r50_1x": (2, ("vars.pretrained=false",)),
    "detection/coco/mask_rcnn_r50_1x": (2, ("vars.pretrained=false",)),
    "detection/coco/d_fine_s": (2, ("vars.pretrained=false",)),
    "segmentation/ade20k/upernet_swin_tiny": (2, ("vars.pretrained=false",)),
    "selfsup/imagenet/dino_vit_s": (4, ()),
    "reid/market1501/bot": (16, ("vars.pretrained=false",)),
    "video/kinetics/slow_8x8_r50": (2, ()),
}
"""Recipes, the samples of the compared step, and overrides."""
if QUICK:
    RECIPES = {"classification/digits": (64, ())}


def allocated(parts: StepParts, samples: int) -> int:
    """Return the largest sum of bytes that torch's CPU allocator holds in a step, with the model and its batch."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = ObservedStep(parts, None)
        step.run(repeat_samples(parts.largest[1], samples), samples)
        del step
    events, largest = list(profiler.profiler.kineto_results.experimental_event_tree()), 0  # type: ignore[union-attr]
    while events:
        event = events.pop()
        events += event.children
        largest = max(largest, getattr(event.extra_fields, "total_allocated", 0))
    gc.collect()
    return largest


def compare(recipe: str, samples: int, overrides: list[str]) -> tuple[str, int, int, float]:
    """Return the method, the predicted and the allocated bytes of a step, and the seconds of the prediction."""
    resolved = resolve(recipe, [*overrides, "train.device=cpu", "data.num_workers=0", "train.num_threads=2"])
    parts = StepParts.of(TrainingRun(**build_parts(resolved).keywords))
    started = time.perf_counter()
    method, step = "values", ObservedStep(parts, None)
    if can_be_fake(parts):
        with suppress(Exception):  # values decide
            fake = ObservedStep(parts, FakeTensorMode(allow_non_fake_inputs=True))
            fake.footprint(samples)
            method, step = "shapes", fake
    peak = step.footprint(samples)
    predicted, seconds = peak.total() - peak["inputs"] // 2, time.perf_counter() - started  # nothing is prefetched
    del step
    return method, predicted, allocated(parts, samples), seconds


def main() -> None:
    torch.set_num_threads(2)
    logging.disable(logging.WARNING)
    print("on the CPU, fp32                     batch  method  predicted  allocated  ratio")
    gpu_lines = []
    for recipe, (samples, own) in RECIPES.items():
        with tempfile.TemporaryDirectory() as folder:
            overrides = [*own, f"data.batch_size={samples}"]
            if recipe in DATA:
                DATA[recipe](Path(folder) / "data")
                overrides.append(f"vars.root={json.dumps(folder + '/data')}")
            with patch.object(operator_costs, "BLOCK", 1):  # exact sizes, as those of the CPU
                method, predicted, measured, _ = compare(recipe, samples, [*overrides, "train.precision=fp32"])
            print(
                f"{recipe:38} {samples:3}  {method:6}  {predicted / GIB:5.2f} GiB  {measured / GIB:5.2f} GiB  "
                f"{predicted / measured:.3f}",
                flush=True,
            )
            result = predict_memory(recipe, [*overrides, "train.precision=bf16"], device_memory=(24 * GIB,))
            largest = result["largest_batch"][0]
            gpu_lines.append(
                f"{recipe:38} {samples:3}  {result['peak']['total'] / GIB:5.2f} GiB  {largest['plain']:5}  "
                f"{largest['activation_checkpointing'] or '-':>5}  {result['seconds']:5.1f} s"
            )
    print("\non a GPU, bf16, predicted            batch  peak       24 GiB  recomputing  cost")
    print("\n".join(gpu_lines))


if __name__ == "__main__":
    main()
