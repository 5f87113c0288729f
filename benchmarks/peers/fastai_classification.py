"""fastai: ``vision_learner`` and ``fine_tune``, with the transforms of the book's chapter on one's own images.

The number of epochs is what fits: one with a frozen body, as ``fine_tune`` has it, and the others with all layers, with
a validation after each. The time of a step is measured first.
"""

from __future__ import annotations

import time

from fastai.callback.core import Callback, CancelFitException
from fastai.callback.schedule import Learner  # gives it fine_tune
from fastai.metrics import accuracy
from fastai.torch_core import set_seed
from fastai.vision.augment import RandomResizedCrop, aug_transforms
from fastai.vision.data import ImageDataLoaders
from fastai.vision.learner import vision_learner
from job import MODEL, PROBE, Job, seconds_per_step

job = Job.parse()


class Probe(Callback):
    """Ends the training after a few steps; their ends are in ``times``."""

    def before_fit(self) -> None:
        self.times: list[float] = []

    def after_batch(self) -> None:
        self.times.append(time.perf_counter())
        if len(self.times) == PROBE:
            raise CancelFitException


def learner() -> Learner:
    set_seed(job.seed)
    loaders = ImageDataLoaders.from_folder(
        job.folder,
        train="train",
        valid=job.validation.name,
        seed=job.seed,
        item_tfms=RandomResizedCrop(224, min_scale=0.5),
        batch_tfms=aug_transforms(),
    )
    weights = {"file": str(job.tensors)}
    return vision_learner(loaders, MODEL, metrics=accuracy, path=job.out, pretrained_cfg_overlay=weights)


if __name__ == "__main__":
    probed, probe = learner(), Probe()
    probed.unfreeze()
    with probed.no_bar():
        probed.fit(1, cbs=probe)
    # The forward pass of an image, without the backward pass, counts as half a step.
    step = seconds_per_step(probe.times) / probed.dls.bs
    trained, validated = len(probed.dls.train_ds), len(probed.dls.valid_ds) / 2
    epochs = max(1, job.fitting(step * (trained + validated), step * validated) - 1)
    learn = learner()
    with learn.no_bar():
        learn.fine_tune(epochs)
        probabilities, _ = learn.get_preds()
    classes = [learn.dls.vocab[index] for index in probabilities.argmax(dim=1).tolist()]
    names = [job.name(path) for path in learn.dls.valid_ds.items]
    job.finish(f"1 + {epochs} epochs", classes=dict(zip(names, classes, strict=True)))
