"""A tracker with its options, checked like a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opabinia.config import build, catalog, check, compose, register
from opabinia.contracts import TrackerPart
from opabinia.contracts.tracking import Tracker

Section = Mapping[str, Any]


@dataclass(frozen=True)
class Tracking:
    """The association of detections.

    Attributes:
        tracker: the tracker, with its options.
        per_class: classes are tracked independently of each other; otherwise, a track may change its class.
        camera_motion: predictions move with the background, see :mod:`opabinia.models.trackers.camera`.
        config: the complete config of these.
    """

    tracker: Tracker
    per_class: bool = True
    camera_motion: bool = False
    config: Section = field(default_factory=dict)


@register.command
def tracking(*, tracker: TrackerPart, per_class: bool = True, camera_motion: bool = False) -> Tracking:
    """Return a tracker with its options.

    Args:
        tracker: the tracker.
        per_class: track classes independently of each other; otherwise, a track may change its class.
        camera_motion: move predictions with the background, which phase correlation of two frames measures.
    """
    return Tracking(tracker, per_class, camera_motion)


def resolve_tracking(config: Section, overrides: Sequence[str] = (), plugins: Sequence[str] = ()) -> Tracking:
    """Return a tracker from a config.

    Args:
        config: ``tracker``, and perhaps ``per_class`` and ``camera_motion``.
        overrides: ``key=value``, changes to it.
        plugins: modules that register further trackers; ``plugins`` of the config and the overrides are imported, too.

    Raises:
        ConfigError: there is no such tracker or key, or a value does not fit; the text has the nearest name.

    Example::

        resolve_tracking({"tracker": {"name": "bytetrack", "match_iou": 0.2}})
    """
    tree = compose({"plugins": list(plugins), **config} if plugins else config, overrides)
    parts = catalog(tree.plugins)
    resolved = check(tree, parts, "tracking")
    built: Tracking = build(resolved.config, parts, "tracking", resolved.origins)()
    return Tracking(built.tracker, built.per_class, built.camera_motion, resolved.config)
