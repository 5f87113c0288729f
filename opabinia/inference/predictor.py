"""The predictor: a trained task that takes images or videos, returned by :func:`opabinia.load`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from torchvision import tv_tensors

from opabinia.contracts import (
    Batch,
    Channels,
    DatasetInfo,
    Predictions,
    Presenter,
    Sample,
    Task,
    Transform,
    Video,
    are_8bit_images,
    channel_count,
    frame_channels,
    pixels_of,
)
from opabinia.data.collate import collate
from opabinia.data.decoding.images import from_pil, read_image
from opabinia.data.decoding.values import scale_values
from opabinia.data.errors import DataError
from opabinia.engine.loop.prefetch import to_device
from opabinia.runtime.device import autocast
from opabinia.runtime.seeds import preserve_generators
from opabinia.visualization.presenters.by_keys import presenter_of

Order = Literal["RGB", "BGR"]

ImageInput = str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor | Video
"""A path, a PIL image, an array (uint8, H x W x 3 in RGB order, or H x W gray), or a tensor (uint8, or float in 0 to 1;
C x H x W, RGB or gray). For a model of images with other channels or values, an array is as a file's
(:func:`opabinia.data.decoding.values.scale_values`). For a task that takes videos: a path, or an array or tensor of
frames (T x ...)."""

ImageInputs = list[ImageInput] | tuple[ImageInput, ...]

View = tuple[tuple[int, int], tuple[int, int]]
"""Clip i of n over time and crop j of m in space: ((i, n), (j, m))."""


class Prediction(dict[str, Tensor]):
    """The prediction for one image: its tensors by name (on the CPU), and the same as readable values.

    Attributes:
        readable: JSON values, such as ``{"top": [{"class": "cat", "probability": 0.98}, ...]}``.
    """

    def __init__(self, tensors: Mapping[str, Tensor], readable: dict[str, Any]) -> None:
        super().__init__(tensors)
        self.readable = readable

    @property
    def instance_masks(self) -> Tensor:
        """Masks of the detections in pixels of the original image (bool, D x H x W), in the order of
        ``readable["detections"]``; ``self["masks"]`` are within the boxes.

        Raises:
            ValueError: the detector predicts no masks.
        """
        from opabinia.contracts.masks import decode_rle

        if "masks" not in self:
            raise ValueError("the model predicts no masks")
        height, width = self["image_size"].tolist()
        masks = [decode_rle(row["mask"], (height, width)) for row in self.readable["detections"]]
        return torch.from_numpy(np.array(masks, dtype=bool).reshape(-1, height, width))

    def __repr__(self) -> str:
        return f"Prediction({self.readable})"


class Predictor:
    """Predict images with the transforms of the validation data.

    A task that learns from clips takes videos instead of images, and sees each in as many views as the validation data
    has of it.

    Args:
        task: the trained model.
        transforms: transforms of the validation data.
        dataset_info: description of the training data.
        channels: channels of images as they are read, before the transforms.
        device: where the model computes.
        precision: precision of its forward passes.
        batch_size: images in one forward pass.
        views: number of clips and crops of a video; None: one view, as the transforms give it.
        weights: ``raw`` or ``ema``, whichever the model has.

    Attributes:
        thresholds: minimum scores by class at which :meth:`batch` predicts, see
            :func:`opabinia.inference.class_thresholds.apply_thresholds`; None: predictions are as the task gives them.

    Example::

        predictor = opabinia.load("runs/classification/digits/default")
        predictor("three.png").readable["top"][0]      # {"class": "3", "probability": 0.998}
        for prediction in predictor(["a.jpg", image, array]):
            prediction["logits"]
    """

    def __init__(
        self,
        task: Task,
        transforms: Sequence[Transform],
        dataset_info: DatasetInfo,
        *,
        channels: Channels = 3,
        device: torch.device | str = "cpu",
        precision: str = "fp32",
        batch_size: int = 32,
        views: tuple[int, int] | None = None,
        weights: str = "raw",
    ) -> None:
        self.weights = weights
        self.device = torch.device(device)
        self.task = task.eval().to(self.device)
        self.transforms, self.dataset_info, self.channels = list(transforms), dataset_info, channels
        self.thresholds: Mapping[str, float] | None = None
        clips, crops = views or (0, 0)
        self._views: list[View | None] = [((i, clips), (j, crops)) for i in range(clips) for j in range(crops)]
        self._views = self._views or [None]
        self.precision, self.batch_size = precision, max(1, batch_size // len(self._views))
        self._embedding_method: Callable[[Batch], Predictions] = self.task.predict
        self._explained_layers = dict[tuple[int, int], str]()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.dataset_info.classes

    @property
    def takes_video(self) -> bool:
        """Whether inputs are videos."""
        return self.task.takes_video

    @overload
    def __call__(self, images: ImageInput, *, order: Order = "RGB") -> Prediction: ...

    @overload
    def __call__(self, images: ImageInputs, *, order: Order = "RGB") -> list[Prediction]: ...

    def __call__(self, images: ImageInput | ImageInputs, *, order: Order = "RGB") -> Prediction | list[Prediction]:
        """Return predictions for a list of images in its order, or for a single image.

        Args:
            images: inputs of any size each.
            order: order of the colors in arrays and tensors: OpenCV reads images as ``BGR``. Files and PIL images have
                a known order.

        Raises:
            ValueError: an input is not an image, or of an unknown form; the text says which.
            OSError: a file cannot be read.
        """
        if isinstance(images, list | tuple):
            predictions: list[Prediction] = []
            for start in range(0, len(images), self.batch_size):
                batch = images[start : start + self.batch_size]
                predictions += self.batch([self.sample(image, order=order) for image in batch])
            return predictions
        return self.batch([self.sample(images, order=order)])[0]

    def read(self, image: ImageInput, *, order: Order = "RGB") -> Sample:
        """Read an image, or open a video, as a sample before the transforms.

        Raises:
            ValueError, OSError: see :meth:`__call__`.
        """
        if self.takes_video:
            video = video_from(image, self.channels, order)
            return {"video": video, "id": video.path}
        pixels = image_from(image, self.channels, order)
        name = os.fspath(image) if isinstance(image, str | os.PathLike) else ""
        return {"image": tv_tensors.Image(pixels), "id": name, "original_size": tuple(pixels.shape[-2:])}

    def transform(self, sample: Sample) -> Sample:
        """Apply the transforms to a sample of :meth:`read`; that of a video also gets ``frames``, the frame numbers of
        each view, and ``image`` is T x C x H x W, with several views V x T x C x H x W.

        Raises:
            ValueError, OSError: a video cannot be read.
        """
        if not self.takes_video:
            with preserve_generators():
                return self._transformed(dict(sample))
        from opabinia.visualization.video_strips import RecordingVideo

        video = RecordingVideo(sample["video"])
        with preserve_generators():
            views = [
                self._transformed({"video": video, "id": video.path} | ({"view": view} if view else {}))
                for view in self._views
            ]
        images = [view["image"].as_subclass(Tensor) for view in views]
        image = images[0] if len(images) == 1 else torch.stack(images)
        return {"image": image, "id": video.path, "frames": video.requests}

    def sample(self, image: ImageInput, *, order: Order = "RGB") -> Sample:
        """Return the image as the model sees it: :meth:`read`, then :meth:`transform`.

        Raises:
            ValueError, OSError: see :meth:`__call__`.
        """
        return self.transform(self.read(image, order=order))

    def _transformed(self, sample: Sample) -> Sample:
        for transform in self.transforms:
            sample = transform(sample)
        return sample

    def batch(self, samples: Sequence[Sample]) -> list[Prediction]:
        """Return predictions for transformed samples. Only images of one size share a forward pass, so that padding
        does not affect predictions."""
        predictions = self.tensors(samples)
        if self.thresholds is not None:
            from opabinia.inference.class_thresholds import apply_thresholds

            predictions = [apply_thresholds(tensors, self.thresholds, self.classes) for tensors in predictions]
        return [Prediction(tensors, self.presenter(tensors).readable(tensors)) for tensors in predictions]

    def presenter(self, shown: Mapping[str, Any]) -> Presenter:
        """Return what shows a prediction, or a sample for which nothing is predicted; see
        :func:`opabinia.visualization.presenters.by_keys.presenter_of`."""
        return presenter_of(self.task, self.dataset_info, shown)

    def tensors(self, samples: Sequence[Sample]) -> list[dict[str, Tensor]]:
        """Return the tensors of :meth:`batch`."""
        return self.outputs(samples, self.task.predict)

    def outputs(self, samples: Sequence[Sample], compute: Callable[[Batch], Predictions]) -> list[dict[str, Tensor]]:
        """Return what a function computes for transformed samples, on the CPU: a row of each tensor for each sample.

        Args:
            samples: transformed samples of any size each.
            compute: function of a batch of images of the same size, on the device.
        """
        predictions: dict[int, dict[str, Tensor]] = {}
        for indices in group_by_size(samples):
            with torch.no_grad(), autocast(self.device, self.precision):
                outputs = compute(self._collate([samples[index] for index in indices]))
            on_cpu = {
                name: (value.float() if value.is_floating_point() else value).cpu() for name, value in outputs.items()
            }
            for row, index in enumerate(indices):
                predictions[index] = {name: value[row] for name, value in on_cpu.items()}
        return [predictions[index] for index in range(len(samples))]

    def _collate(self, samples: Sequence[Sample]) -> Batch:
        return to_device(collate(samples, self.task.size_multiple), self.device)

    def embeddings(self, samples: Sequence[Sample]) -> Tensor:
        """Return the embeddings of transformed samples (float32, B x D, on the CPU), normalized to length 1: those that
        the task predicts, or else its features. The dot product of two is their cosine similarity.

        Raises:
            DataError: an embedding is not finite.
        """
        groups = group_by_size(samples)
        with torch.no_grad(), autocast(self.device, self.precision):
            embedded = [self._embed(self._collate([samples[index] for index in indices])) for indices in groups]
        order = torch.tensor([index for indices in groups for index in indices]).argsort()
        embeddings = torch.cat(embedded).float().cpu()[order]
        finite = embeddings.isfinite().all(1).tolist()
        if not all(finite):
            names = ", ".join(str(sample["id"]) for sample, valid in zip(samples, finite, strict=True) if not valid)
            raise DataError(f"the model's embedding is not finite for {names}")
        return normalize(embeddings, dim=1)

    def _embed(self, batch: Batch) -> Tensor:
        outputs = self._embedding_method(batch)
        if "embedding" not in outputs:
            self._embedding_method = self.task.features
            outputs = self.task.features(batch)
        return outputs["embedding"]

    def explain(self, samples: Sequence[Sample], toward: Tensor | None = None) -> Tensor:
        """Return heatmaps of the evidence for the predictions (float, B x H x W in 0 to 1, on the CPU): Grad-CAM, or
        those of the task's own ``explain``.

        Grad-CAM explains the length of a predicted embedding, or else the logit of the most probable class.

        Args:
            samples: transformed, of the same size.
            toward: B x D; explain the similarity of the embeddings to these instead.

        Raises:
            ValueError: the prediction cannot be explained: several views, no logits, embeddings that all have length 1,
                no feature maps in the model.
        """
        from opabinia.inference.gradcam import grad_cam_heatmap, last_feature_map_layer

        if reason := getattr(self.task.presenter(), "no_heatmap", ""):
            raise ValueError(reason)
        batch = self._collate(samples)
        heatmaps = self.task.explain(batch)
        if heatmaps is not None:
            return heatmaps.float().cpu()
        image = batch["image"]
        if image.ndim != 4:
            inputs = "videos" if self.takes_video else "several views of an image"
            raise ValueError(f"only images that the model sees as a whole can be explained, not {inputs}")
        target = None if toward is None else toward.to(self.device)
        size = (image.shape[2], image.shape[3])
        if size not in self._explained_layers:  # the deepest feature map of a small image may have one pixel
            # One image is enough; as floats it can have a gradient even if all parameters are frozen.
            pixels = image[:1] if image.is_floating_point() else image[:1] / 255
            first = {**{key: value[:1] for key, value in batch.items()}, "image": pixels.requires_grad_()}
            score = partial(self._score, first, target if target is None else target[:1])
            self._explained_layers[size] = last_feature_map_layer(self.task, score, size)
        layer = self._explained_layers[size]
        return grad_cam_heatmap(self.task, layer, partial(self._score, batch, target), size).cpu()

    def _score(self, batch: Batch, toward: Tensor | None) -> Tensor:
        """Return the number that is explained for each image (B)."""
        if toward is not None:
            return cosine_similarity(self._embed(batch), toward)
        outputs = self.task.predict(batch)
        if "embedding" not in outputs and "logits" in outputs:
            return outputs["logits"].amax(1)
        embedding = outputs["embedding"] if "embedding" in outputs else self._embed(batch)
        lengths: Tensor = torch.linalg.vector_norm(embedding, dim=1)
        if torch.allclose(lengths, torch.ones_like(lengths), atol=1e-4):
            raise ValueError("embeddings of length 1 are explained by their similarity to others: give a gallery")
        return lengths


def group_by_size(samples: Sequence[Sample]) -> list[list[int]]:
    """Return lists of indices of samples whose images have the same size."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(tuple(sample["image"].shape), []).append(index)
    return list(groups.values())


def video_from(video: ImageInput, channels: Channels, order: Order = "RGB") -> Video:
    """Return the video of a path, an array or a tensor; ``order`` is the color order of arrays and tensors.

    Raises:
        ValueError: it is not a video, or of an unknown form.
    """
    from opabinia.data.decoding.image_sequences import VideoInMemory
    from opabinia.data.decoding.video import VideoFile

    if isinstance(video, str | os.PathLike):
        return VideoFile(video, frame_channels(channels))
    if isinstance(video, Video):
        return video
    if isinstance(video, np.ndarray | Tensor) and video.ndim == 4 and len(video):
        frames = torch.stack([image_from(frame, channels, order) for frame in video])
        return VideoInMemory((frames * 255).round().to(torch.uint8) if frames.is_floating_point() else frames)
    shape = f" {tuple(video.shape)}" if isinstance(video, np.ndarray | Tensor) else ""
    raise ValueError(
        f"a video is a path, an array (T x H x W x 3) or a tensor (T x C x H x W), not a {type(video).__name__}{shape}"
    )


def image_from(image: ImageInput, channels: Channels, order: Order = "RGB") -> Tensor:
    """Return an image as a file of these ``channels`` is read, C x H x W (uint8; float tensors stay float); ``order``
    is that of colors in arrays and tensors.

    Raises:
        ValueError: it is not an image, or of an unknown form, or the order is unknown.
        OSError: a file cannot be read.
    """
    if order not in ("RGB", "BGR"):
        raise ValueError(f"the color order is RGB or BGR, not {order!r}")
    if isinstance(image, str | os.PathLike):
        return read_image(image, channels)
    if isinstance(image, Image.Image):
        return _from_pil(image, channels)
    if isinstance(image, np.ndarray) and not are_8bit_images(channels):
        return scale_values(image, pixels_of(channels))
    if isinstance(image, np.ndarray):
        return _from_array(image, channels, order)
    if isinstance(image, Tensor):
        return _from_tensor(image, channels, order)
    raise ValueError(f"an image is a path, a PIL image, an array or a tensor, not a {type(image).__name__}")


def _from_array(image: NDArray[Any], channels: Channels, order: Order) -> Tensor:
    array = image.squeeze(2) if image.ndim == 3 and image.shape[2] == 1 else image
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        raise ValueError(f"an array is uint8, H x W or H x W x 3, not {image.dtype} {image.shape}")
    if not array.size:
        raise ValueError(f"an array has pixels, not {image.shape}")
    if order == "BGR" and array.ndim == 3:
        array = array[:, :, ::-1]
    return _from_pil(Image.fromarray(np.ascontiguousarray(array)), channels)


def _from_tensor(image: Tensor, channels: Channels, order: Order) -> Tensor:
    expected = (1, 3) if are_8bit_images(channels) else (channel_count(channels),)
    if image.ndim != 3 or image.shape[0] not in expected:
        counts = " or ".join(map(str, expected))
        raise ValueError(f"a tensor is C x H x W of {counts} channels, not {tuple(image.shape)}")
    if not image.is_floating_point() and image.dtype != torch.uint8:
        raise ValueError(f"a tensor is uint8, or float in 0 to 1, not {image.dtype}")
    if not image.numel():
        raise ValueError(f"a tensor has pixels, not {tuple(image.shape)}")
    pixels = image.detach().cpu()
    if order == "BGR" and len(pixels) == 3:
        pixels = pixels.flip(0)
    if len(pixels) == channel_count(channels):
        return pixels
    if channels == 3:
        return pixels.expand(3, -1, -1)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    gray: Tensor = (pixels.float() * weights).sum(0, keepdim=True)
    return gray if pixels.is_floating_point() else gray.round().to(torch.uint8)


def _from_pil(image: Image.Image, channels: Channels) -> Tensor:
    if not are_8bit_images(channels):
        return from_pil(image, channels)
    upright = ImageOps.exif_transpose(image).convert("RGB" if channels == 3 else "L")
    return torch.from_numpy(np.array(upright).reshape(upright.height, upright.width, channels)).permute(2, 0, 1)
