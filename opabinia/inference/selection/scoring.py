"""The predictions, uncertainty and features of a batch of unlabeled images."""

from __future__ import annotations

import torch
from torch import Tensor

from opabinia.contracts import EMBEDDING, Batch, Predictions, Task
from opabinia.contracts.rotated_boxes import mirror_boxes
from opabinia.engine.loop.layer_outputs import predict_with_layers
from opabinia.evaluation.selection.uncertainty import (
    Measure,
    binary_uncertainty,
    class_uncertainty,
    detection_uncertainty,
    pixel_uncertainty,
)
from opabinia.inference.predictor import Predictor
from opabinia.tasks.dense_base import mirror
from opabinia.tasks.segmentation.task import Segmentation

UNCERTAINTY = "uncertainty"


def score(predictor: Predictor, measure: Measure, embed: bool, batch: Batch) -> Predictions:
    """Return the predictions of a batch with ``uncertainty`` (B), if the model predicts classes, and if wanted with
    ``embedding`` (B x D).

    Args:
        predictor: the model.
        measure: measure of uncertainty.
        embed: add the embedding.
        batch: images of the same size.
    """
    task = predictor.task
    if isinstance(task, Segmentation):
        return _score_segmentation(task, measure, batch, embed)
    predictions, _ = predict_with_layers(task, batch, [EMBEDDING] if embed else [])
    if "probabilities" in predictions:
        probabilities = predictions["probabilities"].float()
        if predictor.dataset_info.multi_label:
            uncertainty = binary_uncertainty(probabilities, measure).mean(1)
        else:
            uncertainty = class_uncertainty(probabilities, measure)
    elif "boxes" in predictions:
        uncertainty = _score_detections(task, predictions, batch, measure)
    elif "pixel_logits" in predictions:
        uncertainty = pixel_uncertainty(predictions["pixel_logits"], measure)
    else:
        return predictions
    return {**predictions, UNCERTAINTY: uncertainty}


def _score_segmentation(task: Segmentation, measure: Measure, batch: Batch, embed: bool) -> Predictions:
    height, width = batch["image_sizes"][0]
    logits = task.logits(batch["image"], batch["image_sizes"])[:, :, :height, :width]
    rows = {
        "segmentation": logits.argmax(1).to(torch.uint8),
        "image_size": torch.tensor([[height, width]] * len(logits)),
        UNCERTAINTY: pixel_uncertainty(logits, measure),
    }
    return {**rows, **task.features(batch)} if embed else rows


def _score_detections(task: Task, predictions: Predictions, batch: Batch, measure: Measure) -> Tensor:
    """Return the uncertainty of each image of a batch by its detections and those in its mirror image."""
    mirrored = task.predict({**batch, "image": mirror(batch["image"], batch["image_sizes"])})
    rows = []
    for index, (_, width) in enumerate(batch["original_size"]):
        detections, others = (
            (part["boxes"][index].float(), part["scores"][index].float(), part["labels"][index])
            for part in (predictions, mirrored)
        )
        others = (mirror_boxes(others[0], width), *others[1:])
        rows.append(detection_uncertainty(detections, others, measure))
    return torch.stack(rows)
