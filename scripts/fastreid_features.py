"""Compare features of FastReID's models with ours, with the same random weights, and write the fixture of a test.

    python -m scripts.fastreid_features path/to/fast-reid          # needs yacs, termcolor and tabulate

Some of its configs are imported, built in both systems and compared on two random images. Versions with few blocks give
tests/migration/fastreid_features.json: the task section, names and shapes of FastReID's weights, and its features.
"""

from __future__ import annotations

import collections
import collections.abc
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from opabinia.migration import fastreid as importer
from tests.migration.fastreid_models import CLASSES, FIXTURE, draw_weights, features, images

WHOLE = ("bagtricks_R50", "bagtricks_S50", "AGW_R50", "AGW_R101-ibn", "sbs_R50-ibn", "sbs_S50", "mgn_R50-ibn")
BACKBONE = "MODEL.BACKBONE.NAME"
FLATTENED = ["MODEL.HEADS.POOL_LAYER=Flatten", "MODEL.HEADS.EMBEDDING_DIM=64", "INPUT.SIZE_TRAIN=[97,48]"]


def depth(name: str, width: int) -> list[str]:
    """Return the changes to another size of a backbone."""
    return [f"MODEL.BACKBONE.DEPTH={name}", f"MODEL.BACKBONE.FEAT_DIM={width}"]


SMALL: dict[str, tuple[list[int] | None, list[str]]] = {
    "bagtricks_R50": ([1, 2, 2, 1], ["MODEL.BACKBONE.WITH_SE=True", "MODEL.HEADS.EMBEDDING_DIM=64"]),
    "sbs_R50-ibn": ([1, 2, 2, 1], []),
    "bagtricks_S50": ([1, 1, 1, 2], []),
    "mgn_R50-ibn": ([1, 1, 2, 3], []),
    "bagtricks_R50 osnet": (
        None,
        [f"{BACKBONE}=build_osnet_backbone", *depth("x0_25", 128), "MODEL.BACKBONE.WITH_IBN=True"],
    ),
    "bagtricks_R50 shufflenet": (None, [f"{BACKBONE}=build_shufflenetv2_backbone", *depth("0.5x", 1024)]),
    "bagtricks_R50 iresnet": (None, [f"{BACKBONE}=build_iresnet_backbone", *depth("18x", 512 * 7 * 3), *FLATTENED]),
}
"""Numbers of blocks (None: the usual ones), and further changes, of the networks in the fixture."""


@contextmanager
def few_blocks(blocks: list[int] | None) -> Iterator[None]:
    """Make FastReID's builders create networks with these numbers of blocks per stage; None: the usual ones."""
    with ExitStack() as patches:
        for name, kind in (("resnet", "ResNet"), ("resnest", "ResNeSt")) if blocks else ():
            module = import_module(f"fastreid.modeling.backbones.{name}")
            make: Any = getattr(module, kind)

            def small(*arguments: Any, make: Any = make, **options: Any) -> nn.Module:
                changed = list(arguments)
                changed[6 if len(arguments) > 3 else 2] = blocks
                if len(arguments) > 3:
                    changed[7] = [0, blocks[1] // 2, blocks[2] // 2, 0]
                return make(*changed, **options)

            patches.enter_context(patch.object(module, kind, small))
        yield


def theirs(file: Path, changes: list[str]) -> nn.Module:
    """Build FastReID's model of a config."""
    config: Any = import_module("fastreid.config").get_cfg()
    config.merge_from_file(str(file))
    config.merge_from_list([word for change in changes for word in change.split("=")])
    if "DROPOUT" not in config.MODEL.BACKBONE:
        config.MODEL.BACKBONE.DROPOUT = 0.0  # FastFace's own key
    config.MODEL.DEVICE, config.MODEL.BACKBONE.PRETRAIN, config.MODEL.HEADS.NUM_CLASSES = "cpu", False, len(CLASSES)
    model: nn.Module = import_module("fastreid.modeling.meta_arch").build_model(config)
    return model.eval()


def imported(file: Path, changes: list[str], blocks: list[int] | None) -> dict[str, Any]:
    """Return the task section that our importer makes of a config."""
    task: dict[str, Any] = importer.convert(file, changes).config["task"]
    options = {"options": {"layers": blocks}} if blocks else {}
    pretrained = {"pretrained": False} if "pretrained" in task["backbone"] else {}
    return {**task, "backbone": {**task["backbone"], **pretrained, **options}}


@torch.no_grad()
def compare(file: Path, changes: list[str], blocks: list[int] | None) -> tuple[dict[str, Any], Tensor, float]:
    """Return the task section, FastReID's features, and the largest difference of ours relative to their magnitude."""
    with few_blocks(blocks):
        model = theirs(file, changes)
    weights = draw_weights({name: list(tensor.shape) for name, tensor in model.state_dict().items()})
    model.load_state_dict(weights)
    expected: Tensor = model({"images": 255 * images()})
    task = imported(file, changes, blocks)
    difference = (features(task, weights) - expected).abs().max() / expected.abs().max()
    case = {"task": task, "shapes": {name: list(tensor.shape) for name, tensor in weights.items()}}
    return case, expected, difference.item()


def main(checkout: Path) -> None:
    """Print the differences of whole networks and write the fixture."""
    for name in ("Mapping", "MutableMapping"):  # of old Python
        setattr(collections, name, getattr(collections.abc, name))
    sys.path[:0] = [str(checkout), str(checkout / "projects" / "FastFace" / "fastface" / "modeling")]
    import_module("iresnet")  # registers the backbone
    folder = checkout / "configs" / "Market1501"
    run = partial(compare, changes=[], blocks=None)
    for name in WHOLE:
        print(f"{name}: largest relative difference {run(folder / f'{name}.yml')[2]:.1e}", flush=True)
    cases = {}
    for name, (blocks, changes) in SMALL.items():
        case, expected, difference = compare(folder / f"{name.split()[0]}.yml", changes, blocks)
        print(f"{name} with {blocks or 'all'} blocks: {difference:.1e}", flush=True)
        cases[name] = {**case, "features": [[round(value, 7) for value in row[::97]] for row in expected.tolist()]}
    FIXTURE.write_text(json.dumps(cases, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
