"""Trackers of the package ``trackers`` (Roboflow, Apache-2.0), which is imported where one is built."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np

from opabinia.config import register
from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.models.trackers.association import Ints
from opabinia.models.trackers.table import elapsed

INSTALL = "pip install 'trackers>=2.6' supervision"

Option = bool | int | float | str

_OF_FRAMES = re.compile("cmc|mask")
"""Options of what reads the pixels of frames, which trackers are not given here: it is switched off."""
_KINDS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}


@register.tracker(name="trackers")
class PackageTracker:
    """A tracker class of the package ``trackers``, such as ``ByteTrackTracker``; without appearance.

    Its ids count from 0 in each sequence. Its state cannot be stored in files, so a call of ``opabinia track`` with it
    cannot be resumed. The motion of the camera is taken from the boxes before it sees them.

    Args:
        class_name: the class.
        options: its keyword arguments; by default its own.

    Raises:
        ValueError: the package is missing or too old, there is no such class or option, or a value does not fit.

    Example::

        tracker: {name: trackers, class_name: OCSORTTracker, options: {lost_track_buffer: 60}}
    """

    def __init__(self, *, class_name: str, options: dict[str, Option] = {}) -> None:  # noqa: B006 (never changed)
        self._class = _tracker_class(class_name)
        defaults = {name: parameter.default for name, parameter in inspect.signature(self._class).parameters.items()}
        switched_off = {name: False for name, value in defaults.items() if value is True and _OF_FRAMES.search(name)}
        _check(class_name, options, {name: value for name, value in defaults.items() if not _OF_FRAMES.search(name)})
        self._options = {**switched_off, **options}
        self._begun()

    def _begun(self) -> Any:
        try:
            return self._class(**self._options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"options: {error}") from error

    def __call__(self, state: TrackerState, frame: FrameDetections, /) -> Ints:
        """Return the track of each detection, see :data:`opabinia.contracts.tracking.Tracker`.

        Raises:
            ValueError: the time is not finite, or not after that of the frame before.
        """
        from supervision import Detections

        elapsed(state, frame, 1.0)
        state["camera"] = shift = state.get("camera", 0.0) + np.array(frame.camera_shift)
        ids = np.full(len(frame.boxes), -1)
        rows = {"row": np.arange(len(ids))}
        detections = Detections(xyxy=frame.boxes - np.tile(shift, 2), confidence=frame.scores, data=rows)
        if "tracker" not in state:
            state["tracker"] = self._begun()
        tracked = state["tracker"].update(detections, timestamp=frame.time)
        if len(tracked):
            ids[tracked.data["row"]] = tracked.tracker_id
        return ids


def _tracker_class(name: str) -> Any:
    try:
        import trackers
    except ImportError as error:
        raise ValueError(f"it needs the package trackers ({error}): {INSTALL}") from error
    classes = {
        key: value for key, value in vars(trackers).items() if isinstance(getattr(value, "tracker_id", None), str)
    }
    if name not in classes:
        raise ValueError(f"class_name: the package has no tracker {name!r}; it has {', '.join(sorted(classes))}")
    if "timestamp" not in inspect.signature(classes[name].update).parameters:
        raise ValueError(f"the package is too old: {INSTALL}")
    return classes[name]


def _check(name: str, options: dict[str, Option], defaults: dict[str, Any]) -> None:
    """Check options against the signature of a class.

    Raises:
        ValueError: one is unknown, or of another type.
    """
    known = {key: value for key, value in defaults.items() if type(value) in _KINDS}
    if unknown := [key for key in options if key not in known]:
        listed = ", ".join(f"{key}={value!r}" for key, value in known.items())
        raise ValueError(f"options.{unknown[0]}: {name} has no such option; it has {listed}")
    for key, value in options.items():
        kinds = _KINDS[type(known[key])]
        if type(value) not in kinds:
            raise ValueError(f"options.{key}: expected {kinds[-1].__name__}, found {value!r}")
