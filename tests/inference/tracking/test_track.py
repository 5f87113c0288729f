"""``opabinia track``: its files, and resuming it."""

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from opabinia.cli import main
from opabinia.config import ConfigError
from opabinia.data.decoding.sequential import TimedFrame
from opabinia.data.errors import DataError
from opabinia.inference.predictor import Predictor
from opabinia.inference.tracking import track as track_module
from opabinia.inference.tracking.pipeline import Pipeline
from opabinia.inference.tracking.state import load_state
from opabinia.inference.tracking.streams import Stream, find_streams
from opabinia.inference.tracking.track import track
from opabinia.runtime.signals import Stopped
from opabinia.training.tracking import resolve_tracking
from tests.faults.programs import Server
from tests.inference.tracking.conftest import BOTSORT, EAGER, RUNS

TRACKING = resolve_tracking({"tracker": {"name": "bytetrack", "keep_lost": 1000}}, EAGER)


@pytest.fixture(scope="module")
def pipeline(detector: Predictor) -> Pipeline:
    return Pipeline(detector, min_score=0.05)


def files_of(out: Path) -> dict[str, bytes]:
    """Return the results; encoders of videos repeat every bit, too."""
    paths = [path for path in sorted(out.rglob("*")) if path.suffix in (".jsonl", ".txt", ".mp4")]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}


def lines_of(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "tracks.jsonl").read_text().splitlines()]


def streams_of(*frames: Sequence[TimedFrame], live: bool = False, end: int | None = None) -> list[Stream]:
    def read(images: Sequence[TimedFrame]) -> Iterator[TimedFrame]:
        for number, image in enumerate(images):
            if number == end:
                os.kill(os.getpid(), signal.SIGTERM)
            yield image

    return [
        Stream(f"video-{number}.mp4", f"video-{number}", lambda channels, images=images: read(images), is_live=live)
        for number, images in enumerate(frames, 1)
    ]


def test_files_and_summary(
    detector: Predictor, embedder: Predictor, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = Pipeline(detector, embedder, min_score=0.05)
    track(pipeline, TRACKING, find_streams([str(video)]), tmp_path, settings={})
    lines = lines_of(tmp_path)
    assert [line["frame"] for line in lines] == list(range(8))
    assert [line["time"] for line in lines] == [round(number / 25, 3) for number in range(8)]
    assert lines[0].keys() == {"path", "frame", "time", "tracks"}
    rows = np.loadtxt(tmp_path / "mot" / "digits.txt", delimiter=",")
    tracks = [(line["frame"] + 1, row) for line in lines for row in line["tracks"]]
    assert len(rows) == len(tracks) > 8
    for row, (frame, (left, top, right, bottom), entry) in zip(
        rows.tolist(), ((frame, entry["box"], entry) for frame, entry in tracks), strict=True
    ):
        expected = [frame, entry["id"], left + 1, top + 1, right - left, bottom - top, entry["score"], -1, -1, -1]
        assert row == pytest.approx(expected, abs=0.006)
    with av.open(str(tmp_path / "videos" / "digits.mp4")) as container:
        assert [round(frame.time or 0, 2) for frame in container.decode(video=0)] == [line["time"] for line in lines]
    out = capsys.readouterr().out
    count = len({entry["id"] for _, entry in tracks})
    assert min(entry["id"] for _, entry in tracks) == 1 and f"8 frames, {count} tracks; tracks.jsonl, mot and" in out
    for stage in ("reading", "re-ID", "detector", "tracker", "drawing"):
        assert f"{stage} " in out.splitlines()[-1]


def test_ids_begin_anew_in_each_video_and_earlier_files_are_removed(
    pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path
) -> None:
    track(pipeline, TRACKING, streams_of(frames[:4], frames[:4]), tmp_path, settings={}, max_frames=3)
    lines = lines_of(tmp_path)
    assert [(line["path"], line["frame"]) for line in lines] == [
        (f"video-{n}.mp4", f) for n in (1, 2) for f in range(3)
    ]
    assert [line["tracks"] for line in lines[:3]] == [line["tracks"] for line in lines[3:]]
    (tmp_path / "mot" / "mine.txt").touch()
    track(pipeline, TRACKING, streams_of(frames[:2]), tmp_path, settings={}, video=False)
    assert files_of(tmp_path).keys() == {"mot/mine.txt", "mot/video-1.txt", "tracks.jsonl"}


def test_times_that_repeat_are_moved(pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path) -> None:
    repeated = [frame._replace(seconds=0.0) for frame in frames[:3]]
    track(pipeline, TRACKING, streams_of(repeated), tmp_path, settings={}, video=False)
    assert [line["time"] for line in lines_of(tmp_path)] == [0, 0.001, 0.002]


@pytest.mark.parametrize("end", [3, 5])
def test_a_call_that_was_stopped_is_resumed(
    end: int, pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path
) -> None:
    """At the end of the first of two streams, or in the second one."""
    moving = resolve_tracking({"tracker": "ocsort", "camera_motion": True}, [*EAGER[:1], "tracker.min_hits=2"])
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    streams = streams_of(frames[:4], frames[4:])
    track(pipeline, moving, streams, whole, settings={})
    ends = streams_of(frames[:4], end=end) + streams_of((), frames[4:], end=end - 4)[1:]
    with pytest.raises(Stopped):
        track(pipeline, moving, ends, stopped, settings={})
    assert len(lines_of(stopped)) == end + 1
    track(pipeline, moving, streams, stopped, settings={}, resume=True)
    assert files_of(stopped) == files_of(whole)


def test_a_live_stream_continues_in_a_second_video(
    pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        track(pipeline, TRACKING, streams_of(frames, live=True, end=3), tmp_path, settings={})
    track(pipeline, TRACKING, streams_of(frames[:4], live=True), tmp_path, settings={}, resume=True)
    lines = lines_of(tmp_path)
    assert [line["frame"] for line in lines] == list(range(8))
    assert all(later["time"] > earlier["time"] for earlier, later in pairwise(lines))
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 2
    before, after = ({row["id"] for line in part for row in line["tracks"]} for part in (lines[:4], lines[4:]))
    assert len(before & after) > 2


def test_a_killed_process_is_resumed(video: Path, tmp_path: Path, warm_server: Server) -> None:
    """The state is written after each frame; the process is killed after the third."""
    run = shutil.copytree(RUNS / "detection" / "run", tmp_path / "run")
    words = ["track", str(run), str(video), "--reid", str(RUNS / "reid" / "run"), "--score", "0.05", *EAGER, *BOTSORT]
    code = (
        f"import opabinia.inference.tracking.track as t; t.SAVE_SECONDS = 0; import opabinia.cli as c; c.main({words})"
    )
    program, lines = warm_server.start(code=code), run / "tracks" / "tracks.jsonl"
    program.until(lambda: lines.is_file() and lines.read_bytes().count(b"\n") >= 3)
    program.kill()
    state = load_state(run / "tracks" / "state.safetensors")
    assert 0 < state["position"]["frames"] < 8
    with lines.open("ab") as file:
        file.write(b'{"frame": half a line')
    for arguments in ([*words, "--resume"], [*words, "--out", str(tmp_path / "whole")]):
        with pytest.raises(SystemExit) as error:
            main(arguments)
        assert not error.value.code
    results = files_of(run / "tracks")
    assert results == files_of(tmp_path / "whole")
    assert results.keys() == {"tracks.jsonl", "mot/digits.txt", "videos/digits.mp4"}


def test_what_cannot_be_resumed(pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path) -> None:
    def resume(settings: dict[str, Any]) -> None:
        track(pipeline, TRACKING, streams_of(frames[:2]), tmp_path, settings=settings, resume=True)

    with pytest.raises(ConfigError, match=r"state.safetensors.*start without --resume"):
        resume({})
    with pytest.raises(Stopped):
        track(pipeline, TRACKING, streams_of(frames, end=3), tmp_path, settings={"--score": 0.1})
    with pytest.raises(ConfigError, match=r"--score was 0.1 in the call before, now it is 0.2"):
        resume({"--score": 0.2})
    with pytest.raises(ConfigError, match=r"video-1.mp4 has changed since"):
        resume({"--score": 0.1})
    (tmp_path / "tracks.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"tracks.jsonl has changed since"):
        resume({"--score": 0.1})


def test_a_tracker_whose_state_cannot_be_written_runs(
    pipeline: Pipeline,
    frames: list[TimedFrame],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(track_module, "SAVE_SECONDS", 0)

    class Stateful:
        def __call__(self, state: dict[str, Any], frame: Any) -> Any:
            state["seen"] = {1}
            return np.arange(len(frame.boxes))

    stateful = type(TRACKING)(Stateful())
    with pytest.raises(Stopped):
        track(pipeline, stateful, streams_of(frames, end=3), tmp_path, settings={}, video=False)
    assert len(lines_of(tmp_path)) == 4
    assert caplog.text.count("set is neither a dictionary") == 1
    with pytest.raises(ConfigError, match=r"cannot be stored: set is neither a dictionary.*start without --resume"):
        track(pipeline, stateful, streams_of(frames), tmp_path, settings={}, video=False, resume=True)
    track(pipeline, stateful, streams_of(frames[:3]), tmp_path, settings={}, video=False)
    assert len(lines_of(tmp_path)) == 3


def test_a_damaged_video_is_reported_at_the_end(
    pipeline: Pipeline, video: Path, frames: list[TimedFrame], tmp_path: Path
) -> None:
    (tmp_path / "broken.mp4").write_bytes(video.read_bytes()[:300])
    streams = [*find_streams([str(tmp_path / "broken.mp4")]), *streams_of(frames[:2])]
    with pytest.raises(DataError, match=r"1 of 2 files were skipped:\n.*broken.mp4"):
        track(pipeline, TRACKING, streams, tmp_path / "out", settings={}, video=False)
    assert len(lines_of(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tracker.match_iuo=0.3"], "did you mean 'match_iou'"),
        (["--tracker", "bytetrak"], "did you mean 'bytetrack'"),
        (["trackr.match_iou=0.3"], "did you mean 'tracker'"),
        (["missing.mp4"], "there is no file or folder missing.mp4"),
        (["--reid", "missing"], "missing"),
    ],
)
def test_mistakes_of_the_command_line(
    words: list[str], message: str, video: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["track", str(RUNS / "detection" / "run"), str(video), *words])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_state_is_saved_now_and_then(
    pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = list[Path]()
    monkeypatch.setattr(track_module, "save_state", lambda path, state: saved.append(path))
    track(pipeline, TRACKING, streams_of(frames[:4]), tmp_path, settings={}, video=False)
    assert len(saved) == 2
    monkeypatch.setattr(track_module, "SAVE_SECONDS", 0)
    track(pipeline, TRACKING, streams_of(frames[:4]), tmp_path, settings={}, video=False)
    assert len(saved) == 2 + 6
