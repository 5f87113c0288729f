"""From a run folder to a model that is ready for inference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opabinia.inference.predictor import Predictor
from opabinia.training.trained_model import Weights, load_trained


def load(
    folder: Path | str,
    overrides: Sequence[str] = (),
    *,
    checkpoint: str = "best",
    weights: Weights | None = None,
    device: str | None = None,
) -> Predictor:
    """Load the trained model of a run for inference. The data it was trained on is not needed.

    Args:
        folder: the run folder.
        overrides: ``key=value``.
        checkpoint: ``best`` (or ``last`` where there is no best), ``last``, or a checkpoint's name or path.
        weights: ``raw``, or ``ema`` for their moving average; None: those with the better score in the run, see
            :func:`opabinia.training.trained_model.choose_weights`.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``; None takes the device of the run's config.

    Raises:
        ConfigError: there is no such run, checkpoint or EMA, or it is damaged.

    Example::

        predictor = opabinia.load("runs/classification/digits/default")
        predictor("three.png").readable["top"][0]      # {"class": "3", "probability": 0.998}
    """
    trained = load_trained(folder, overrides, checkpoint=checkpoint, weights=weights, device=device)
    return Predictor(
        trained.task,
        trained.transforms,
        trained.dataset_info,
        channels=trained.channels,
        device=trained.device,
        precision=trained.precision,
        batch_size=trained.batch_size,
        views=trained.views,
        weights=trained.weights,
    )
