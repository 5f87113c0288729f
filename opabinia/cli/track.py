"""``opabinia track``"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Changes, Checkpoint, Device, Reid, ReidTask, Weights
from opabinia.cli.tracking import default_tracker, reid_model, resolve_words
from opabinia.cli.weights import open_run
from opabinia.runtime.addresses import is_live
from opabinia.runtime.local_copies import local_copy
from opabinia.runtime.storage import is_stored

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="The run of a detector: its folder, s3://... or hf:OWNER/NAME.")
]
Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Videos, URLs of streams, cameras; folders of frames or of sequences. And changes, tracker.KEY=VALUE.",
        show_default=False,
    ),
]
TrackerName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="bytetrack, botsort, ocsort, sort ...; default: bytetrack, with --reid botsort."),
]
DetectorTask = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="Task of a multi-task run; default: its only object detection."),
]
Out = Annotated[Path | None, typer.Option(help="Output folder; default: RUN/tracks.")]
Score = Annotated[float, typer.Option(min=0, max=1, help="Lowest score of the detections that are tracked.")]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="FPS", min=1e-3, help="Frames per second of folders of frames; default: of seqinfo.ini, or 30."
    ),
]
MaxFrames = Annotated[int | None, typer.Option(metavar="N", min=1, help="Frames of each video.")]
Video = Annotated[bool, typer.Option("--video/--no-video", help="Write videos with the tracks drawn.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the interrupted call before, with the same ids: repeat it with this.")
]


def track(
    run: Run,
    paths: Paths,
    reid: Reid = None,
    reid_task: ReidTask = None,
    tracker: TrackerName = None,
    out: Out = None,
    score: Score = 0.1,
    rate: Rate = None,
    max_frames: MaxFrames = None,
    video: Video = True,
    resume: Resume = False,
    task: DetectorTask = None,
    checkpoint: Checkpoint = "best",
    weights: Weights = None,
    changes: Changes = None,
    device: Device = None,
) -> None:
    """Track objects in videos: tracks.jsonl, files of MOTChallenge, and the tracks drawn.

    opabinia track runs/detection/mine/default video.mp4 --reid runs/reid/mine/default

    Options of the tracker are tracker.KEY=VALUE; per_class=false lets a track change its class, camera_motion=true
    measures the motion of the camera.

    opabinia track runs/detection/mine/default video.mp4 --tracker ocsort tracker.keep_lost=2

    Ctrl-C ends it with complete files, and --resume continues it.

    opabinia track runs/detection/mine/default rtsp://camera.local/stream --no-video --resume
    """
    with report_errors():
        words, overrides = _split_words(paths)
        folder, chosen, _ = open_run(run, None, weights)
        from opabinia.inference.tracking.streams import find_streams
        from opabinia.training.run_folder import chosen_checkpoint, resolve
        from opabinia.training.tracked_tasks import detection_task

        tracking = resolve_words(folder, tracker or default_tracker(reid), overrides, changes or [])
        streams = find_streams(words, rate)
        other = reid_model(reid, reid_task, device)
        detector_task = detection_task(resolve(folder, changes or []).config, task)
        from opabinia.inference.load import RunModel
        from opabinia.inference.tracking import track as tracks
        from opabinia.inference.tracking.pipeline import Pipeline
        from opabinia.runtime.log import logging_to

        with logging_to(None):
            detector = RunModel(folder, changes or [], checkpoint, chosen, device).load(detector_task)
            embedder = None if other is None else other.load()
            pipeline = Pipeline(detector, embedder, min_score=score)
            settings = {
                "detector": str(chosen_checkpoint(folder, checkpoint).resolve()),
                "weights": detector.weights,
                "--set": list(changes or []),
                "--task": detector_task,
                "--reid": other and str(chosen_checkpoint(other.run, "best").resolve()),
                "--reid-task": other and other.task,
                "tracker": tracking.config,
                "--score": score,
                "--rate": rate,
                "videos": [stream.path for stream in streams],
            }
            tracks.track(
                pipeline,
                tracking,
                streams,
                out or folder / "tracks",
                settings=settings,
                max_frames=max_frames,
                video=video,
                resume=resume,
            )


def _split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the paths among the arguments, which exist, of remote ones the local copies; and the overrides."""
    from opabinia.config.paths import check_input_paths

    overrides = [word for word in words if re.match(r"(--)?[A-Za-z_][\w.]*=", word) and not os.path.exists(word)]
    paths = [local_copy(word) if is_stored(word) else word for word in words if word not in overrides]
    if not paths:
        raise option_error("", "give a video, URL, camera or folder of frames")
    check_input_paths([Path(path) for path in paths if not is_live(path)])
    return paths, overrides
