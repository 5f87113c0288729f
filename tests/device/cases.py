"""The runs that the tests make on the pretended device: one of each task, detector, decoder, loss and optimizer.

Each is a packaged recipe, made small as for the golden losses (``scripts/update_golden.py``), and smaller by overrides.
A new part needs an entry here, and in ``waits.py`` if it makes the host wait in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.device.data import pictures_with_attributes, scenes_and_identities


class Case(NamedTuple):
    """A run.

    Attributes:
        recipe: a packaged recipe.
        overrides: of its config; ``ROOT`` is the folder of the data, ``TEACHER`` a file with weights of
            ``test_resnet``.
        data: generates the data, if not those of the golden losses.
        needs: a module that is an extra.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    data: Callable[[Path], None] | None = None
    needs: str | None = None

    def having(self, *overrides: str) -> Case:
        """Return the case with further overrides."""
        return self._replace(overrides=(*self.overrides, *overrides))


# --- kinds of recipes -------------------------------------------------------------------------------------------------

BF16 = "train.precision=bf16"
TEST_RESNET = "{name: timm, model: test_resnet}"
NET = f"task.backbone={TEST_RESNET}"
MGN_NET = "task.backbone={name: timm, model: resnet10t, options: {output_stride: 8, channels: [16, 16, 32, 32]}}"
TRANSFORMER = "task.backbone={name: timm, model: test_vit, options: {img_size: 32}}"

CLASSIFICATION = Case(
    "classification/digits",
    (
        *(BF16, "data.batch_size=4", "data.train.source={name: synthetic, samples: 16}"),
        "data.val.source={name: synthetic, samples: 4}",
    ),
)
TWO_LAYERS = CLASSIFICATION.having(
    *("plugins=[tests.faults.parts]", "task.backbone=tiny"),
    *("data.train.source.size=8", "data.train.transforms=[]", "data.val.source.size=8", "data.val.transforms=[]"),
)
"""A network with few parameters of each kind: of a convolution, a norm and a linear layer."""

REID = Case("reid/market1501/bot", (BF16, NET, "vars.size=[32, 32]"))

NECK = "neck: {name: fpn, channels: 32}"
DENSE = "neck: {name: fpn_p3_p7_from_p5, channels: 32}"
PROPOSALS = (
    "proposals: {pre_nms_topk_train: 50, post_nms_topk_train: 20, pre_nms_topk_test: 50, post_nms_topk_test: 10, "
    "batch_size_per_image: 16}"
)
REGIONS = f"{NECK}, {PROPOSALS}, box: {{fc_dim: 32, batch_size_per_image: 16}}"
MASKS = "mask: {num_convs: 1, channels: 16}"
QUERIES = "channels: 32, num_queries: 8, decoder_layers: 2, attention_heads: 2, ffn_dim: 32"
MASK2FORMER = (
    "name: mask2former, channels: 32, num_queries: 8, encoder_layers: 1, decoder_layers: 2, attention_heads: 2, "
    "encoder_ffn_dim: 32, decoder_ffn_dim: 32, num_points: 64"
)


def detection(recipe: str, detector: str, *overrides: str, needs: str | None = None) -> Case:
    """Return the run of a detector with this config."""
    changes = (BF16, NET, "data.sampler=null", f"task.detector={{{detector}}}", *overrides)
    return Case(f"detection/coco/{recipe}", changes, needs=needs)


def segmentation(decoder: str, *overrides: str, needs: str | None = None) -> Case:
    """Return the run of a decoder with this config."""
    return Case("segmentation/cityscapes/fpn_r50", (BF16, NET, f"task.decoder={{{decoder}}}", *overrides), needs=needs)


def pseudo_labels(rule: str) -> str:
    """Return the section that trains on the training images also without their labels."""
    data = "source: '${data.train.source}', transforms: '${data.train.transforms}'"
    return f"semi_supervised={{unlabeled: {{{data}}}, pseudo_labels: {rule}}}"


def self_supervised(recipe: str, *overrides: str) -> Case:
    """Return the run of a self-supervised method."""
    return Case(f"selfsup/imagenet/{recipe}", (BF16, "vars.size=32", "data.batch_size=4", *overrides))


SPLITS = ("train", "val")

# --- runs by part -----------------------------------------------------------------------------------------------------

TASKS = {
    "attributes": Case(
        "classification/image_folder",
        (
            *(BF16, f"task={{name: attributes, backbone: {TEST_RESNET}}}"),
            *(f"data.{split}.source={{name: table, file: ROOT/{split}.csv, multi_label: true}}" for split in SPLITS),
        ),
        data=pictures_with_attributes,
    ),
    "barlow_twins": self_supervised("barlow_twins_r50"),
    "byol": self_supervised("byol_r50"),
    "classification": CLASSIFICATION,
    "deepcluster": self_supervised("deepcluster_r50", "vars.small=32"),
    "detection": detection("fcos_r50_1x", f"name: fcos, {DENSE}, num_convs: 1"),
    "dino": self_supervised("dino_r50", "vars.small=32"),
    "distillation": Case("selfsup/distillation", (BF16, "vars.size=32", "vars.val_fraction=0.25")),
    "ibot": self_supervised("ibot_vit_s", TRANSFORMER),
    "jigsaw": self_supervised(
        "rotation_r50", "vars.size=48", f"task={{name: jigsaw, permutations: 4, hidden: 16, backbone: {TEST_RESNET}}}"
    ),
    "mae": self_supervised("mae_vit_b", TRANSFORMER, "task.decoder_heads=4"),
    "mgn": Case("reid/market1501/mgn", (BF16, MGN_NET, "vars.size=[48, 32]")),
    "moco": self_supervised("moco_r50"),
    "moco_v3": self_supervised("moco_v3_vit_s", TRANSFORMER),
    "multitask": Case(
        "multitask/digits",
        (
            *(BF16, NET, "task.mean=null", "task.std=null", "data.batch_size=16"),
            f"task.tasks.boxes.task.detector={{name: fcos, {DENSE}, num_convs: 1}}",
            *(
                f"task.tasks.boxes.data.{split}.source={{name: image_labels, source: {{name: coco_panoptic, "
                f"root: ROOT/{split}2017, maps: ROOT/annotations/panoptic_{split}2017, "
                f"file: ROOT/annotations/panoptic_{split}2017.json}}}}"
                for split in SPLITS
            ),
            *(
                f"task.tasks.identities.data.{split}.source={{name: market1501, root: ROOT/market1501, split: {name}}}"
                for split, name in (("train", "train"), ("val", "test"))
            ),
            "task.tasks.identities.data.sampler.instances=2",
            *(f"task.tasks.unlabeled.data.{split}.source={{name: synthetic, samples: 8}}" for split in SPLITS),
        ),
        data=scenes_and_identities,
    ),
    "npid": self_supervised("npid_r50"),
    "panoptic": Case(
        "segmentation/coco/panoptic_fpn_r50_1x",
        (
            *(BF16, NET, "data.sampler=null", "task.decoder.channels=32"),
            f"task.detector={{name: mask_rcnn, {REGIONS}, {MASKS}}}",
        ),
    ),
    "pirl": self_supervised(
        *("simclr_r50", f"task={{name: pirl, negatives: 8, backbone: {TEST_RESNET}}}"),
        "data.train.source={name: indexed, source: {name: synthetic, samples: 16, size: 48}}",
        "vars.size=48",
    ),
    "reid": REID,
    "rotation": self_supervised("rotation_r50"),
    "segmentation": segmentation(
        "name: fpn, neck: {name: fpn, channels: 32}, channels: 32", "hooks.int8={name: quantization_aware, batches: 1}"
    ),
    "simclr": self_supervised("simclr_r50"),
    "simsiam": self_supervised("simsiam_r50"),
    "swav": self_supervised("swav_r50", "vars.small=32"),
    "vicreg": self_supervised("vicreg_r50"),
    "video": Case("video/kinetics/slow_8x8_r50", (BF16, "task.backbone=resnet3d", "hooks=null")),
}

DETECTORS = {
    "cascade_rcnn": detection("cascade_mask_rcnn_r50_3x", f"name: cascade_rcnn, {REGIONS}, {MASKS}"),
    "d_fine": detection(
        *("d_fine_s", f"name: d_fine, {QUERIES}, num_denoising: 8, depth_multiplier: 0.34, hidden_expansion: 0.5"),
        "train.sync_batch_norm=false",
        needs="transformers",
    ),
    "deformable_detr": detection(
        "deformable_detr_r50",
        f"name: deformable_detr, num_levels: 2, encoder_layers: 1, {QUERIES}",
        needs="transformers",
    ),
    "detr": detection("detr_r50", f"name: detr, encoder_layers: 1, {QUERIES}", needs="transformers"),
    "faster_rcnn": detection("faster_rcnn_r50_1x", f"name: faster_rcnn, {REGIONS}"),
    "fcos": detection("fcos_r50_1x", f"name: fcos, {DENSE}, num_convs: 1"),
    "keypoint_rcnn": detection(
        "keypoint_rcnn_r50_1x", f"name: keypoint_rcnn, {REGIONS}, keypoint: {{num_convs: 1, channels: 16}}"
    ),
    "mask2former": detection(
        *("fcos_r50_1x", f"name: mask2former, decoder: {{{MASK2FORMER}}}", "vars.masks=true"), needs="transformers"
    ),
    "mask_rcnn": detection("mask_rcnn_r50_1x", f"name: mask_rcnn, {REGIONS}, {MASKS}"),
    "retinanet": detection("retinanet_r50_1x", f"name: retinanet, {DENSE}"),
    "rf_detr": Case(
        "detection/coco/rf_detr_small",
        (
            BF16,
            "task.backbone={name: windowed_dinov2, width: 32, depth: 2, heads: 2, image_size: 64, layers: [1, 2]}",
            "task.detector={name: rf_detr, channels: 32, num_queries: 8, num_groups: 2, decoder_layers: 2, "
            "self_attention_heads: 2, cross_attention_heads: 4, ffn_dim: 32, projector_blocks: 1, "
            "mask: {num_points: 64}}",
            *(f"data.{split}.source.masks=true" for split in SPLITS),
        ),
        needs="transformers",
    ),
    "rotated_fcos": Case(
        "detection/dota/rotated_fcos_r50_1x",
        (BF16, NET, f"task.detector={{name: rotated_fcos, {DENSE}, num_convs: 1}}"),
    ),
    "rpn": detection("fcos_r50_1x", f"name: rpn, {NECK}, {PROPOSALS}"),
    "rt_detr": detection(
        *("rt_detr_r50", f"name: rt_detr, {QUERIES}, num_denoising: 8, class_weights: balanced, keypoint: {{}}"),
        *(f"data.{split}.source.file=ROOT/annotations/person_keypoints_{split}2017.json" for split in SPLITS),
        *(f"data.{split}.source.keypoints=true" for split in SPLITS),
        needs="transformers",
    ),
}

DECODERS = {
    "deeplabv3plus": segmentation("name: deeplabv3plus, channels: 16, fine_channels: 8"),
    "fcn": segmentation("name: fcn, channels: 16"),
    "fpn": segmentation("name: fpn, neck: {name: fpn, channels: 32}, channels: 32", "train.step.clip_norm=1.0"),
    "linear": segmentation("name: linear"),
    "mask2former": segmentation(MASK2FORMER, needs="transformers"),
    "segformer": segmentation("name: segformer, channels: 16"),
    "upernet": segmentation("name: upernet, channels: 16"),
}

LOSSES = {
    name: TWO_LAYERS.having(f"task.loss={name}")
    for name in (
        *("adaptive_cross_entropy", "asymmetric", "binary_cross_entropy", "binary_focal", "cross_entropy", "focal"),
        "proxy_anchor",
    )
}

SEGMENTATION_LOSSES = {
    name: segmentation("name: linear", f"task.losses=[{name}]")
    for name in ("boundary", "cross_entropy", "dice", "focal", "lovasz")
}

METRIC_LOSSES = {
    name: REID.having(f"task.metric_losses=[{name}]")
    for name in ("circle", "cosface", "multi_similarity", "supervised_contrastive", "triplet")
}

HEADS = {name: REID.having(f"task.head={name}") for name in ("arcface", "circle", "cosface", "linear")}

OPTIMIZERS = {
    name: TWO_LAYERS.having(f"optimizer={name}")
    for name in (
        *("adadelta", "adafactor", "adafactorbigvision", "adagrad", "adam", "adamax", "adamw", "adan", "adopt", "asgd"),
        *("lamb", "laprop", "lars", "lion", "madgrad", "mars", "muon", "nadam", "nadamw", "radam", "rmsprop"),
        *("rmsproptf", "rprop", "sgd", "sgdw"),
    )
}

FAMILIES = {
    "task": TASKS,
    "detector": DETECTORS,
    "decoder": DECODERS,
    "loss": LOSSES,
    "segmentation_loss": SEGMENTATION_LOSSES,
    "metric_loss": METRIC_LOSSES,
    "head": HEADS,
    "optimizer": OPTIMIZERS,
}
"""Runs by family of the register and name of the part."""

SETTINGS = {
    "distillation_ema": CLASSIFICATION.having("distill={ema_teacher: {}}"),
    "distillation_teacher": CLASSIFICATION.having(
        f"distill={{backbone: {TEST_RESNET}, weights: TEACHER, logits_weight: 0, features_weight: 1}}"
    ),
    "fp16": CLASSIFICATION.having("train.precision=fp16", "train.step.clip_norm=1.0", "ema={decay: 0.9}"),
    "fp16_skip": CLASSIFICATION.having("train.precision=fp16", "train.on_nonfinite=skip"),
    "fp16_unfused": CLASSIFICATION.having("train.precision=fp16", "optimizer={name: lamb, lr: 0.001}"),
    "fp16_detection": detection(
        "mask_rcnn_r50_1x", f"name: mask_rcnn, {REGIONS}, {MASKS}", "train.precision=fp16", "train.micro_batch_size=1"
    ),
    "oriented_queries": Case(
        "detection/dota/rotated_fcos_r50_1x",
        (BF16, NET, f"task.detector={{name: rt_detr, {QUERIES}, num_denoising: 8, oriented: {{}}}}"),
        needs="transformers",
    ),
    "region_queries": detection(
        "rt_detr_r50",
        f"name: rt_detr, {QUERIES}, num_denoising: 8, roi_{MASKS}, roi_keypoint: {{num_convs: 1, channels: 16}}",
        *(f"data.{split}.source.file=ROOT/annotations/person_keypoints_{split}2017.json" for split in SPLITS),
        *(f"data.{split}.source.{key}=true" for split in SPLITS for key in ("masks", "keypoints")),
        needs="transformers",
    ),
    "semi_supervised_boxes": detection(
        "fcos_r50_1x", f"name: fcos, {DENSE}, num_convs: 1", pseudo_labels("{name: boxes, threshold: 0.001}")
    ),
    "semi_supervised_classes": CLASSIFICATION.having(
        pseudo_labels("{name: classes, threshold: 0.01, flexible: true}"), "data.batch_size=8"
    ),
    "semi_supervised_identities": REID.having(
        pseudo_labels("{name: identities, every: 1it, min_samples: 1, k1: 4}"), "data.batch_size=16"
    ),
    "semi_supervised_pixels": segmentation("name: linear", pseudo_labels("{name: pixels, threshold: 0.01}")),
    "skip_unfused": CLASSIFICATION.having("train.on_nonfinite=skip", "optimizer={name: lamb, lr: 0.001}"),
    "mixing_on_device": CLASSIFICATION.having(
        *("data.mix=[{name: mixup, alpha: 0.2}, {name: cutmix, alpha: 1.0}]", "data.augment_on=device"),
        *("train.micro_batch_size=2", "train.channels_last=true", "train.activation_checkpointing=true"),
    ),
    "worker": CLASSIFICATION.having("data.num_workers=1"),
}
"""Runs of settings that are not parts, by name."""


def all_cases() -> dict[str, Case]:
    """Return all runs by name, such as ``detector/fcos`` or ``setting/fp16``."""
    cases = {f"{family}/{name}": case for family, parts in FAMILIES.items() for name, case in parts.items()}
    return cases | {f"setting/{name}": case for name, case in SETTINGS.items()}
