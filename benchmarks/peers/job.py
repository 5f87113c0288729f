"""What the scripts of this folder share: their arguments, their time, and the files that they read and write.

Each script trains with another system, in a process that ``../peers.py`` starts: ``SCRIPT FOLDER WEIGHTS SECONDS SEED
OUT [WORD ...]``. It uses that system as its documentation recommends, with its default hyperparameters, and writes
predictions for the validation data, which ``../peers.py`` scores. Nothing here imports Opabinia.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

Item = TypeVar("Item")

MODEL = "tf_efficientnet_lite0"
PROBE = 10
"""Steps whose time is measured to know how many fit; the first two of them are not counted."""


@dataclass(frozen=True)
class Job:
    """The arguments of a script.

    Attributes:
        folder: the data, with a folder or an annotation file for each split.
        weights: folder with the ImageNet weights of timm's `MODEL`: ``model.safetensors``, the same without its
            classifier as ``pytorch_model.bin``, and ``config.json`` as timm writes it.
        seconds: wall time of the process.
        seed: of all random numbers.
        out: an empty folder for predictions and for what the system writes.
        words: further arguments, such as the variant of a model.
    """

    folder: Path
    weights: Path
    seconds: float
    seed: int
    out: Path
    words: tuple[str, ...]

    @classmethod
    def parse(cls) -> Job:
        folder, weights, seconds, seed, out, *words = sys.argv[1:]
        return cls(Path(folder), Path(weights), float(seconds), int(seed), Path(out), tuple(words))

    @property
    def left(self) -> float:
        """Seconds until the time is used up, which began with the process."""
        return self.seconds - (time.time() - psutil.Process().create_time())

    @property
    def tensors(self) -> Path:
        return self.weights / "model.safetensors"

    @property
    def validation(self) -> Path:
        """The folder of the validation data."""
        return next(path for name in ("val", "validation") if (path := self.folder / name).is_dir())

    def images(self, split: Path) -> list[Path]:
        """Return the images of a folder with a folder for each class, in the order of their paths."""
        return sorted(path for path in split.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg", ".png"})

    def name(self, image: Path) -> str:
        """Return the path of an image below the folder."""
        return image.relative_to(self.folder).as_posix()

    def fitting(self, seconds: float, reserve: float = 0.0) -> int:
        """Return how many steps or epochs of so many seconds fit in the time that is left; at least one."""
        return max(1, int((self.left - reserve) / seconds))

    def batches(self, loader: Iterable[Item], reserve: float) -> Iterator[tuple[float, Item]]:
        """Yield batches, epoch after epoch, until only the reserve is left; at least one.

        Args:
            loader: the batches of an epoch.
            reserve: seconds for the predictions at the end.

        Yields: the share of the time for training that is used, from 0 to 1, and the batch.
        """
        total, used = self.left - reserve, 0.0
        while True:
            for batch in loader:
                yield used, batch
                used = 1 - (self.left - reserve) / total if total > 0 else 1.0
                if used >= 1:
                    return

    def finish(self, note: str, **results: Any) -> None:
        """Write results, with a note on what was trained, such as the number of epochs."""
        (self.out / "results.json").write_text(json.dumps({"note": note, **results}))


def seconds_per_step(times: list[float]) -> float:
    """Return the mean over the steps of a probe, from the times at which they ended."""
    return (times[-1] - times[1]) / (len(times) - 2)
