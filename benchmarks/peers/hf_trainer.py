"""Hugging Face: ``Trainer`` as in its image classification example, with timm's model through ``TimmWrapper``.

Transforms are those of the image processor, which the example uses for timm's models; hyperparameters are the defaults
of ``TrainingArguments``. The number of steps is what fits; their time is measured first.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from datasets import Image, load_dataset
from job import PROBE, Job, seconds_per_step
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

job = Job.parse()


class Ends(TrainerCallback):
    """The times at which steps ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.perf_counter())


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    pixels = torch.stack([sample["pixel_values"] for sample in samples])
    return {"pixel_values": pixels, "labels": torch.tensor([sample["label"] for sample in samples])}


def transformed(data: Any, transform: Any) -> Any:
    def apply(samples: dict[str, list[Any]]) -> dict[str, list[Any]]:
        samples["pixel_values"] = [transform(image.convert("RGB")) for image in samples["image"]]
        return samples

    return data.with_transform(apply)


def trainer(steps: int) -> Trainer:
    set_seed(job.seed)
    model = AutoModelForImageClassification.from_pretrained(
        job.weights,
        num_labels=len(names),
        label2id={name: index for index, name in enumerate(names)},
        id2label=dict(enumerate(names)),
        ignore_mismatched_sizes=True,
    )
    options = TrainingArguments(
        output_dir=str(job.out / "trainer"),
        max_steps=steps,
        seed=job.seed,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return Trainer(model, options, data_collator=collate, train_dataset=train)


if __name__ == "__main__":
    files = {"train": f"{job.folder}/train/**", "validation": f"{job.validation}/**"}
    data = load_dataset("imagefolder", data_files=files, cache_dir=str(job.out / "cache"))
    names = data["train"].features["label"].names
    processor = AutoImageProcessor.from_pretrained(job.weights)
    train = transformed(data["train"], processor.train_transforms)
    validation = transformed(data["validation"], processor.val_transforms)
    probe, ends = trainer(PROBE), Ends()
    probe.add_callback(ends)
    probe.train()
    step = seconds_per_step(ends.times)
    batch = probe.args.train_batch_size
    # The forward pass of an image, without the backward pass, counts as half a step.
    steps = job.fitting(step, step * len(validation) / batch / 2)
    final = trainer(steps)
    final.train()
    predicted = final.predict(validation).predictions.argmax(axis=1).tolist()
    images = [Path(image["path"]) for image in data["validation"].cast_column("image", Image(decode=False))["image"]]
    classes = {job.name(path): names[label] for path, label in zip(images, predicted, strict=True)}
    job.finish(f"{steps * batch / len(train):.1f} epochs", classes=classes)
