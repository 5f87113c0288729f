"""Shapes that were drawn in an annotation tool as polygons."""

from __future__ import annotations

import numpy as np

Polygon = list[float]
"""Corners x, y, x, y ..., in pixels."""


def rectangle(left: float, top: float, right: float, bottom: float) -> Polygon:
    """Return the corners of a rectangle."""
    return [left, top, right, top, right, bottom, left, bottom]


def ellipse(x: float, y: float, radius_x: float, radius_y: float) -> Polygon:
    """Return a polygon of 90 corners around the center ``x``, ``y``."""
    angles = 2 * np.pi * np.arange(90) / 90
    points = np.stack([x + radius_x * np.cos(angles), y + radius_y * np.sin(angles)], 1)
    return points.ravel().tolist()


def rotate(polygon: Polygon, degrees: float) -> Polygon:
    """Return a symmetric polygon turned clockwise about its center."""
    points, angle = np.reshape(polygon, (-1, 2)), np.deg2rad(degrees)
    center, turn = points.mean(0), [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    return ((points - center) @ np.array(turn) + center).ravel().tolist()  # type: ignore[no-any-return]
