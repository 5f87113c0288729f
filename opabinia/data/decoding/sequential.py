"""Video read from its start to its end, as it is decoded or as it arrives: files, URLs, cameras."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from opabinia.contracts import FrameChannels
from opabinia.data.decoding.images import EXTENSIONS as IMAGE_EXTENSIONS
from opabinia.data.decoding.video import EXTENSIONS, FORMATS, quarter_turns
from opabinia.data.decoding.video_index import open_video
from opabinia.runtime.addresses import CAMERA, is_live, public_name

if TYPE_CHECKING:
    from av.container import InputContainer

TIMEOUT = 10.0
"""Seconds without data after which the connection to a URL is given up."""


class TimedFrame(NamedTuple):
    """A frame of a video.

    Attributes:
        number: of all frames, from 0.
        seconds: its time after the first frame.
        image: uint8, C x H x W.
    """

    number: int
    seconds: float
    image: Tensor


def is_video(name: str) -> bool:
    """Return whether a name is that of a URL or a camera, or has the suffix of a video file; ``.gif`` is an image."""
    suffix = Path(name).suffix.lower()
    return is_live(name) or (suffix in EXTENSIONS and suffix not in IMAGE_EXTENSIONS)


def read_frames(name: str, channels: FrameChannels = 3, *, every: float = 0.0) -> Iterator[TimedFrame]:
    """Yield the frames of a video, upright. Frames that cannot be decoded are skipped.

    Args:
        name: a file, a URL (``rtsp://``, ``http://`` and others of FFmpeg) or a camera.
        channels: 3 for color, 1 for gray.
        every: seconds from a frame to the next one that is yielded; 0: all frames.

    Raises:
        OSError, ValueError: it is missing, cannot be opened or is no video; or a connection is lost.
    """
    import av
    from av.video.reformatter import VideoReformatter

    container, track = (_open_live(name), None) if is_live(name) else open_video(name)
    with closing(container):
        track = track or next(iter(container.streams.video), None)
        if track is None:
            raise ValueError(f"{public_name(name)} has no video stream")
        reformatter, number, start, next_time = VideoReformatter(), -1, 0.0, 0.0
        packets = container.demux(track)
        while True:
            try:
                frames: list[Any] = next(packets).decode()
            except StopIteration:
                return
            except av.error.InvalidDataError:  # a lost or damaged packet
                continue
            except av.error.FFmpegError as error:
                raise ValueError(f"{public_name(name)} ended after {number + 1} frames: {_reason(error)}") from error
            for frame in frames:
                number += 1
                time = number / float(track.average_rate or 25) if frame.time is None else frame.time
                start = start if number else time
                if time - start + 1e-6 < next_time:
                    continue
                next_time = every and (time - start + 1e-6) // every * every + every
                pixels = reformatter.reformat(frame, format=FORMATS[channels]).to_ndarray()
                upright = np.rot90(pixels.reshape(frame.height, frame.width, channels), quarter_turns(frame))
                image = torch.from_numpy(upright.transpose(2, 0, 1).copy())
                yield TimedFrame(number, max(0.0, time - start), image)


def _open_live(name: str) -> InputContainer:
    """Open a URL or a camera.

    Raises:
        ValueError: it cannot be opened.
    """
    import av

    camera, options, form = CAMERA.fullmatch(name), {}, None
    target = name
    if camera:
        device = camera[1] or camera[2]
        form = {"darwin": "avfoundation", "win32": "dshow"}.get(sys.platform, "v4l2")
        target = {"avfoundation": device, "dshow": f"video={device}"}.get(form, f"/dev/video{device}")
        if form == "v4l2" and not os.path.exists(target):
            raise ValueError(f"there is no camera {target}")
        if form not in av.formats_available:
            raise ValueError(
                f"{name}: this build of PyAV reads no cameras ({form}); stream it, and give the URL instead of "
                f"{name}: ffmpeg -f {form} -i {target} -f mpegts 'tcp://127.0.0.1:5000?listen=1'"
            )
    elif name.startswith("rtsp"):
        options = {"rtsp_transport": "tcp"}  # UDP loses packets
    try:
        return av.open(target, format=form, options=options, timeout=TIMEOUT, metadata_errors="ignore")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise ValueError(f"{public_name(name)} cannot be opened: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    import av

    if isinstance(error, av.error.ExitError):  # FFmpeg: "Immediate exit requested", by PyAV's timeout
        return f"no data for {TIMEOUT:g} seconds"
    return getattr(error, "strerror", None) or str(error)
