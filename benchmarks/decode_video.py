"""Claim: a clip of a video is never read slower than by a plain loop over PyAV, on one thread.

A clip is 16 frames at stride 4 from a random position; its file is opened for each clip. Videos are H.264 (libx264's
defaults, with B-frames) of 10 s at 30 frames/s: a moving photo with grain, in three shots, with a key frame every 250
or 30 frames, of 256 x 256 and 1280 x 720 pixels. The loop opens the file, seeks to the key frame before, decodes,
converts and keeps every fourth frame, and stacks them; it assumes a constant frame rate. Ours is ``VideoFile``, which
indexes the frames, skips frames without references to them, and converts into the memory of the clip. The clips of
both are compared pixel by pixel before anything is measured. torchcodec is a third side if it can be imported.

The same videos are also read as ``opabinia data pack`` writes them: at full size, and with a shorter side of 128 (of
256 x 256) or 256 pixels; their pixels differ by the losses of JPEG. Their size on disk is printed as well.

The sides take turns with each clip; times are CPU time, which other work on the machine disturbs least. ``first``
discards the index of a file before each clip; ``again`` keeps it, as in later epochs; packed videos have an index. The
ratio is the median over the rounds. Target: at least 1.0 times the clips/s of the loop. ``--quick`` makes short videos,
to see that it runs. Run: ``python benchmarks/decode_video.py``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from opabinia.contracts import Video
from opabinia.data.decoding import video
from opabinia.data.decoding.pack import pack
from opabinia.data.decoding.video import VideoFile
from opabinia.data.sources import PackedVideos, Videos

QUICK = "--quick" in sys.argv
LENGTH, ROUNDS = (90, 1) if QUICK else (300, 3)
FRAMES, STRIDE = 16, 4
CLIPS = {(256, 256): 10, (720, 1280): 4}
"""Clips in a round, by height and width of the videos."""
SMALL = {(256, 256): 128, (720, 1280): 256}
"""The shorter side of the smaller packed videos."""


def make(path: Path, size: tuple[int, int], gop: int) -> None:
    height, width = size
    photo = np.tile(load_sample_image("china.jpg"), (3, 4, 1))
    random = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.options = {"g": str(gop), "preset": "veryfast"}
        for number in range(LENGTH):
            shot = 3 * number // LENGTH
            top, left = 40 * shot + number % 100, 300 * shot + 2 * (number % 100)
            grain = random.integers(-8, 9, (height, width, 1))
            pixels = np.clip(photo[top : top + height, left : left + width] + grain, 0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def by_hand(path: Path, start: int) -> Tensor:
    wanted = set(range(start, start + FRAMES * STRIDE, STRIDE))
    frames = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        container.seek(int(start / stream.average_rate / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            number = round(frame.time * stream.average_rate)
            if number in wanted:
                frames.append(frame.to_ndarray(format="rgb24", threads=1))
            if len(frames) == FRAMES:
                break
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


def again(path: Path, start: int) -> Tensor:
    return VideoFile(path).read(range(start, start + FRAMES * STRIDE, STRIDE))


def first(path: Path, start: int) -> Tensor:
    video._indices.clear()
    return again(path, start)


Side = Callable[[Path, int], Tensor]

SIDES: dict[str, Side] = {"by hand": by_hand, "first": first, "again": again}


def torchcodec_side() -> Side | None:
    """Return a side that decodes on one thread, if torchcodec and the FFmpeg that it needs are installed."""
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError):
        return None

    def side(path: Path, start: int) -> Tensor:
        decoder = VideoDecoder(str(path), num_ffmpeg_threads=1)
        frames: Tensor = decoder.get_frames_at(list(range(start, start + FRAMES * STRIDE, STRIDE))).data
        return frames

    return side


def packed(path: Path, size: int | None) -> tuple[Side, float]:
    """Return a side that reads the packed video of a folder of classes, and the size of the packed file in MB."""
    root = path.parent.parent
    folder = root.with_name(f"{root.name}_packed_{size}")
    result = pack(Videos(root=root), folder, size=size)
    source = PackedVideos(root=folder)

    def side(path: Path, start: int) -> Tensor:
        video: Video = source[0]["video"]
        return video.read(range(start, start + FRAMES * STRIDE, STRIDE))

    return side, result.bytes / 1e6


def measure(path: Path, sides: dict[str, Side], clips: int) -> dict[str, list[float]]:
    """Return the seconds per clip of each side, by round."""
    random = np.random.default_rng(1)
    starts = random.integers(0, LENGTH - (FRAMES - 1) * STRIDE, (ROUNDS, clips)).tolist()
    for start in starts[0]:
        expected = by_hand(path, start)
        assert torch.equal(expected, first(path, start))
        assert (expected.float() - sides["packed"](path, start).float()).abs().mean() < 8
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_starts in starts:
        elapsed = dict.fromkeys(sides, 0.0)
        for start in round_starts:
            for name, side in sides.items():
                began = time.process_time()
                side(path, start)
                elapsed[name] += time.process_time() - began
        for name, seconds in elapsed.items():
            times[name].append(seconds / clips)
    return times


def main() -> None:
    torch.set_num_threads(1)
    print(f"Clips/s, one thread, PyAV {av.__version__}; median of {ROUNDS} rounds in turn")
    with tempfile.TemporaryDirectory() as folder:
        for size, clips in CLIPS.items():
            for gop in (250, 30):
                path = Path(folder) / f"{size[0]}_{gop}" / "class" / "video.mp4"
                path.parent.mkdir(parents=True)
                make(path, size, gop)
                report(path, size, gop, clips)


def report(path: Path, size: tuple[int, int], gop: int, clips: int) -> None:
    whole, megabytes = packed(path, None)
    small, few_megabytes = packed(path, SMALL[size])
    sides = {**SIDES, "packed": whole, f"packed {SMALL[size]}": small}
    torchcodec = torchcodec_side()
    if torchcodec is not None:
        sides["torchcodec"] = torchcodec
    times = measure(path, sides, clips)
    print(
        f"{size[1]} x {size[0]}, a key frame every {gop} frames, {path.stat().st_size / 1e6:.1f} MB; "
        f"packed {megabytes:.1f} MB, with a shorter side of {SMALL[size]} {few_megabytes:.1f} MB",
        flush=True,
    )
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(times["by hand"], seconds, strict=True))
        middle = statistics.median(seconds)
        print(f"  {name:<10} {1 / middle:7.1f} clips/s  {1000 * middle:7.1f} ms  ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
