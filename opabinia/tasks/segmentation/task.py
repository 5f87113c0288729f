"""Semantic segmentation: the class of each pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    IGNORE_LABEL,
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    DecoderPart,
    Evaluator,
    EvaluatorPart,
    ExportModule,
    Features,
    NonNegative,
    Predictions,
    SegmentationLossPart,
    Sizes,
    Task,
)
from opabinia.evaluation.mean_losses import MeanLosses
from opabinia.evaluation.segmentation.semantic import Semantic
from opabinia.models.decoders.layers import resize_like
from opabinia.models.losses.masks import semantic_segments
from opabinia.models.losses.segmentation import pixel_cross_entropy
from opabinia.tasks.dataset_checks import check_channels, check_classes
from opabinia.tasks.dense_base import DensePrediction, PaddedExport, TestTimeAugmentation, validation_losses
from opabinia.tasks.segmentation.inference import SlidingWindow, average_views, original_maps, slide
from opabinia.visualization.presenters.segmentation import SegmentationPresenter


@register.task(name="segmentation")
class Segmentation(DensePrediction):
    """Semantic segmentation: a backbone and a decoder, trained with cross entropy of the pixels or other losses.

    Evaluated by mean intersection over union on the original images.

    Args:
        backbone: maps images to feature maps: of several strides for most decoders, of one (a plain vision transformer)
            for ``linear``.
        decoder: maps feature maps to classes of pixels: ``fpn``, ``deeplabv3plus``, ``upernet``, ``segformer``,
            ``linear`` ...
        losses: their sum is trained, each with its ``weight``; null takes cross entropy, or the decoder's own losses.
        auxiliary: a second decoder, for training only, such as ``{name: fcn, level: 2}`` on the stage before the last.
        auxiliary_weight: of its losses.
        freeze_stages: number of frozen stages of the backbone, counted from the stem; for pretrained backbones.
        freeze_norms: batch norms of the backbone keep their statistics and weights; ``statistics``: only these.
        freeze_random: accept frozen stages or norms of a backbone with random weights; otherwise a training with them
            and without ``init`` is an error.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
        size_multiple: sides of a padded batch are multiples of it; null takes the backbone's largest stride.
        validation_loss: compute the losses on validation data, too (``val/loss``).
        test_time_augmentation: predict from several scales and mirrored images; null predicts from the image as it is.
        sliding_window: predict in windows of the size of the training crops; null predicts from the whole image.
        evaluator: null takes ``semantic``.

    Raises:
        ValueError: the training data has no segmentation maps, or fewer than two classes; ``losses`` or ``auxiliary``
            are given for a decoder with losses of its own.
    """

    label_keys = ("mask",)

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        decoder: DecoderPart,
        losses: list[SegmentationLossPart] | None = None,
        auxiliary: DecoderPart | None = None,
        auxiliary_weight: NonNegative = 0.4,
        freeze_stages: int = 0,
        freeze_norms: bool | Literal["statistics"] = False,
        freeze_random: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        size_multiple: Count | None = None,
        validation_loss: bool = True,
        test_time_augmentation: TestTimeAugmentation | None = None,
        sliding_window: SlidingWindow | None = None,
        evaluator: EvaluatorPart | None = None,
    ) -> None:
        if not dataset_info.maps:
            raise ValueError(
                "segmentation learns from segmentation maps; the training data has none: take a source with maps, such "
                "as segmentation_folder"
            )
        classes = len(dataset_info.classes)
        if not 2 <= classes <= IGNORE_LABEL:
            raise ValueError(f"segmentation needs 2 to {IGNORE_LABEL} classes; the training data has {classes}")
        super().__init__(dataset_info, backbone, freeze_stages, freeze_norms, freeze_random, mean, std)
        if auxiliary is not None:  # DeepLab and PSPNet have one on the third stage, dilated or not
            self.levels = self.backbone.keep_dilated_stages() or self.levels
        self.decoder = decoder(self.levels, classes)
        self.auxiliary = auxiliary(self.levels, classes) if auxiliary else None
        if self.decoder.own_losses and (losses or auxiliary):
            raise ValueError(
                f"losses, auxiliary: {type(self.decoder).__name__} has losses of its own; set both to null"
            )
        self.pixel_losses = list(losses or [pixel_cross_entropy])
        self.auxiliary_weight = auxiliary_weight
        self.size_multiple = self._multiple = size_multiple or self.levels[-1].stride
        self.min_samples_per_rank = max(
            part.min_samples_per_rank for part in (self.decoder, self.auxiliary) if part is not None
        )
        self.test_time_augmentation, self.sliding_window = test_time_augmentation, sliding_window
        self._validation_loss, self._evaluator = validation_loss, evaluator

    def extra_repr(self) -> str:
        """Return the losses, so that the log shows them with the model."""
        return "" if self.decoder.own_losses else f"(losses): {self.pixel_losses}"

    def losses(self, features: Features, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss_<name>`` of each loss, ``loss_auxiliary`` and ``pixel_accuracy``; or the decoder's own."""
        targets = batch["mask"].long()
        maps = features["pyramid"]
        if self.decoder.own_losses:
            return self.decoder.losses(self.decoder.query_masks(maps), semantic_segments(targets))
        # BF16 would round neighboring pixels alike; losses of channels-last logits take a half longer on CPUs.
        logits = resize_like(self.decoder(maps).float().contiguous(), targets)
        values = self._losses(logits, targets)
        if self.auxiliary is not None:
            auxiliary = self._losses(resize_like(self.auxiliary(maps).float().contiguous(), targets), targets)
            values["loss_auxiliary"] = self.auxiliary_weight * torch.stack(list(auxiliary.values())).sum()
        labeled = targets != IGNORE_LABEL
        # On CPUs, argmax takes forty times as long as the maximum.
        predicted = logits.detach().amax(1, keepdim=True)
        correct = (logits.detach().gather(1, targets.where(labeled, 0).unsqueeze(1)) == predicted).squeeze(1) & labeled
        return values | {"pixel_accuracy": correct.sum() / labeled.sum().clamp(min=1)}

    def _losses(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        names = [getattr(loss, "func", loss).__name__.removeprefix("pixel_") for loss in self.pixel_losses]
        return {f"loss_{name}": loss(logits, targets) for name, loss in zip(names, self.pixel_losses, strict=True)}

    def _plain_logits(self, images: Tensor, sizes: Sizes) -> Tensor:
        """Return the logits of the pixels of a padded batch from one forward pass (float32, B x K x H x W)."""
        return resize_like(self.decoder(self.feature_maps(images, sizes)).float(), images)

    def _window_logits(self, images: Tensor, sizes: Sizes) -> Tensor:
        """Return them from windows, if there are any."""
        if self.sliding_window is None:
            return self._plain_logits(images, sizes)
        return slide(self._plain_logits, images, sizes, self.sliding_window, self._multiple)

    def logits(self, images: Tensor, sizes: Sizes) -> Tensor:
        """Return the logits of the pixels of a padded batch (B x K x H x W), as the options of inference say.

        Args:
            images: B x C x H x W.
            sizes: height and width of each image in it.
        """
        if self.test_time_augmentation is None:
            return self._window_logits(images, sizes)
        return average_views(self._window_logits, images, sizes, self.test_time_augmentation, self._multiple)

    def reads_whole_images(self, batch: Batch) -> bool:
        """See :meth:`opabinia.tasks.dense_base.DensePrediction.reads_whole_images`."""
        return self.test_time_augmentation is None and self.sliding_window is None

    def predictions(self, features: Features, batch: Batch) -> Predictions:
        """Return ``segmentation`` and ``image_size`` (see :data:`opabinia.contracts.Predictions`), and ``losses/...``
        if the batch has maps."""
        images, sizes = batch["image"], batch["image_sizes"]
        if self.reads_whole_images(batch):
            logits = resize_like(self.decoder(features["pyramid"]).float(), images)
        else:
            logits = self.logits(images, sizes)
        rows = {
            "segmentation": original_maps(logits, sizes, batch["original_size"]),
            "image_size": torch.tensor(batch["original_size"]),
        }
        if not self._validation_loss or "mask" not in batch or self.decoder.own_losses:
            return rows
        return rows | validation_losses(lambda: self._losses(logits, batch["mask"].long()), images)

    def predict_together(self, models: Sequence[Task], batch: Batch) -> Predictions:
        """Return the most probable classes by the mean of the models' probabilities of each pixel."""
        total: Tensor | float = 0.0
        for model in models:
            assert isinstance(model, Segmentation)
            total = total + model.logits(batch["image"], batch["image_sizes"]).float().softmax(1)
        assert isinstance(total, Tensor)
        return {
            "segmentation": original_maps(total, batch["image_sizes"], batch["original_size"]),
            "image_size": torch.tensor(batch["original_size"]),
        }

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the configured evaluator, or ``semantic``; and the mean losses.

        Raises:
            ValueError: the dataset has no maps, or other classes or channels than the training data.
        """
        check_channels(dataset_info, self.dataset_info)
        if not dataset_info.maps:
            raise ValueError("it has no segmentation maps to compare with")
        check_classes(dataset_info, self.dataset_info)
        evaluators = [(self._evaluator or Semantic)(dataset_info)]
        with_losses = self._validation_loss and not self.decoder.own_losses
        return [*evaluators, MeanLosses()] if with_losses else evaluators

    def presenter(self) -> SegmentationPresenter:
        """Show the map of classes."""
        return SegmentationPresenter(self.dataset_info)

    def export_module(self) -> ExportModule:
        """Return segmentation of images of one size; see :class:`SegmentationExport`."""
        return SegmentationExport(self)


class SegmentationExport(PaddedExport):
    """Maps of images padded to one size: ``segmentation`` (uint8, B x H x W: the class of each pixel) and ``logits``
    (B x K x H x W)."""

    refused: ClassVar = dict.fromkeys(
        ("test_time_augmentation", "sliding_window"), "an exported graph sees an image once"
    )

    def outputs(self, features: Features, image: Tensor, image_sizes: Tensor | None = None) -> Predictions:
        """Return predictions by the names above."""
        logits = resize_like(self.task.decoder(features["pyramid"]), image)
        return {"segmentation": logits.argmax(1).to(torch.uint8), "logits": logits}

    @torch.no_grad()
    def expected(self, inputs: Mapping[str, Tensor]) -> Predictions:
        sizes = [(int(height), int(width)) for height, width in inputs["image_sizes"].tolist()]
        logits = self.task.logits(inputs["image"], sizes)
        return {"segmentation": logits.argmax(1).to(torch.uint8), "logits": logits}

    def difference(self, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> float:
        """Return the largest relative difference of logits; classes differ only where two logits are nearly equal."""
        return super().difference({"logits": expected["logits"]}, actual)
