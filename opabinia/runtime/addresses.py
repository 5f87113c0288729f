"""Names of videos that are not files: URLs and cameras."""

from __future__ import annotations

import re

CAMERA = re.compile(r"webcam:(.+)|/dev/video(\d+)")
"""``webcam:0``, ``/dev/video0``; the groups are the number or name."""


def is_live(name: str) -> bool:
    """Return whether a name is that of a URL or a camera, not of a file."""
    return "://" in name or CAMERA.fullmatch(name) is not None


def public_name(name: str) -> str:
    """Return a name for messages and files: a URL without its user, password and query."""
    return re.sub(r"^([^/]*://)[^/?#]*@", r"\1", name).partition("?")[0] if "://" in name else name
