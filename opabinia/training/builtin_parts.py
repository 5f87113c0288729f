"""The built-in parts: to import this registers all of them."""

# The names are not used: what counts is that the modules are imported.
# ruff: noqa: F401

from __future__ import annotations

from opabinia.data import batch_mixing, sources
from opabinia.data.sampling import batch_shapes as shape_parts
from opabinia.data.sampling import detection_samplers, identity_samplers, samplers, shard_order
from opabinia.data.transforms import (
    augment,
    clips,
    combine,
    crops,
    frame_sampling,
    patch_masks,
    policies,
    sizes,
    torchvision_v2,
    views,
)
from opabinia.data.transforms import evaluation as evaluation_transforms
from opabinia.engine.hooks import (
    early_stop,
    empty_cache,
    expected_scores,
    freeze,
    loss_spike,
    precise_bn,
    profiler,
    quantization_aware,
    time_limit,
)
from opabinia.engine.loggers import mlflow, wandb
from opabinia.evaluation import class_thresholds, mean_losses
from opabinia.evaluation.detection import coco, lvis, score_calibration, voc
from opabinia.evaluation.representation import clustering, collapse, knn, linear_probe, linear_svm, low_shot
from opabinia.evaluation.retrieval import retrieval_evaluators
from opabinia.evaluation.segmentation import panoptic, semantic
from opabinia.models import decoders, detectors, heads, necks, pooling
from opabinia.models.backbones import (
    iresnet,
    osnet,
    regnet,
    resnet,
    shared,
    shufflenet,
    timm,
    video,
    vit,
    windowed_dinov2,
)
from opabinia.models.detectors import mask2former
from opabinia.models.losses import balance, binary, cross_entropy, metric, segmentation
from opabinia.models.trackers import botsort, ocsort, package, sort
from opabinia.optim import lars, optimizers
from opabinia.optim import schedules as schedule_parts
from opabinia.tasks import attributes, classification, detection, multitask, reid, selfsup, semi_supervised
from opabinia.tasks import segmentation as segmentation_task
from opabinia.tasks import video as video_task
from opabinia.training import session, tracking, trained_model
