"""Frames and crops of clips."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Sample
from opabinia.data.collate import collate
from opabinia.data.decoding.image_sequences import VideoInMemory
from opabinia.data.transforms.clips import (
    MultiScaleCrop,
    ShortSideJitter,
    clip_flip,
    frame_differences,
    three_crop,
)
from opabinia.data.transforms.frame_sampling import Clip


def make_video(count: int, height: int = 8, width: int = 12, fps: float = 30.0) -> Sample:
    """Return a video whose frame k has color k."""
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, height, width)
    return {"video": VideoInMemory(pixels, fps=fps), "label": 3, "id": "a"}


def frame_numbers(clip: Clip, sample: Sample) -> list[int]:
    result = clip(sample)
    assert result.keys() == sample.keys() - {"video"} | {"image"}
    assert isinstance(result["image"], tv_tensors.Video) and result["image"].dtype == torch.uint8
    numbers: list[int] = result["image"][:, 0, 0, 0].tolist()
    return numbers


def sampled_clips(clip: Clip, sample: Callable[[], Sample], times: int = 200) -> list[list[int]]:
    torch.manual_seed(0)
    return [frame_numbers(clip, sample()) for _ in range(times)]


def test_dense_clips_lie_anywhere_in_the_video() -> None:
    clips = sampled_clips(Clip(frames=4, stride=3), lambda: make_video(20))
    assert {frames[0] for frames in clips} == set(range(11)), "0 to 20 - 1 - 9"
    assert all(np.diff(frames).tolist() == [3, 3, 3] for frames in clips)
    assert frame_numbers(Clip(frames=4, stride=3, position="middle"), make_video(20)) == [5, 8, 11, 14]
    assert frame_numbers(Clip(frames=4, stride=3, position="start"), make_video(20)) == [0, 3, 6, 9]
    clips = sampled_clips(Clip(frames=4, stride=(2, 4)), lambda: make_video(40))
    assert {frames[1] - frames[0] for frames in clips} == {2, 3, 4}, "strides are drawn"
    assert frame_numbers(Clip(frames=4, stride=(2, 4), position="start"), make_video(40)) == [0, 2, 4, 6]


def test_short_videos_are_repeated() -> None:
    for position in ("random", "middle", "start"):
        assert frame_numbers(Clip(frames=6, stride=2, position=position), make_video(5)) == [0, 2, 4, 1, 3, 0]
        repeating = Clip(frames=6, stride=2, position=position, out_of_bounds="repeat_last")
        assert frame_numbers(repeating, make_video(5)) == [0, 2, 4, 4, 4, 4]
    assert frame_numbers(Clip(frames=3, sampling="uniform"), make_video(1)) == [0, 0, 0]


def test_uniform_clips_take_a_frame_of_each_part() -> None:
    clips = sampled_clips(Clip(frames=4, sampling="uniform"), lambda: make_video(10))
    parts = [(0, 1), (2, 3, 4), (5, 6), (7, 8, 9)]
    assert [{frames[part] for frames in clips} for part in range(4)] == list(map(set, parts))
    assert frame_numbers(Clip(frames=4, sampling="uniform", position="middle"), make_video(10)) == [0, 3, 5, 8]
    assert frame_numbers(Clip(frames=6, sampling="uniform", position="middle"), make_video(3)) == [0, 0, 1, 1, 2, 2]


def test_a_frame_rate_gives_clips_of_the_same_duration() -> None:
    clip = Clip(frames=4, stride=2, fps=30, position="start")
    assert frame_numbers(clip, make_video(40, fps=30)) == [0, 2, 4, 6]
    assert frame_numbers(clip, make_video(40, fps=60)) == [0, 4, 8, 12]
    assert frame_numbers(clip, make_video(40, fps=25)) == [0, 1, 3, 5]


def test_a_shape_sets_the_number_of_frames_and_the_strides() -> None:
    """SlowFast's long cycle: a quarter of the frames, at 1 to 4 times the stride."""
    for shape, count, strides in (((2, 5, 5), 2, range(2, 9)), ((8, 5, 5), 8, [2]), (None, 8, [2])):
        clips = sampled_clips(Clip(frames=8, stride=2), lambda: make_video(64) | {"shape": shape})  # noqa: B023
        assert {len(frames) for frames in clips} == {count}
        assert {frames[1] - frames[0] for frames in clips} == set(strides)


def test_views_lie_evenly_over_the_video_and_use_no_random_numbers() -> None:
    def view(clip: Clip, number: int, clips: int) -> list[int]:
        return frame_numbers(clip, make_video(31) | {"view": ((number, clips), (0, 1))})

    dense = Clip(frames=4, stride=2)
    before = torch.get_rng_state()
    assert [view(dense, number, 4)[0] for number in range(4)] == [0, 8, 16, 24]
    assert view(dense, 0, 1) == [12, 14, 16, 18]
    uniform = Clip(frames=3, sampling="uniform")
    result = [view(uniform, number, 5) for number in range(5)]
    assert len({tuple(frames) for frames in result}) == 5, "uniform clips of one video differ, too"
    assert all(frames < later for frames, later in pairwise(result))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Clip(frames=4, stride=(4, 2)), r"stride: the minimum of \[4, 2\] is above the maximum"),
        (lambda: Clip(frames=4, stride=2, sampling="uniform"), "stride and fps are for dense"),
        (lambda: Clip(frames=4, fps=9.0, sampling="uniform"), "stride and fps are for dense"),
        (lambda: Clip(frames=4)({"image": 1}), "clip needs videos, and the sample holds an image"),
        (lambda: Clip(frames=4)({"id": "a"}), "and the sample holds no video"),
        (lambda: ShortSideJitter(size=16, scale=(30, 20)), "is above the maximum"),
        (lambda: ShortSideJitter(size=16, scale=(12, 20)), "a crop of 16 does not fit"),
        (lambda: three_crop(clip_of(8, 8), size=8, short_side=6), "a crop of 8 does not fit into a shorter side of 6"),
        (lambda: frame_differences({"image": torch.zeros(3, 4, 4)}), "takes clips"),
    ],
)
def test_options_and_samples_that_do_not_fit_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- crops and flips --------------------------------------------------------------------------------------------------


def clip_of(height: int, width: int, frames: int = 4) -> Sample:
    """Return a clip with equal frames, whose pixels differ."""
    pixels = torch.arange(3 * height * width).view(1, 3, height, width).expand(frames, -1, -1, -1) * 7 % 256
    return {"image": tv_tensors.Video(pixels.to(torch.uint8).contiguous()), "label": 1, "id": "a"}


def frames_are_equal(image: Any) -> bool:
    return bool((image == image[:1]).all())


def test_crops_of_a_drawn_size_are_the_same_for_all_frames() -> None:
    torch.manual_seed(0)
    transform = ShortSideJitter(size=16, scale=(20, 30))
    result = [transform(clip_of(24, 40))["image"] for _ in range(20)]
    assert all(image.shape == (4, 3, 16, 16) and frames_are_equal(image) for image in result)
    assert len({tuple(image[0].flatten().tolist()) for image in result}) > 15
    for shape in ((2, 8, 8), (4, 12, 10), (4, 8, 30)):
        assert transform(clip_of(24, 30) | {"shape": shape})["image"].shape == (4, 3, *shape[1:])
    assert transform(clip_of(24, 30) | {"shape": None})["image"].shape == (4, 3, 16, 16)


def test_the_smallest_short_side_shrinks_with_the_crop() -> None:
    """SlowFast: 256 to 320 for 224 are 181 to 320 for 158 and 128 to 320 for 112."""

    def sides(transform: ShortSideJitter, crop: int) -> list[int]:
        torch.manual_seed(0)
        return [transform._random_side(crop) for _ in range(4000)]

    transform = ShortSideJitter(size=224)
    for crop, low in ((224, 256), (158, 181), (112, 128)):
        result = sides(transform, crop)
        assert (min(result), max(result)) == (low, 320)
        assert np.mean(result) == pytest.approx((low + 320) / 2, abs=2)
    inverse = sides(ShortSideJitter(size=224, scale=(256, 340), inverse_uniform=True), 224)
    assert (min(inverse), max(inverse)) == (256, 340)
    assert np.mean(1 / np.array(inverse)) == pytest.approx((1 / 256 + 1 / 340) / 2, rel=0.002)


def test_crops_of_several_scales_lie_at_fixed_positions() -> None:
    """A crop's corners are the extremes of a clip whose pixels are their own coordinates."""
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(40), indexing="ij")
    pixels = torch.stack([rows, columns, rows]).expand(2, 3, 32, 40).to(torch.uint8)
    drawn: dict[str, set[tuple[int, ...]]] = {}
    for positions in ("corners", "grid"):
        crop = MultiScaleCrop(size=8, scales=(1, 0.5, 0.25), positions=positions, interpolation="nearest")
        torch.manual_seed(0)
        boxes = set()
        for _ in range(700):
            image = crop({"image": tv_tensors.Video(pixels)})["image"]
            assert image.shape == (2, 3, 8, 8) and torch.equal(image[0], image[1])
            row, column = image[0, 0, :, 0].tolist(), image[0, 1, 0].tolist()
            height, width = (line[1] - line[0] for line in (row, column))
            boxes.add((row[0], column[0], height * 8, width * 8))
        drawn[positions] = boxes
    # Of 32, 16 and 8 pixels, one step apart at most.
    assert {box[2:] for box in drawn["corners"]} == {(a, b) for a in (32, 16, 8) for b in (32, 16, 8)} - {
        (32, 8),
        (8, 32),
    }
    small = {kind: sorted(box[:2] for box in boxes if box[2:] == (16, 16)) for kind, boxes in drawn.items()}
    assert {(top // 4, left // 6) for top, left in small["corners"]} == {(0, 0), (0, 4), (2, 2), (4, 0), (4, 4)}
    assert len(small["grid"]) == 13
    shaped = MultiScaleCrop(size=8)({"image": tv_tensors.Video(pixels), "shape": (2, 6, 4)})
    assert shaped["image"].shape == (2, 3, 6, 4)


def test_crops_of_views_lie_along_the_longer_side() -> None:
    wide, tall = clip_of(10, 25), clip_of(25, 10)
    for number, start in enumerate((0, 8, 15)):
        view = {"view": ((0, 1), (number, 3))}
        assert torch.equal(three_crop(wide | view, size=10)["image"], wide["image"][..., start : start + 10])
        assert torch.equal(three_crop(tall | view, size=10)["image"], tall["image"][..., start : start + 10, :])
    assert torch.equal(three_crop(wide, size=10)["image"], wide["image"][..., 8:18]), "the center, without views"
    single = {"view": ((0, 1), (0, 1))}
    assert torch.equal(three_crop(wide | single, size=10)["image"], wide["image"][..., 8:18])
    assert three_crop(wide, size=8, short_side=12)["image"].shape == (4, 3, 8, 8)


def test_labels_that_depend_on_the_side_are_not_flipped() -> None:
    sample = clip_of(6, 8)
    flipped = clip_flip(sample, probability=1.0)
    assert torch.equal(flipped["image"], sample["image"].flip(-1)) and isinstance(flipped["image"], tv_tensors.Video)
    assert torch.equal(clip_flip(sample | {"flip_changes_label": True}, probability=1.0)["image"], sample["image"])
    assert torch.equal(clip_flip(sample, probability=0.0)["image"], sample["image"])
    torch.manual_seed(0)
    assert 60 < sum(not torch.equal(clip_flip(sample)["image"], sample["image"]) for _ in range(200)) < 140


def test_torchvision_transforms_treat_all_frames_alike() -> None:
    torch.manual_seed(3)
    for transform in (
        *(v2.RandAugment(num_ops=3, magnitude=12), v2.TrivialAugmentWide(), v2.AutoAugment(), v2.RandomErasing(p=1.0)),
        *(v2.RandomResizedCrop(12), v2.RandomHorizontalFlip(), v2.ColorJitter(0.5, 0.5, 0.5), v2.RandomAffine(20)),
    ):
        changed = 0
        for _ in range(8):
            sample = clip_of(16, 20)
            result = transform(sample)["image"]
            assert isinstance(result, tv_tensors.Video) and result.shape[:2] == (4, 3)
            assert frames_are_equal(result)
            changed += result.shape != sample["image"].shape or not torch.equal(result, sample["image"])
        assert changed >= 2, transform


def test_clips_are_collated() -> None:
    clip = Clip(frames=3, position="middle")
    batch = collate([clip(make_video(9)), clip(make_video(5))])
    assert batch["image"].shape == (2, 3, 3, 8, 12)
    assert batch["image"][:, :, 0, 0, 0].tolist() == [[3, 4, 5], [1, 2, 3]]
    views = collate([clip(make_video(9) | {"view": ((number, 4), (1, 3))}) for number in range(2)])
    assert [numbers.tolist() for numbers in views["view"][0]] == [[0, 1], [4, 4]]


def test_frame_differences() -> None:
    clip = torch.tensor([[0, 255], [255, 0], [255, 3]], dtype=torch.uint8).view(3, 1, 1, 2)
    result = frame_differences({"image": tv_tensors.Video(clip), "label": 1})
    assert isinstance(result["image"], tv_tensors.Video) and result["label"] == 1
    assert result["image"].flatten(1).tolist() == [[128, 128], [255, 0], [128, 129]]
