"""The base class of self-supervised tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypedDict, Unpack, cast, get_type_hints

import torch
from torch import Tensor

from opabinia.contracts import (
    Backbone,
    BackbonePart,
    Batch,
    Clock,
    DataMismatch,
    DatasetInfo,
    Evaluator,
    EvaluatorPart,
    Hook,
    Predictions,
    Presenter,
    Task,
)
from opabinia.evaluation.representation.collapse import Collapse
from opabinia.evaluation.representation.knn import Knn
from opabinia.models.backbones.module import build_backbone
from opabinia.models.embeddings import join_embeddings
from opabinia.models.layers import build_normalization
from opabinia.runtime.collectives import gather_rows, local_batches
from opabinia.tasks.dataset_checks import check_channels
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher


class SharedOptions(TypedDict, total=False):
    """Options of every self-supervised task; None unless given.

    Attributes:
        evaluators: of the embeddings; None takes :class:`opabinia.evaluation.representation.knn.Knn` if every image has
            one label and the classes are those of training. Collapse is always measured.
        mean, std: of images in 0..1; see :func:`opabinia.models.layers.build_normalization`.
    """

    evaluators: list[EvaluatorPart] | None
    mean: list[float] | None
    std: list[float] | None


class SelfSupervised(Task):
    """Train a backbone on images without labels.

    Subclasses implement ``forward``.

    Args:
        dataset_info: of the training data. Labels, if there are any, are used in evaluation only.
        backbone: the network that is trained.
        options: see :class:`SharedOptions`.

    Attributes:
        export_backbone: whether :attr:`trunk` is the backbone of the ``student`` or of its momentum ``teacher``.
        has_validation_loss: whether ``forward`` takes images that are not trained on; False if every training image has
            an entry of its own in a memory. Memories of earlier batches are read then and change after steps only.
        min_samples_per_rank: 2, because losses that compare images and batch norms learn nothing from a single image.
    """

    export_backbone: Literal["teacher", "student"] = "student"
    has_validation_loss = True
    min_samples_per_rank = 2
    predicts_embedding_only = True
    next_commands = ("eval", "linear probe", "map", "extract", "report", "export for timm")
    label_keys = ()

    def __init__(self, dataset_info: DatasetInfo, backbone: BackbonePart, **options: Unpack[SharedOptions]) -> None:
        super().__init__()
        self.dataset_info = dataset_info
        self.backbone = build_backbone(backbone, dataset_info.channels)
        mean, std = options.get("mean"), options.get("std")
        self.normalize = build_normalization(self.backbone.preprocessing, dataset_info.channels, mean, std)
        self._evaluators = options.get("evaluators")

    def __init_subclass__(cls) -> None:
        """Replace ``**options`` in the signature by the shared options: it defines the keys of a config."""
        super().__init_subclass__()
        signature = inspect.signature(cls.__init__)
        *own, last = signature.parameters.values()
        if last.kind is last.VAR_KEYWORD:
            hints = get_type_hints(SharedOptions, include_extras=True)
            shared = [
                inspect.Parameter(name, last.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in hints
            ]
            cls.__init__.__dict__["__signature__"] = signature.replace(parameters=[*own, *shared])

    @property
    def trunk(self) -> Backbone:
        """The network whose vectors are evaluated, extracted and handed to other runs: see ``export_backbone``."""
        if self.export_backbone == "student":
            return self.backbone
        return cast(Backbone, self.get_submodule("teacher.backbone"))

    def views(self, batch: Batch, count: int | None = None, *, min_count: int = 2) -> list[Tensor]:
        """Return the normalized views of the batch's images (B x C x h x w each).

        Args:
            batch: of training.
            count: required number of views; None: any number from ``min_count`` on.
            min_count: minimum number of views.

        Raises:
            DataMismatch: there are fewer or more views, none at all, or too few images to compare.
        """
        views = batch.get("views", ())
        required = f"{min_count} views or more" if count is None else f"{count} views"
        if (count is not None and len(views) != count) or len(views) < max(1, min_count):
            problem = f"gives {len(views)}" if views else "gives none; add views to it"
            raise DataMismatch(
                f"{type(self).__name__} learns from {required} of an image; data.train.transforms {problem}"
            )
        self.check_batch_size(len(views[0]))
        return [self.normalize(view) for view in views]

    def images_or_views(self, batch: Batch) -> Sequence[Tensor]:
        """Return the views of the batch's images, or if there are none the images, not normalized (B x C x h x w each).

        Raises:
            DataMismatch: there are too few images to compare.
        """
        images: Sequence[Tensor] = batch["views"] if "views" in batch else (batch["image"],)
        self.check_batch_size(len(images[0]))
        return images

    def check_batch_size(self, images: int) -> None:
        """Check that a process has enough images.

        Raises:
            DataMismatch: it has fewer than ``min_samples_per_rank``.
        """
        if images < self.min_samples_per_rank:
            raise DataMismatch(
                f"{type(self).__name__} learns from {self.min_samples_per_rank} images or more per process, not "
                f"{images}; raise data.batch_size or train.micro_batch_size, or drop the incomplete last batch of an "
                "epoch with data.drop_last"
            )

    def image_indices(self, batch: Batch) -> Tensor:
        """Return the index of each image of a training batch (int64, B).

        Raises:
            DataMismatch: there are none.
        """
        if "index" not in batch:
            raise DataMismatch(
                f"{type(self).__name__} needs the index of each image, and batches have none; set data.train.source: "
                "{name: indexed, source: ...}"
            )
        return cast(Tensor, batch["index"])

    def predict(self, batch: Batch) -> Predictions:
        """Return ``embedding`` (B x D), the trunk's vectors, and ``losses/...`` if the batch also has views or masks:
        ``losses/loss`` and, if it is a sum, its parts.

        Raises:
            DataMismatch: the batch has views instead of images.
        """
        if "image" not in batch:
            raise DataMismatch(
                f"{type(self).__name__} is evaluated on whole images, not on views; use views in data.train only"
            )
        embedding = self.trunk(self.normalize(batch["image"])).float()
        has_views = "views" in batch or "patch_mask" in batch
        # len() would export as a constant batch size.
        if not self.has_validation_loss or not has_views or (count := len(embedding)) < self.min_samples_per_rank:
            return {"embedding": embedding}
        try:
            with local_batches():
                values = self(batch, Clock())
        except DataMismatch as error:
            raise DataMismatch(str(error).replace("data.train.", "data.val.")) from error
        losses = {name: value for name, value in values.items() if "loss" in name}
        losses.setdefault("loss", torch.stack(list(losses.values())).sum())
        return {"embedding": embedding, **{f"losses/{name}": value.expand(count) for name, value in losses.items()}}

    def predict_together(self, models: Sequence[Task], batch: Batch) -> Predictions:
        """Return ``embedding``, see :func:`opabinia.models.embeddings.join_embeddings`."""
        return {"embedding": join_embeddings([model.features(batch)["embedding"] for model in models])}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding`` (B x D)."""
        return {"embedding": self.predict({"image": batch["image"]} if "image" in batch else batch)["embedding"]}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the configured evaluators, or those that fit the dataset, and the measurement of collapse.

        Raises:
            ValueError: the images have another number of channels.
        """
        check_channels(dataset_info, self.dataset_info)
        labeled = len(dataset_info.classes) > 1 and not dataset_info.multi_label and not dataset_info.boxes
        labeled &= dataset_info.classes == self.dataset_info.classes
        evaluators = self._evaluators if self._evaluators is not None else [Knn] * labeled
        return [*(build(dataset_info) for build in evaluators), Collapse(dataset_info)]

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the update of the momentum teacher, if there is one."""
        teacher = self._modules.get("teacher")
        return [teacher.update_hook(self)] if isinstance(teacher, MomentumTeacher) else []

    def weights_loaded(self, names: Collection[str]) -> None:
        """Copy the student into a momentum teacher that got no weights of its own."""
        teacher = self._modules.get("teacher")
        if isinstance(teacher, MomentumTeacher) and not any(name.startswith("teacher.") for name in names):
            teacher.copy_from(self)

    def presenter(self) -> Presenter:
        """Show the embedding."""
        return Presenter(self.dataset_info)


def forward_by_size(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> list[Tensor]:
    """Return the network's output for each view, with one forward pass per run of views of equal size.

    Adjacent views of one size go through together, so batch norms see them together, as in SwAV and DINO.

    Args:
        network: maps B x C x h x w to B x ...
        views: B x C x h x w each.
    """
    outputs: list[Tensor] = []
    start = 0
    for end in range(1, len(views) + 1):
        if end == len(views) or views[end].shape != views[start].shape:
            outputs += network(torch.cat(list(views[start:end]))).chunk(end - start)
            start = end
    return outputs


@contextmanager
def view_size_errors(views: Sequence[Tensor]) -> Iterator[None]:
    """Turn a backbone's error about image sizes into one that names the option to set.

    Raises:
        DataMismatch: the backbone does not take views of these sizes.
    """
    try:
        yield
    except (AssertionError, DataMismatch) as error:  # the former by timm's layers
        sizes = ", ".join(dict.fromkeys(f"{view.shape[2]} x {view.shape[3]}" for view in views))
        raise DataMismatch(
            f"the backbone does not take views of {sizes}: {error} Vision transformers of timm take several sizes with "
            "the backbone's options: {img_size: SIZE, dynamic_img_size: true}, where SIZE is that of the global views"
        ) from error


def gather_views(views: Sequence[Tensor], ids: Sequence[str]) -> list[Tensor]:
    """Return the vectors of each view (B x D) for the batch of all processes, each image once, with gradients."""
    return list(gather_rows(torch.stack(list(views), 1), ids).unbind(1))
