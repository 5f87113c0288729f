"""A Kalman filter of boxes with constant velocity, for all tracks at once, in float64.

The four coordinates of a box are filtered independently of each other: with diagonal noise, as SORT, ByteTrack, OC-SORT
and BoT-SORT have it, their covariances stay 0. So a state is two numbers for each coordinate, with a symmetric 2 x 2
covariance, and no matrix is inverted. N tracks; time is counted in frames.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Motion(NamedTuple):
    """Estimates of the coordinates of boxes (each N x 4).

    Attributes:
        position: coordinates of the box.
        velocity: their change in a frame.
        position_variance, velocity_variance, covariance: uncertainty of both, and their covariance.
    """

    position: Floats
    velocity: Floats
    position_variance: Floats
    velocity_variance: Floats
    covariance: Floats

    def take(self, rows: Any) -> Motion:
        """Return a copy of some tracks: their indices, or a bool for each."""
        return Motion(*(values[rows] for values in self))

    def put(self, rows: Any, motion: Motion) -> None:
        """Replace some tracks."""
        for values, replaced in zip(self, motion, strict=True):
            values[rows] = replaced


def start(position: Floats, position_variance: Any, velocity_variance: Any) -> Motion:
    """Return the state of new tracks (position: N x 4) that stand still."""
    zeros = np.zeros_like(position)
    return Motion(position.copy(), zeros, zeros + position_variance, zeros + velocity_variance, zeros.copy())


def predict(motion: Motion, step: float, position_noise: Any, velocity_noise: Any) -> Motion:
    """Return the state ``step`` frames later.

    Args:
        motion: the state.
        step: time since the state, in frames.
        position_noise, velocity_noise: variance that a frame adds; it grows linearly with the time.
    """
    position, velocity, position_variance, velocity_variance, covariance = motion
    return Motion(
        position + step * velocity,
        velocity.copy(),
        position_variance + step * (2 * covariance + step * velocity_variance) + step * position_noise,
        velocity_variance + step * velocity_noise,
        covariance + step * velocity_variance,
    )


def correct(motion: Motion, measured: Floats, noise: Any) -> Motion:
    """Return the state after a measurement of the position (N x 4) with this variance."""
    position, velocity, position_variance, velocity_variance, covariance = motion
    total = position_variance + noise
    gain, velocity_gain = position_variance / total, covariance / total
    error = measured - position
    return Motion(
        position + gain * error,
        velocity + velocity_gain * error,
        (1 - gain) * position_variance,
        velocity_variance - velocity_gain * covariance,
        (1 - gain) * covariance,
    )
