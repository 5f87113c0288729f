"""What is exported of a task: a function of tensors with a static size and any number of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.contracts import Predictions, Sample, Task
from opabinia.inference.export.nms import Dense, differ_in_things, left_of
from opabinia.tasks.detection.task import Detection

Tensors = Mapping[str, Tensor]


class Inference(nn.Module):
    """What a task predicts of images, or of clips: ``image`` as the transforms of the validation data give it, to the
    tensors of :meth:`opabinia.contracts.Task.predict` by their names. Normalisation is part of it.

    Args:
        task: in evaluation mode, on the CPU.
    """

    dims = 4
    """Of ``image`` in a batch."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, image: Tensor) -> Predictions:
        return dict(self.task.predict({"image": image}))

    def refuse_dynamic(self) -> None:
        """Tell what cannot become a graph of static shapes.

        Raises:
            ValueError: this cannot; the text says why, and what can.
        """

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Transformed samples as inputs by name, with a row each. Of several views each is a sample.

        Raises:
            ValueError: they differ in size.
        """
        images = [sample["image"].as_subclass(Tensor) for sample in samples]
        rows = [row for image in images for row in (image if image.ndim == self.dims else [image])]
        shapes = sorted({tuple(row.shape) for row in rows})
        if len(shapes) > 1:
            raise ValueError(
                f"the validation data's transforms give images of several sizes ({shapes[0]}, {shapes[1]}), and what "
                "is exported takes one; put a Resize with height and width, or a crop, at their end"
            )
        return {"image": torch.stack(rows)}

    @torch.no_grad()
    def original(self, inputs: Tensors) -> Predictions:
        """What the task itself says of them."""
        return self.task.predict(dict(inputs))

    def difference(self, original: Tensors, found: Tensors) -> float:
        """The largest one of any number, as a share of the largest number of its output where that is above 1."""
        return max(relative(original[name], found[name]) for name in original)


class ClipInference(Inference):
    """What a task predicts of clips (B x T x C x H x W)."""

    dims = 5


class Findings(Inference):
    """What a detector finds in images of one size: ``boxes`` (B x D x 4: left, top, right, bottom, in pixels of the
    image), ``scores`` (B x D) and ``labels`` (int64, B x D; -1 where there are fewer), best first.

    Beside ``image`` it takes ``image_sizes`` (int64, B x 2): height and width of what each image shows; the rest of it,
    to the right and below, is padding.

    Args:
        task: in evaluation mode, on the CPU.
    """

    def __init__(self, task: Detection) -> None:
        super().__init__(task)
        self.net, self.detector = task, task.detector

    def refuse_dynamic(self) -> None:
        if self.net.predicts_views:
            raise ValueError("task.views: a graph sees an image in one size; export with task.views=null")
        if not isinstance(self.detector, Dense):
            raise ValueError(
                f"task.detector: {type(self.detector).__name__} goes on image by image, so its shapes are not static; "
                "fcos and retinanet can be exported, and every detector in the Hugging Face layout (--format "
                "huggingface)"
            )

    def forward(self, image: Tensor, image_sizes: Tensor) -> Predictions:  # type: ignore[override]
        height, width = image.shape[-2:]
        rows = torch.arange(height).view(1, -1, 1) < image_sizes[:, :1, None]
        columns = torch.arange(width).view(1, 1, -1) < image_sizes[:, 1:, None]
        seen = self.net.normalize(image) * (rows & columns).unsqueeze(1)
        detector = self.detector
        assert isinstance(detector, Dense), "refuse_dynamic() comes first"
        found = detector.candidates(detector.pyramid(self.net.backbone.levels(seen)), (height, width))
        things = left_of(found, image_sizes, detector.threshold, detector.nms, detector.most)
        return {"boxes": things.boxes, "scores": things.scores, "labels": things.labels}

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Images padded to the largest height and width among them, as the detector wants them, with their sizes."""
        images = [sample["image"].as_subclass(Tensor) for sample in samples]
        sizes = torch.tensor([image.shape[-2:] for image in images])
        multiple = self.net.size_multiple or 1
        height, width = (ceil(side / multiple) * multiple for side in sizes.amax(0).tolist())
        padded = [F.pad(image, (0, width - image.shape[-1], 0, height - image.shape[-2])) for image in images]
        return {"image": torch.stack(padded), "image_sizes": sizes}

    @torch.no_grad()
    def original(self, inputs: Tensors) -> Predictions:
        sizes = [(int(height), int(width)) for height, width in inputs["image_sizes"].tolist()]
        batch = {"image": inputs["image"], "image_sizes": sizes, "original_size": sizes}
        said = self.net.predict(batch)
        return {name: said[name] for name in ("boxes", "scores", "labels")}

    def difference(self, original: Tensors, found: Tensors) -> float:
        """See :func:`opabinia.inference.export.nms.differ_in_things`."""
        return differ_in_things(original, found, getattr(self.detector, "threshold", 0.0))


def relative(original: Tensor, found: Tensor) -> float:
    """The largest difference of two tensors, as a share of the largest number in the first where that is above 1;
    infinite where shapes differ or something is no finite number."""
    if original.shape != found.shape or not bool(found.isfinite().all()):
        return inf
    if not original.numel():
        return 0.0
    scale = max(1.0, float(original.abs().max()))
    return float((original.double() - found.double()).abs().max()) / scale


def inference_of(task: Task) -> Inference:
    """What is exported of a task."""
    if isinstance(task, Detection):
        return Findings(task)
    clips = getattr(getattr(task, "backbone", None), "clips", False)
    return (ClipInference if clips else Inference)(task)
