"""From a run folder, or a recipe and a file of weights, to a model that is ready for inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opabinia.inference.predictor import Predictor
from opabinia.models.weights.download import HUB
from opabinia.runtime.storage import is_url
from opabinia.training.run_folder import downloaded_run
from opabinia.training.trained_model import Weights, load_trained


def load(
    folder: Path | str,
    overrides: Sequence[str] = (),
    *,
    checkpoint: str = "best",
    weights: Weights | Path | str | None = None,
    classes: Sequence[str] = (),
    device: str | None = None,
    task: str | Sequence[str] = (),
) -> Predictor:
    """Load the trained model of a run for inference, for which the data it was trained on is not needed, or the model
    of a recipe with the weights of a file.

    Args:
        folder: the run folder, or one that ``opabinia export --format huggingface`` wrote; ``hf:OWNER/NAME`` is such a
            folder on the Hugging Face Hub, downloaded once, and ``s3://bucket/runs/a`` a run in remote storage; with a
            file as ``weights`` the recipe.
        overrides: ``key=value``.
        checkpoint: ``best`` (or ``last`` where there is no best), ``last``, or a checkpoint's name or path.
        weights: ``raw``, or ``ema`` for their moving average; None: those with the better score in the run, see
            :func:`opabinia.training.trained_model.choose_weights`. Or a file: a checkpoint of ours, torchvision's,
            timm's, or of a system whose names are known (:mod:`opabinia.migration.weights`).
        classes: names of the classes of the weights in a file; empty: those of the recipe's data.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``; None takes the device of the run's config.
        task: the task of a multi-task run whose model is wanted, as from a run of it alone, or several; empty: all
            that predict something for an image, see :mod:`opabinia.inference.multitask`.

    Raises:
        ConfigError: there is no such run, checkpoint or EMA, or it is damaged or cannot be downloaded; or a file does
            not fit the recipe.

    Example::

        predictor = opabinia.load("runs/classification/digits/default")
        predictor("three.png").readable["top"][0]      # {"class": "3", "probability": 0.998}
        predictor = opabinia.load("hf:OWNER/NAME")
        predictor = opabinia.load("detection/coco/fcos_r50_1x", weights="fcos.pth", classes=names)
    """
    if str(folder).startswith(HUB) or is_url(folder):
        folder = downloaded_run(str(folder))
    trained = load_trained(folder, overrides, checkpoint=checkpoint, weights=weights, classes=classes, device=device)
    names = [task] if isinstance(task, str) and task else list(task)
    options: dict[str, Any] = {
        name: getattr(trained, name) for name in ("channels", "device", "precision", "batch_size", "weights")
    }
    if names or trained.task_transforms:
        from opabinia.inference.multitask import predictor_of

        return predictor_of(trained, names, **options)
    return Predictor(trained.task, trained.transforms, trained.dataset_info, views=trained.views, **options)


@dataclass(frozen=True)
class RunModel:
    """The choice of a run's model.

    Attributes:
        run: the run folder.
        overrides: ``key=value``, changes to the run's config.
        checkpoint, weights, device, task: see :func:`load`.
    """

    run: Path
    overrides: Sequence[str] = ()
    checkpoint: str = "best"
    weights: Weights | None = None
    device: str | None = None
    task: str | Sequence[str] = ()

    def load(self, task: str | Sequence[str] = ()) -> Predictor:
        """Load the model, of a multi-task run that of some tasks, by default its own; see :func:`load`."""
        options: dict[str, Any] = {"checkpoint": self.checkpoint, "weights": self.weights, "device": self.device}
        return load(self.run, self.overrides, task=task or self.task, **options)
