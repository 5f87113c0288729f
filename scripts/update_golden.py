"""Rewrite the golden files: the complete config and the first losses of every packaged recipe.

Run ``python scripts/update_golden.py`` after an intended change of them, and read the difference before you commit it;
with names of recipes, only those are written, and with ``--configs`` no losses, which take minutes. The tests in
``tests/golden`` compare them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scripts import small_data

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
COMMAND = "python scripts/update_golden.py"
STEPS = 10

ON_CPU = (
    "seed=0",
    "train.device=cpu",
    "train.num_threads=1",
    "train.deterministic=true",
    "train.log_every=1",
    "data.num_workers=0",
    "data.val=null",
    "checkpoint.best=null",
    "loggers=[]",
)
"""Overrides that make the losses of a machine reproducible. Length and schedule are those of the recipe."""

_IMAGENET = (
    *("train.precision=fp32", "train.channels_last=false", "train.cudnn_benchmark=false", "data.batch_size=4"),
    *("vars.size=64", "train.lr_batch_size=1024"),
)
_VIEWS = (*_IMAGENET, "train.sync_batch_norm=false")
_TINY = "task.backbone.model=test_resnet"
_WIDE = (*_VIEWS, "task.hidden=64", "task.projection=64")
_TINY_VIT = ("task.backbone.model=vit_tiny_patch16_224", "task.backbone.options.depth=2")
_SELF_DISTILLATION = (*_VIEWS, "vars.small=32", "vars.small_views=2", "task.outputs=64", "task.hidden=64")
_REID = (
    *("train.precision=fp32", "train.channels_last=false", "train.cudnn_benchmark=false", "vars.pretrained=false"),
    *("vars.batch=8", "vars.instances=2"),
)
_COCO = (
    *("train.precision=fp32", "vars.pretrained=false", "vars.batch=2", "vars.short=[48, 64]", "vars.test=48"),
    *("vars.longest=64", "task.freeze_random=true"),
)
_MAPS = (
    *("train.precision=fp32", "train.channels_last=false", "vars.pretrained=false", "data.batch_size=2"),
    *("vars.short=[64, 96]", "vars.crop=[64, 64]"),
)
_D_FINE = ("train.precision=fp32", "task.detector.ffn_dim=64", "task.detector.channels=64")
_RCNN = (*_COCO, "task.detector.proposals.batch_size_per_image=16", "task.detector.box.batch_size_per_image=16")
_FILMS = (
    *("train.precision=fp32", "train.channels_last=false", "train.cudnn_benchmark=false", "data.batch_size=4"),
    *("vars.size=32", "vars.test=32", "vars.short=[32, 40]", "vars.frames=4", "vars.stride=2", "vars.clips=2"),
)
_LISTED = (*_FILMS, "init=null", "train.sync_batch_norm=false")
_TINY_3D = "task.backbone=resnet3d"
SMALLER = {
    **{
        f"classification/imagenet/{name}": _IMAGENET
        for name in (
            *("convnext_tiny", "efficientnet_b0", "mobilenetv3_large", "regnety_004", "resnet50_a1", "resnet50_a2"),
            *("resnet50_a3", "vit_small"),
        )
    },
    "classification/imagenet/linear_probe_r50": (*_IMAGENET, _TINY, "init=null"),
    "classification/imagenet/finetune_1pct_r50": (*_VIEWS, _TINY, "init=null", "vars.share=0.5"),
    "classification/imagenet/finetune_vit_b_mae": (*_IMAGENET, *_TINY_VIT, "init=null"),
    **{f"selfsup/imagenet/{name}_r50": (*_VIEWS, _TINY) for name in ("simclr", "rotation")},
    **{f"selfsup/imagenet/{name}_r50": (*_WIDE, _TINY) for name in ("byol", "barlow_twins", "vicreg")},
    "selfsup/imagenet/simsiam_r50": (*_WIDE, _TINY, "data.batch_size=16"),
    "selfsup/imagenet/moco_r50": (*_VIEWS, _TINY, "task.queue=16"),
    "selfsup/imagenet/npid_r50": (*_VIEWS, _TINY, "task.negatives=8"),
    "selfsup/imagenet/swav_r50": (*_VIEWS, _TINY, "vars.small=32", "task.prototypes=[8]"),
    "selfsup/imagenet/deepcluster_r50": (*_VIEWS, _TINY, "vars.small=32", "task.prototypes=[4, 4, 4]"),
    "selfsup/imagenet/dino_r50": (*_SELF_DISTILLATION, _TINY),
    "selfsup/imagenet/dino_vit_s": (*_SELF_DISTILLATION, *_TINY_VIT),
    "selfsup/imagenet/ibot_vit_s": (*_SELF_DISTILLATION, *_TINY_VIT),
    # At first its blocks do next to nothing, and the logarithm of how far images are apart is that of rounding errors.
    "selfsup/imagenet/dinov2_vit_l": (*_SELF_DISTILLATION, *_TINY_VIT, "task.backbone.options.init_values=0.1"),
    "selfsup/imagenet/moco_v3_vit_s": (*_WIDE, *_TINY_VIT),
    "selfsup/imagenet/mae_vit_b": (*_VIEWS, *_TINY_VIT, "task.decoder_width=64", "task.decoder_depth=1"),
    "selfsup/images": (_TINY, "train.channels_last=false", "data.batch_size=4", "vars.size=64", "vars.val_fraction=0"),
    **{
        f"reid/{name}": (*_REID, f"vars.size={size}")
        for name, size in {
            **dict.fromkeys(("market1501/bot", "market1501/agw", "market1501/vit", "msmt17/vit_camera"), "[64, 32]"),
            **dict.fromkeys(("market1501/sbs", "market1501/mgn", "msmt17/sbs", "veri/sbs"), "[96, 32]"),
            "online_products/normalised_softmax": "32",
        }.items()
    },
    "reid/folder": ("train.channels_last=false", "vars.size=[64, 64]", "vars.identities=4", "data.batch_size=8"),
    "reid/grocery": ("vars.pretrained=false", "data.batch_size=8", "data.sampler.instances=2"),
    "reid/grocery_semi": ("vars.pretrained=false", "data.batch_size=8", "data.sampler.instances=2"),
    **{
        f"detection/coco/{name}": _RCNN
        for name in (
            *("faster_rcnn_r50_1x", "faster_rcnn_r50_3x", "mask_rcnn_r50_1x", "mask_rcnn_r50_3x"),
            *("cascade_mask_rcnn_r50_3x", "keypoint_rcnn_r50_1x"),
        )
    },
    "detection/coco/mask_rcnn_r50_lsj": (*_RCNN, "vars.size=64", "train.sync_batch_norm=false"),
    "detection/lvis/mask_rcnn_r50_1x": (*_RCNN, "vars.lvis=${vars.root}/annotations"),
    "detection/coco/fcos_r50_1x": _COCO,
    "detection/coco/retinanet_r50_1x": _COCO,
    "detection/dota/rotated_fcos_r50_1x": (
        *("train.precision=fp32", "vars.pretrained=false", "task.freeze_random=true", "vars.size=64"),
        *("vars.train=.", "vars.val=.", "vars.labels=labelTxt", f"vars.classes={json.dumps(small_data.KINDS)}"),
    ),
    "detection/coco/rt_detr_r50": (*_COCO, "vars.size=[64, 64]"),
    "detection/coco/rt_detr_v2_r18": (*_COCO, "vars.size=[64, 64]"),
    **{
        f"detection/coco/d_fine_{size}": (*_COCO, *_D_FINE, "vars.size=[64, 64]", "train.sync_batch_norm=false")
        for size in "sl"
    },
    "detection/coco/rf_detr_small": (*_COCO, "vars.size=[64, 64]", "task.detector.num_queries=16", "init=null"),
    **{f"detection/coco/{name}_r50": (*_COCO, "task.detector.ffn_dim=64") for name in ("detr", "deformable_detr")},
    "detection/finetune": (
        *_D_FINE,
        "vars.size=[64, 64]",
        "init=null",
        "train.channels_last=false",
        "data.batch_size=4",
    ),
    "detection/coco_format": (
        *("train.channels_last=false", "data.batch_size=4", "vars.short=[48, 64]", "vars.test=48", "vars.longest=64"),
    ),
    "detection/mot": (
        *("train.channels_last=false", "data.batch_size=4", "vars.short=[48, 64]", "vars.test=48", "vars.longest=64"),
        *("vars.every=1", "vars.val=[b]"),
    ),
    "reid/mot": ("train.channels_last=false", "vars.size=[64, 64]", "data.batch_size=8", "vars.val=[b]"),
    "detection/digit_tracks": ("data.batch_size=4",),
    "reid/digit_tracks": ("data.batch_size=16",),
    "multitask/digit_tracks": ("data.batch_size=16",),
    "detection/bccd": ("vars.short=[48, 64]", "vars.test=48"),
    **{
        f"video/kinetics/{name}": _FILMS
        for name in (
            *("slowfast_8x8_r50", "slowfast_8x8_r50_steps", "slowfast_8x8_r50_multigrid", "slowfast_4x16_r50"),
            *("slow_8x8_r50", "slow_8x8_r50_multigrid", "x3d_m", "x3d_s", "swin3d_t"),
        )
    },
    "video/kinetics/mvit_v2_s": (*_FILMS, _TINY_3D),  # it takes no small clips
    "video/kinetics/r2plus1d_18": (*_FILMS, "vars.size=[32, 32]", "vars.sides=[36, 40]", "train.lr_batch_size=1536"),
    **{
        f"video/{name}": (*_FILMS, "vars.pretrained=false", "task.backbone.backbone.model=test_resnet")
        for name in ("kinetics/tsn_r50", "kinetics/tsm_r50", "something_something/tsm_r50")
    },
    **{
        f"video/{name}/slowfast_16x8_r50{kind}": _LISTED
        for name in ("something_something", "charades")
        for kind in ("", "_multigrid")
    },
    "video/folder": (
        "vars.pretrained=false",
        "vars.size=32",
        "task.backbone.backbone.model=test_resnet",
        "data.batch_size=4",
    ),
    "video/omniglot_strokes": ("data.batch_size=4",),
    "selfsup/distillation": (_TINY, "train.channels_last=false", "vars.batch=4", "vars.size=64", "vars.val_fraction=0"),
    "selfsup/crops": (
        *(_TINY, "train.channels_last=false", "vars.batch=4", "vars.crop=32", "vars.short=48", "vars.val_fraction=0"),
    ),
    "selfsup/fashion_mnist": ("data.batch_size=16",),
    **{
        f"selfsup/digits_{name}": ("data.batch_size=16",)
        for name in ("simclr", "vicreg", "barlow_twins", "distillation")
    },
    "detection/digits": ("data.batch_size=4",),
    "detection/digits_mask": ("data.batch_size=4",),
    "segmentation/digits": ("data.batch_size=4",),
    "segmentation/digits_panoptic": ("data.batch_size=4",),
    **{
        f"segmentation/{name}": _MAPS
        for name in (
            *("image_folder", "cityscapes/deeplabv3plus_r50", "cityscapes/fpn_r50", "cityscapes/mask2former_r50"),
            *("ade20k/upernet_swin_tiny", "ade20k/upernet_convnext_tiny", "voc/deeplabv3plus_r50"),
        )
    },
    "segmentation/ade20k/linear_dinov2_vits14": (*_MAPS, *_TINY_VIT, "vars.crop=[64, 64]"),
    **{f"segmentation/coco/panoptic_fpn_r50_{length}x": _RCNN for length in (1, 3)},
    # Ten batches of 64 photographs take minutes on a small machine.
    "classification/image_folder": ("data.batch_size=4", "data.train.transforms.0.size=96"),
    "classification/clothing_semi": (
        *("vars.val=val", "vars.size=32", "task.backbone.pretrained=false", "data.batch_size=8"),
        *("data.train.source.per_class=4", "semi_supervised.unlabeled.source.per_class=4"),
        "semi_supervised.warmup=1it",
    ),
}
"""Overrides of recipes that would take too long."""


TINY = {
    recipe: (_TINY_3D, "hooks=null")
    for recipe in SMALLER
    if recipe.startswith(("video/kinetics/", "video/something_", "video/charades/")) and "/ts" not in recipe
} | {"video/kinetics/swin3d_t": (_TINY_3D, "param_groups=null")}
"""Further overrides for the losses: with such networks ten steps take too long, but not a batch of ``--build``. Precise
batch norm changes no loss."""


def golden_file(kind: str, recipe: str) -> Path:
    """Return the path of the golden ``configs`` or ``losses`` of a recipe."""
    return GOLDEN / kind / f"{recipe}.txt"


def flat_config(recipe: str) -> str:
    """Return the complete config of a recipe, a line ``path: value`` for every value."""
    from opabinia.config import catalog, check, compose, flatten
    from opabinia.config.errors import show

    resolved = check(compose(recipe), catalog())
    return "".join(f"{path}: {show(value, 1000)}\n" for path, value in flatten(resolved.config).items())


def smaller(recipe: str, folder: Path) -> list[str]:
    """Return overrides that make a recipe small; generate its data in this folder unless it is embedded."""
    overrides = list(SMALLER.get(recipe, ()))
    if recipe in DATA:
        DATA[recipe](folder)
        overrides.append(f"vars.root={json.dumps(str(folder))}")
    if recipe in TEACHERS:
        overrides.append(f"vars.teacher={json.dumps(save_teacher(folder, TEACHERS[recipe]))}")
    return overrides


def losses(recipe: str, steps: int = STEPS) -> str:
    """Return the losses of the first steps, one per line."""
    from opabinia.contracts import Hook, Run, Stop
    from opabinia.runtime.signals import Stopped
    from opabinia.training.run_folder import build_parts, resolve
    from opabinia.training.session import Session, TrainingRun

    class FirstSteps(Hook):
        def after_step(self, run: Run) -> None:
            if run.clock.step == steps:
                run.stop = Stop("that was all")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        changes = [*smaller(recipe, folder / "data"), *TINY.get(recipe, ())]
        parts = build_parts(resolve(recipe, [*ON_CPU, *changes])).keywords
        (folder / "checkpoints").mkdir()
        with suppress(Stopped):
            TrainingRun(**{**parts, "hooks": {**(parts["hooks"] or {}), "first steps": FirstSteps()}})(Session(folder))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return "".join(f"{json.loads(line)['train/loss']:.6g}\n" for line in lines)


KINDS = {"configs": flat_config, "losses": losses}
"""Functions that return the text of golden files, by folder."""


def save_pictures(root: Path) -> None:
    """Generate eight images of two classes each for training and for validation, the same on every machine."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for colour, name in enumerate(("green", "red")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(8):
                pixels = generator.integers(0, 128, (48, 64, 3), dtype=np.uint8)
                pixels[..., 1 - colour] += 96
                Image.fromarray(pixels).save(folder / f"{number}.png")  # no loss, unlike JPEG


def save_identities(root: Path) -> None:
    """Generate four images each of six identities."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for identity in range(6):
        folder = root / f"{identity:02}"
        folder.mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 128, (64, 64, 3), dtype=np.uint8) + np.uint8(20 * identity)
            Image.fromarray(pixels).save(folder / f"{number}.png")


TEACHERS = {"selfsup/digits_distillation": 1, "selfsup/distillation": 3}
"""Recipes with a trained teacher, for which a small one is generated, and the channels of their images."""


def save_teacher(folder: Path, channels: int) -> dict[str, object]:
    """Save a small network of random weights; return the config of the teacher."""
    import timm
    import torch

    torch.manual_seed(0)
    folder.mkdir(exist_ok=True, parents=True)
    torch.save(timm.create_model("test_resnet", in_chans=channels).state_dict(), folder / "teacher.pth")
    backbone = {"name": "timm", "model": "test_resnet", "pretrained": False, "options": None}
    return {"run": None, "backbone": backbone, "weights": str(folder / "teacher.pth")}


def save_idx(root: Path) -> None:
    """Generate images of ten classes in the format of MNIST's files."""
    import numpy as np

    root.mkdir()
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (2000, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 2000, dtype=np.uint8)
    for split in ("train", "t10k"):
        for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (root / name).write_bytes(header + array.tobytes())


DATA = {
    **dict.fromkeys((recipe for recipe in SMALLER if "/imagenet/" in recipe), save_pictures),
    **{recipe: small_data.kinetics for recipe in SMALLER if recipe.startswith("video/kinetics/")},
    **{recipe: small_data.listed_videos for recipe in SMALLER if recipe.startswith(("video/some", "video/charades/"))},
    "reid/folder": save_identities,
    "detection/mot": small_data.mot,
    "reid/mot": small_data.mot,
    **dict.fromkeys(("video/folder", "video/omniglot_strokes"), small_data.kinetics),
    "classification/clothing_small": save_pictures,
    "classification/clothing_semi": save_pictures,
    "classification/fashion_mnist": save_idx,
    "classification/image_folder": save_pictures,
    "selfsup/images": save_pictures,
    "selfsup/distillation": save_pictures,
    "selfsup/crops": save_pictures,
    "selfsup/fashion_mnist": save_idx,
    "reid/grocery": small_data.market1501,
    "reid/grocery_semi": small_data.market1501,
    **{f"reid/market1501/{name}": small_data.market1501 for name in ("bot", "agw", "sbs", "mgn", "vit")},
    **{f"reid/msmt17/{name}": small_data.msmt17 for name in ("sbs", "vit_camera")},
    "reid/veri/sbs": small_data.veri,
    "reid/online_products/normalised_softmax": small_data.online_products,
    **{recipe: small_data.coco2017 for recipe in SMALLER if "/coco/" in recipe or "/lvis/" in recipe},
    **{
        recipe: small_data.label_maps
        for recipe in SMALLER
        if recipe.startswith("segmentation/") and "digits" not in recipe and "/coco/" not in recipe
    },
    "detection/dota/rotated_fcos_r50_1x": small_data.dota,
    **dict.fromkeys(("detection/bccd", "detection/coco_format", "detection/finetune"), small_data.coco_folders),
}
"""Recipes that train on data that is not embedded, and the functions that generate some below ``vars.root``."""


def main(recipes: Sequence[str], makers: Mapping[str, Callable[[str], str]]) -> None:
    """Write the files of these recipes, or of all, and remove those of recipes that no longer exist.

    Args:
        recipes: by name; none: all.
        makers: functions that return the text of each kind of file, :data:`KINDS` or some of them.
    """
    from opabinia.config.compose import packaged_names

    logging.disable()
    known = packaged_names()
    for recipe in recipes or known:
        for kind, make in makers.items():
            path, text = golden_file(kind, recipe), make(recipe)
            path.parent.mkdir(parents=True, exist_ok=True)
            same = path.is_file() and path.read_text(encoding="utf-8") == text
            path.write_text(text, encoding="utf-8")
            print(f"{'same' if same else 'new '} {path.relative_to(GOLDEN)}", flush=True)
    for kind in KINDS:
        for path in (GOLDEN / kind).rglob("*.txt"):
            if path.relative_to(GOLDEN / kind).with_suffix("").as_posix() not in known:
                path.unlink()
                print(f"gone {path.relative_to(GOLDEN)}")


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # as in the tests; read when torch is imported
        os.environ.setdefault(variable, "1")
    wanted = [word for word in sys.argv[1:] if word != "--configs"]
    main(wanted, {"configs": flat_config} if "--configs" in sys.argv else KINDS)
