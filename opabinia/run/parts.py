"""The built-in parts: to import this registers all of them."""

from __future__ import annotations

from opabinia.data import detection_samplers, identity_samplers, mix, samplers, shard_order, sources, transforms
from opabinia.data import shapes as shape_parts
from opabinia.engine import trackers
from opabinia.engine.hooks import early_stop, expected, freeze, limit, precise_norm, watch
from opabinia.evaluation import clusters, coco, collapse, knn, low_shot, lvis, probe, searches, svm, voc
from opabinia.losses import binary, cross_entropy, metric
from opabinia.models import backbones, detectors, heads, necks, pooling, resnets, video, vits
from opabinia.optim import lars, optimizers
from opabinia.optim import schedules as schedule_parts
from opabinia.tasks import classification, detection, reid, selfsup
from opabinia.tasks import video as video_task

PARTS = (
    backbones,
    binary,
    classification,
    clusters,
    coco,
    collapse,
    cross_entropy,
    detection,
    detection_samplers,
    detectors,
    early_stop,
    expected,
    freeze,
    heads,
    identity_samplers,
    knn,
    lars,
    limit,
    low_shot,
    lvis,
    metric,
    mix,
    necks,
    optimizers,
    pooling,
    precise_norm,
    probe,
    reid,
    resnets,
    samplers,
    schedule_parts,
    searches,
    selfsup,
    shape_parts,
    shard_order,
    sources,
    svm,
    trackers,
    transforms,
    video,
    video_task,
    vits,
    voc,
    watch,
)
"""The modules whose import registers the built-in parts that nothing here names."""
