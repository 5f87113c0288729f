"""Predictions for videos from Python and from the command line, with strips of frames and labelled clips."""

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import opabinia
from opabinia.config import ConfigError
from opabinia.contracts import Video
from opabinia.data.decoding.image_sequences import VideoInMemory
from opabinia.data.decoding.video import VideoFile
from opabinia.data.errors import DataError
from opabinia.inference.compare import compare
from opabinia.inference.embedding_map import draw_map
from opabinia.inference.extract import extract
from opabinia.inference.load import RunModel
from opabinia.inference.predict import predict, retrieve
from opabinia.inference.predictor import Predictor
from opabinia.training import launch
from opabinia.visualization.drawing import FRAME_COLORS
from opabinia.visualization.video_strips import (
    MIN_WIDTH,
    RecordingVideo,
    SampledClip,
    draw_strip,
    representative_image,
    sampled_clips,
    write_clip,
)
from tests.data.videos import write

CROPPED = "[{name: clip, frames: 4, stride: 2, position: middle}, {name: three_crop, size: 32}]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos of each of two classes, of different lengths."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(6):
        write(folder / ("odd" if number % 2 else "even") / f"{number}.mp4", 12 + 2 * number, size=(48, 64))
    return folder


def sources(folder: Path, views: bool = False) -> list[str]:
    videos = f"{{name: videos, root: {json.dumps(str(folder))}, channels: 1}}"
    val_source = f"{{name: video_views, source: {videos}, clips: 3, crops: 2}}" if views else videos
    return [f"data.train.source={videos}", f"data.val.source={val_source}", f"data.val.transforms={CROPPED}"]


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = ["train.length=2it", "data.num_workers=0", "data.batch_size=4", "loggers=[]", "schedule.warmup=1it"]
    crop = "data.train.transforms=[{name: clip, frames: 4, stride: 2}, {name: scale_jitter, size: 32, scale: [32, 40]}]"
    overrides = [*sources(folder), crop, *small]
    return launch.train("video/digits", overrides, out=tmp_path_factory.mktemp("runs"))[0]


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return opabinia.load(run)


@pytest.fixture(scope="module")
def views_predictor(run: Path, folder: Path) -> Predictor:
    return opabinia.load(run, sources(folder, views=True))


# --- from Python ------------------------------------------------------------------------------------------------------


def test_every_video_input_type_gives_the_same_predictions(predictor: Predictor, folder: Path) -> None:
    path = folder / "odd" / "1.mp4"
    frames = VideoFile(path, 1).read(range(14))
    grey = frames[:, 0].numpy()[..., None]
    videos: list[Any] = [path, str(path), VideoFile(path, 1), frames, grey, frames / 255]
    predictions = predictor(videos)
    assert all(torch.allclose(prediction["logits"], predictions[0]["logits"], atol=1e-4) for prediction in predictions)
    assert {candidate["class"] for candidate in predictions[0].readable["top"]} == {
        "even",
        "odd",
    } and "views" not in predictions[0]


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (np.zeros((8, 8, 3), dtype=np.uint8), r"a video is a path, an array .* not a ndarray \(8, 8, 3\)"),
        (torch.zeros(0, 1, 8, 8), "not a Tensor"),
        (None, "not a NoneType"),
    ],
    ids=["an image", "no frames", "None"],
)
def test_invalid_videos_are_reported(predictor: Predictor, video: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predictor(video)


def test_predictions_average_the_views_of_the_evaluation(
    predictor: Predictor, views_predictor: Predictor, folder: Path
) -> None:
    path = folder / "odd" / "5.mp4"  # 22 frames: a clip may begin at 0, 7 and 15
    sample = views_predictor.sample(path)
    assert sample["image"].shape == (6, 4, 1, 32, 32)
    starts = [0, 0, 7, 7, 15, 15]
    assert sample["frames"] == [[start + 2 * number for number in range(4)] for start in starts]
    (prediction,) = views_predictor.batch([sample])
    assert prediction["views"].shape == (6, 2)
    torch.testing.assert_close(prediction["probabilities"], prediction["views"].mean(0))
    torch.testing.assert_close(prediction["logits"].softmax(0), prediction["probabilities"])
    assert len(prediction.readable["views"]) == 6
    per_view = predictor.task.predict({"image": sample["image"]})["probabilities"]
    torch.testing.assert_close(per_view, prediction["views"])
    assert views_predictor.batch_size == 32 // 6
    embedding = predictor.task.features({"image": sample["image"]})["embedding"].mean(0)
    torch.testing.assert_close(views_predictor.embeddings([sample])[0], embedding / embedding.norm())


def test_predictions_agree_with_the_evaluation(run: Path, views_predictor: Predictor, folder: Path) -> None:
    files = sorted(folder.rglob("*.mp4"))
    correct = [
        prediction.readable["top"][0]["class"] == path.parent.name
        for path, prediction in zip(files, views_predictor(files), strict=True)
    ]
    scores = launch.evaluate(run, [*sources(folder, views=True), "data.num_workers=0"], name="views")
    assert sum(correct) / len(files) == pytest.approx(scores["views/top1"])


def test_explaining_videos_is_rejected(predictor: Predictor, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"only images .* can be explained, not videos"):
        predictor.explain([predictor.sample(folder / "odd" / "1.mp4")])


# --- strips and clips -------------------------------------------------------------------------------------------------


class ReadCounter(VideoInMemory):
    """Counts how often it is read."""

    reads = 0

    def read(self, indices: Any, short_side: int | None = None) -> Tensor:
        self.reads += 1
        return super().read(indices, short_side)


def test_requested_frames_are_recorded_and_read_once() -> None:
    inner = ReadCounter(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 1, 4, 4))
    video = RecordingVideo(inner)
    assert isinstance(video, Video) and (video.frames, video.size, video.fps, video.seconds) == (6, (4, 4), 30.0, 0.2)
    first = video.read([1, 3])
    first.zero_()  # as a transform may do
    assert video.read([1, 3])[:, 0, 0, 0].tolist() == [1, 3] and inner.reads == 1
    video.read([1, 3], 2)
    video.read(range(2))
    assert inner.reads == 3 and video.requests == [[1, 3], [1, 3], [1, 3], [0, 1]]


def test_crops_of_a_clip_are_reported_together() -> None:
    views = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    clips = sampled_clips(
        [[0, 2], [0, 2], [4, 6], [4, 6]], {"probabilities": views.mean(0), "views": views}, ["a", "b"]
    )
    assert clips == [
        SampledClip([0, 2], "clip 1 of 2", 0, "a 90.0% 80.0%"),
        SampledClip([4, 6], "clip 2 of 2", 0, "a 30.0% 40.0%"),
    ]
    single_view = sampled_clips([[0, 2]], {"probabilities": torch.tensor([0.25, 0.75])}, ["a", "b"])
    assert single_view == [SampledClip([0, 2], "", 1, "b 75.0%")]


def brightness_video(count: int, height: int = 16, width: int = 16) -> VideoInMemory:
    """A video whose frames have ten times their number as pixel value."""
    frames = 10 * torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1)
    return VideoInMemory(frames.expand(count, 3, height, width), fps=10.0)


def test_a_strip_has_a_row_of_frames_for_each_clip() -> None:
    clips = [SampledClip([0, 4, 8], "clip 1 of 2", 0, "a 90.0%"), SampledClip([9, 13, 17], "clip 2 of 2", 0, "a 80.0%")]
    image = draw_strip(brightness_video(18), clips, "video: a")
    pixels = np.asarray(image)
    for number in (0, 40, 80, 90, 130, 170):  # each frame is 128 pixels high and wide
        assert (pixels == number).all(2).sum() >= 128 * 128
    assert image.width == MIN_WIDTH
    long = np.asarray(draw_strip(brightness_video(25), [SampledClip(list(range(25)), "", 0, "a")]))
    shown = [number for number in range(25) if (long == 10 * number).all(2).sum() >= 128 * 128]
    assert shown == [0, 3, 6, 10, 13, 17, 20, 24], "of many frames some, with the first and the last"
    plain = draw_strip(brightness_video(18), [clips[0]._replace(name="")], "video: a")
    assert plain.height < image.height / 2 and (np.asarray(plain)[0, 0] > 240).all()


@pytest.mark.parametrize(
    ("size", "written_size"), [((16, 16), (256, 256)), ((301, 455), (256, 388)), ((17, 9), (476, 252))], ids=str
)
def test_a_written_clip_has_the_duration_of_its_frames(size: Any, written_size: Any, tmp_path: Path) -> None:
    clips = [SampledClip([0, 2, 4], "", 0, "a 90.0%"), SampledClip([10, 12, 14], "", 1, "a 80.0%")]
    path = tmp_path / "clips" / "clip.mp4"
    write_clip(path, brightness_video(15, *size), clips)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 5 and (stream.height, stream.width) == written_size
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    corners = [int(frame[-8:, -8:].mean().round()) for frame in frames]
    assert corners == pytest.approx([0, 20, 40, 100, 120, 140], abs=4)
    assert all(frame[:8, :8].std() > 5 or frame[:8, :8].mean() > 20 for frame in frames[:1])  # the label
    write_clip(path, brightness_video(3), [SampledClip([1], "", 0, "a")])
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == 1, "a single frame lasts a second"


def test_the_representative_image_is_the_middle_frame() -> None:
    assert int(representative_image({"video": brightness_video(9)})[0, 0, 0]) == 40
    assert representative_image({"image": torch.ones(1, 2, 2)}).shape == (1, 2, 2)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_videos_are_reported_drawn_and_written(predictor: Predictor, folder: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(ConfigError, match=r"has no videos \(\.mp4, "):
        predict(predictor, [tmp_path / "images"], tmp_path)
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "empty.mp4").touch()
    out = tmp_path / "out"
    with pytest.raises(DataError) as error:
        predict(predictor, [folder / "odd", tmp_path / "text.mp4", tmp_path / "empty.mp4"], out)
    assert str(error.value).splitlines() == [
        "2 of 5 files were skipped:",
        f"{tmp_path / 'text.mp4'} is not a video, but text",
        f"{tmp_path / 'empty.mp4'} is empty: it has 0 bytes",
    ]
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [line["path"] for line in lines] == [str(path) for path in sorted(folder.glob("odd/*.mp4"))]
    stdout = capsys.readouterr().out
    assert f"3 videos; predictions.jsonl, strips and clips are in {out}" in stdout
    names = [f"0000{number}-{video}" for number, video in enumerate("135")]
    assert sorted(path.stem for path in (out / "strips").iterdir()) == names
    with Image.open(out / "strips" / f"{names[0]}.png") as image:
        assert image.width == 6 + 4 * (6 + 171)  # four frames of 48 x 64 at a height of 128
    with av.open(str(out / "clips" / f"{names[0]}.mp4")) as container:
        assert len(list(container.decode(video=0))) == 4


def test_similar_videos_are_retrieved(predictor: Predictor, folder: Path, tmp_path: Path) -> None:
    query = folder / "odd" / "1.mp4"
    retrieve(predictor, [query], folder, tmp_path, nearest=9)
    (line,) = map(json.loads, (tmp_path / "predictions.jsonl").read_text().splitlines())
    verdicts = {Path(neighbor["path"]).name: neighbor["verdict"] for neighbor in line["nearest"]}
    assert len(verdicts) == 5 and verdicts["3.mp4"] == "right" and verdicts["2.mp4"] == "wrong"
    assert (tmp_path / "sheets" / "00000-1.png").is_file()


def test_compared_videos_are_framed_as_right_or_wrong(run: Path, tmp_path: Path, capsys: Any) -> None:
    """A model trained for two steps predicts one class for all videos, so half of the predictions are wrong."""
    compare(RunModel(run), "val", tmp_path, max_images=4)
    verdicts = [line.split("  ")[1].split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert verdicts == ["wrong", "wrong", "right", "right"]
    for path, verdict in zip(sorted((tmp_path / "images").iterdir()), verdicts, strict=True):
        with Image.open(path) as image:
            assert image.getpixel((0, 0)) == FRAME_COLORS[verdict]


def test_extracted_video_features_are_drawn_as_a_map(run: Path) -> None:
    (out,) = extract(RunModel(run), layers=["layer3", "trunk", "embedding"])
    assert np.load(out / "layer3.npy").shape[0] == 6 and np.load(out / "trunk.npy").shape == (6, 64)
    np.testing.assert_array_equal(np.load(out / "trunk.npy"), np.load(out / "embedding.npy"))
    path = draw_map(out, column="embedding")
    with Image.open(path) as image:
        assert image.height > 800  # the map, and a row of videos for each class
