"""Small videos for tests, made by PyAV."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray


def make_frames(count: int, height: int = 48, width: int = 64) -> NDArray[np.uint8]:
    """Return frames that differ everywhere (uint8, N x H x W x 3): a moving pattern with noise."""
    random = np.random.default_rng(count)
    pattern = random.integers(0, 256, (height // 8 + count, width // 8 + count, 3), dtype=np.uint8)
    large = pattern.repeat(8, 0).repeat(8, 1)
    frames = [large[3 * i : 3 * i + height, 5 * i : 5 * i + width] for i in range(count)]
    noise = random.integers(0, 40, (count, height, width, 1), dtype=np.uint8)
    return np.stack(frames) // 2 + noise + np.arange(count, dtype=np.uint8)[:, None, None, None]


def write(
    path: Path,
    count: int = 60,
    *,
    codec: str = "libx264",
    size: tuple[int, int] = (48, 64),
    gop: int = 250,
    b_frames: int = 2,
    times: Sequence[int] | None = None,
    rotation: int = 0,
    options: dict[str, str] | None = None,
    format_options: dict[str, str] | None = None,
    pixels: str = "yuv420p",
    sound: bool = False,
) -> Path:
    """Write a video of ``count`` frames at 25 a second, or at ``times`` (in milliseconds)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=format_options or {}) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = *size, pixels  # type: ignore[union-attr]
        stream.codec_context.gop_size = gop
        stream.codec_context.max_b_frames = b_frames
        stream.codec_context.thread_count = 1
        stream.options = options or ({"preset": "veryfast"} if codec == "libx264" else {})
        if times is not None:
            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        if rotation:
            stream.set_display_rotation(rotation)  # type: ignore[union-attr]
        tone = container.add_stream("aac", rate=8000) if sound else None
        for number, pixels in enumerate(make_frames(count, *size)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))  # type: ignore[union-attr]
        container.mux(stream.encode())  # type: ignore[union-attr]
        if tone is not None:
            container.mux(tone.encode(_silence()))  # type: ignore[union-attr]
            container.mux(tone.encode())  # type: ignore[union-attr]
    return path


def write_sound(path: Path) -> Path:
    """Write a file with an audio stream and no video stream."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        container.mux(stream.encode(_silence()))  # type: ignore[union-attr]
        container.mux(stream.encode())  # type: ignore[union-attr]
    return path


def _silence() -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), dtype=np.float32), format="fltp", layout="mono")
    frame.sample_rate, frame.pts = 8000, 0
    return frame


def decoded(path: Path) -> NDArray[np.uint8]:
    """Return all frames in order (N x H x W x 3), as they are stored."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
