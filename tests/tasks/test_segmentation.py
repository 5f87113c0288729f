"""The segmentation task: losses, maps of original images, sliding windows, augmented views, and invalid data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from opabinia.contracts import (
    IGNORE_LABEL,
    Backbone,
    Batch,
    Clock,
    DatasetInfo,
    DrawOptions,
    GroundTruthMap,
    Level,
    SegmentationDecoder,
)
from opabinia.contracts.masks import decode_rle
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders import Fcn, Linear
from opabinia.tasks.dense_base import TestTimeAugmentation, window_starts
from opabinia.tasks.segmentation import Segmentation
from opabinia.tasks.segmentation.inference import SlidingWindow, average_views, original_maps

DATASET_INFO = DatasetInfo(samples=4, channels=1, classes=("dark", "bright"), maps=True)
CLOCK = Clock()


class Pixels(Backbone):
    """A backbone whose features are the normalized images."""

    out_channels = 1

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def enable_multi_scale(self) -> list[Level]:
        return [Level(1, 4)]

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        assert not any(side % 4 for side in images.shape[-2:])
        return [images * self.scale]


class Threshold(SegmentationDecoder):
    """A decoder that classifies pixels above the mean as bright."""

    def __init__(self, levels: Sequence[Level], classes: int) -> None:
        super().__init__()

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        return torch.cat([-maps[0], maps[0]], 1) * 9


def segmentation(dataset_info: DatasetInfo = DATASET_INFO, decoder: Any = Threshold, **keys: Any) -> Segmentation:
    return Segmentation(dataset_info, backbone=Pixels, decoder=decoder, mean=[0.5], std=[1.0], **keys).eval()


def batch_of(sizes: Sequence[tuple[int, int]], scale: int = 1) -> Batch:
    """Return a padded batch of images whose left half is bright; the originals are larger by ``scale``."""
    height, width = (4 * -(-max(sides) // 4) for sides in zip(*sizes, strict=True))
    images, masks = torch.zeros(len(sizes), 1, height, width), torch.full((len(sizes), height, width), IGNORE_LABEL)
    maps = []
    for row, (rows, columns) in enumerate(sizes):
        images[row, :, :rows, : columns // 2] = 1
        masks[row, :rows, :columns] = (torch.arange(columns) < columns // 2).long()
        labels = masks[row, :rows, :columns].numpy().astype(np.uint8).repeat(scale, 0).repeat(scale, 1)
        maps.append(GroundTruthMap(str(row), labels))
    return {
        "image": images,
        "mask": masks.to(torch.uint8),
        "image_sizes": list(sizes),
        "original_size": [(scale * rows, scale * columns) for rows, columns in sizes],
        "ground_truth_map": maps,
        "id": [str(row) for row in range(len(sizes))],
    }


def scores_of(task: Segmentation, batch: Batch) -> dict[str, float]:
    evaluators = task.evaluators(DATASET_INFO)
    with torch.no_grad():
        predictions = task.predict(batch)
    for evaluator in evaluators:
        evaluator.update(predictions, batch)
    return {name: value for evaluator in evaluators for name, value in evaluator.compute([evaluator.state()]).items()}


def test_an_auxiliary_decoder_reads_the_third_stage_of_dilated_networks() -> None:
    for stride in (8, 16, 32):
        options = {"channels": [4, 8, 12, 16], "stem_width": 4, "output_stride": stride}
        backbone = partial(timm, model="resnet10t", options=options)
        task = Segmentation(
            DATASET_INFO, backbone=backbone, decoder=Linear, auxiliary=partial(Fcn, level=2, channels=4)
        )
        maps = task.feature_maps(torch.zeros(1, 1, 64, 64), [(64, 64)])
        assert task.auxiliary is not None and task.decoder(maps).shape[-1] == 64 // stride
        assert maps[-2].shape[1] == 12 and task.auxiliary.eval()(maps).shape[-1] == 64 // min(stride, 16)


def test_decoder_and_auxiliary_decoder_have_a_loss_each() -> None:
    task = segmentation(auxiliary=lambda levels, classes: Fcn(levels, classes, channels=4), auxiliary_weight=0.5)
    batch = batch_of([(8, 12), (5, 6)])
    losses = task(batch, CLOCK)
    assert losses.keys() == {"loss_cross_entropy", "loss_auxiliary", "pixel_accuracy"}
    assert float(losses["pixel_accuracy"]) == 1
    targets = batch["mask"].long()
    maps = task.feature_maps(batch["image"], batch["image_sizes"])
    expected = F.cross_entropy(task.decoder(maps), targets, ignore_index=IGNORE_LABEL)
    torch.testing.assert_close(losses["loss_cross_entropy"], expected)
    assert task.auxiliary is not None
    logits = F.interpolate(task.auxiliary(maps), size=targets.shape[-2:], mode="bilinear")
    expected = 0.5 * F.cross_entropy(logits, targets, ignore_index=IGNORE_LABEL)
    torch.testing.assert_close(losses["loss_auxiliary"], expected)


def test_a_batch_without_labeled_pixels_has_no_loss() -> None:
    task = segmentation()
    batch = batch_of([(8, 8)])
    losses = task({**batch, "mask": torch.full_like(batch["mask"], IGNORE_LABEL)}, CLOCK)
    assert all(value.item() == 0 for value in losses.values())
    losses["loss_cross_entropy"].backward()  # type: ignore[no-untyped-call]


def test_maps_have_the_size_of_the_originals_and_are_evaluated_there() -> None:
    task, batch = segmentation(), batch_of([(8, 12), (5, 6)], scale=3)
    predictions = task.predict(batch)
    assert predictions["segmentation"].shape == (2, 24, 36) and predictions["segmentation"].dtype == torch.uint8
    assert predictions["image_size"].tolist() == [[24, 36], [15, 18]]
    assert (predictions["segmentation"][1, 15:] == IGNORE_LABEL).all()
    scores = scores_of(task, batch)
    assert scores["mIoU"] == 1 and scores["loss"] == pytest.approx(scores["loss_cross_entropy"])


@pytest.mark.parametrize("window", [(4, 4), (8, 6), (100, 100)])
def test_windows_give_the_logits_of_the_whole_image(window: tuple[int, int]) -> None:
    """The receptive field of this network is one pixel."""
    batch = batch_of([(11, 13), (4, 9)])
    expected = segmentation().logits(batch["image"], batch["image_sizes"])
    task = segmentation(sliding_window=SlidingWindow(size=window, overlap=0.3, batch_size=3))
    logits = task.logits(batch["image"], batch["image_sizes"])
    for row, (height, width) in enumerate(batch["image_sizes"]):
        torch.testing.assert_close(logits[row, :, :height, :width], expected[row, :, :height, :width])
    assert scores_of(task, batch)["mIoU"] == 1


def test_windows_cover_a_side_and_end_with_it() -> None:
    assert window_starts(10, 4, 0.5) == [0, 2, 4, 6]
    assert window_starts(11, 4, 0.0) == [0, 4, 7]
    assert window_starts(3, 4, 0.5) == window_starts(4, 4, 0.5) == [0]


def test_scaled_and_mirrored_views_are_averaged() -> None:
    augmentation = TestTimeAugmentation(scales=[1.0, 2.0], flip=True)
    task, batch = segmentation(test_time_augmentation=augmentation), batch_of([(8, 12), (6, 8)])
    assert scores_of(task, batch)["mIoU"] == 1
    expected = segmentation().logits(batch["image"], batch["image_sizes"]).softmax(1)
    one_scale = segmentation(test_time_augmentation=replace(augmentation, scales=[1.0]))
    with torch.no_grad():
        probabilities = one_scale.logits(batch["image"], batch["image_sizes"]).exp()
    # Only the first image has no padding, which mirroring would move.
    torch.testing.assert_close(probabilities[0, :, :8, :12], expected[0, :, :8, :12])


def test_original_maps_of_large_images_are_computed_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(2, 7, 6, 8, generator=torch.Generator().manual_seed(0))
    arguments = (logits, [(6, 8), (5, 4)], [(40, 60), (33, 20)])
    expected = original_maps(*arguments)
    sizes = []
    interpolate = torch.nn.functional.interpolate

    def record(values: Tensor, **options: Any) -> Tensor:
        sizes.append(values.shape[1])
        return interpolate(values, **options)

    monkeypatch.setattr(torch.nn.functional, "interpolate", record)
    monkeypatch.setattr("opabinia.tasks.segmentation.inference.MAX_VALUES", 40 * 60 * 3)
    assert torch.equal(original_maps(*arguments), expected) and expected.unique().tolist() == [*range(7), 255]
    assert sizes == [3, 3, 1, 7]


def test_original_maps_resize_logits_before_argmax() -> None:
    logits = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.2]]]])
    assert original_maps(logits, [(1, 2)], [(1, 4)]).tolist() == [[[0, 0, 1, 1]]]


def test_a_prediction_is_readable_and_drawn(tmp_path: Path) -> None:
    task, batch = segmentation(), batch_of([(8, 12), (5, 6)], scale=2)
    predictions = task.predict(batch)
    row = {name: value[1] for name, value in predictions.items()}
    presenter = task.presenter()
    readable = presenter.readable(row)
    assert [(row["class"], row["share"]) for row in readable["classes"]] == [("dark", 0.5), ("bright", 0.5)]
    bright = decode_rle(readable["classes"][1]["mask"], (10, 12))
    assert np.array_equal(bright, row["segmentation"][:10, :12].numpy() == 1)
    assert presenter.caption(readable) == ["dark 50.0%", "bright 50.0%"]
    sample = {"image": torch.zeros(1, 10, 12, dtype=torch.uint8), "mask": torch.zeros(10, 12, dtype=torch.uint8)}
    drawn = presenter.save(tmp_path, "a", sample, row, DrawOptions())
    plain = presenter.draw(sample, row, DrawOptions(legend=False))
    assert plain.size[0] * 10 == plain.size[1] * 12
    assert drawn is not None and drawn.size[1] > plain.size[1]
    saved = np.asarray(Image.open(tmp_path / "maps/a.png"))
    assert np.array_equal(saved, row["segmentation"][:10, :12].numpy())
    assert presenter.ground_truth_caption(sample, DATASET_INFO.classes) == ["dark 100.0%"]
    assert presenter.draw_ground_truth(sample, DATASET_INFO.classes) is not None


def test_the_exported_function_gives_the_same_maps() -> None:
    task = segmentation()
    module = task.export_module()
    module.check_static()
    inputs = module.inputs(
        [{"image": image[:, : 8 - row, : 12 - row]} for row, image in enumerate(batch_of([(8, 12)] * 2)["image"])]
    )
    assert inputs["image"].shape[-2:] == (8, 12) and inputs["image_sizes"].tolist() == [[8, 12], [7, 11]]
    with torch.no_grad():
        assert module.difference(module.expected(inputs), dict(module(**inputs))) == 0
    refused = segmentation(sliding_window=SlidingWindow(size=(4, 4))).export_module()
    with pytest.raises(ValueError, match="sliding_window"):
        refused.check_static()


def test_invalid_data_and_decoders_are_refused() -> None:
    for dataset_info, message in (
        (replace(DATASET_INFO, maps=False), "segmentation learns from segmentation maps"),
        (replace(DATASET_INFO, classes=("one",)), "2 to 255 classes; the training data has 1"),
        (replace(DATASET_INFO, classes=tuple(map(str, range(256)))), "the training data has 256"),
    ):
        with pytest.raises(ValueError, match=message):
            segmentation(dataset_info)
    for dataset_info, message in (
        (replace(DATASET_INFO, maps=False), "no segmentation maps"),
        (replace(DATASET_INFO, classes=("dark", "red")), "classes"),
        (replace(DATASET_INFO, channels=3), "channels"),
    ):
        with pytest.raises(ValueError, match=message):
            segmentation().evaluators(dataset_info)

    class OwnLosses(Threshold):
        own_losses = True

    with pytest.raises(ValueError, match="losses, auxiliary: OwnLosses has losses of its own"):
        segmentation(decoder=OwnLosses, auxiliary=Threshold)


def test_padding_of_views_is_cut_off() -> None:
    images = torch.rand(1, 3, 5, 13, generator=torch.Generator().manual_seed(0))
    augmentation = TestTimeAugmentation(scales=[1.0], flip=False)
    means = average_views(lambda view, sizes: view[:, :2], images, [(5, 13)], augmentation, 8)
    torch.testing.assert_close(means, images[:, :2].log_softmax(1))
