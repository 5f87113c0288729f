"""What tasks of self-supervised learning share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from opabinia.contracts import Backbone, Batch, DataMismatch, DatasetInfo, Evaluator, EvaluatorPart, Predictions, Task
from opabinia.evaluation.representation.collapse import Collapse
from opabinia.evaluation.representation.knn import Knn
from opabinia.models.layers import normalize_as
from opabinia.runtime.collectives import gather_rows
from opabinia.tasks.selfsup.momentum_teacher import Teacher


class SelfSupervised(Task):
    """Trains a backbone on images without their labels.

    What is left to its heirs: ``forward``, and :attr:`trunk`, where another network than the trained one is handed on.

    Args:
        facts: of the training data. Labels, if there are any, are for measuring only.
        backbone: what is trained.
        mean, std: of the images, if a person says them.
        evaluators: who judges the embeddings; null takes :class:`opabinia.evaluation.representation.knn.Knn` where every image has one
            label, in training too and of the same classes. Whether embeddings collapse is always judged.

    Attributes:
        least: images of a process that a step needs at least: what compares images, or has batch norms, has nothing to
            learn from a single one.
    """

    least = 2

    def __init__(
        self,
        dataset_info: DatasetInfo,
        backbone: Backbone,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        evaluators: Sequence[EvaluatorPart] | None = None,
    ) -> None:
        super().__init__()
        self.dataset_info = dataset_info
        self.backbone = backbone
        self.normalize = normalize_as(backbone.preprocessing, dataset_info.channels, mean, std)
        self._evaluators = evaluators

    @property
    def trunk(self) -> Backbone:
        """The network whose vectors are measured, extracted and handed on."""
        return self.backbone

    def views(self, batch: Batch, count: int | None = None, *, least: int = 2) -> list[Tensor]:
        """The views of the batch's images, normalised (B x C x h x w each).

        Args:
            batch: of training.
            count: how many there must be; None: any number from ``least`` on.
            least: how many there must be at least.

        Raises:
            Unfit: there are fewer or more, none at all, or too few images to compare.
        """
        views = batch.get("views", ())
        wanted = f"{least} views or more" if count is None else f"{count} views"
        if not views:
            raise DataMismatch(
                f"{type(self).__name__} learns from {wanted} of an image; add views to data.train.transforms"
            )
        if (count is not None and len(views) != count) or len(views) < least:
            raise DataMismatch(
                f"{type(self).__name__} learns from {wanted} of an image; data.train.transforms gives {len(views)}"
            )
        self.refuse_few(len(views[0]))
        return [self.normalize(view) for view in views]

    def refuse_few(self, images: int) -> None:
        """Tell batches that are too small.

        Raises:
            Unfit: a process has fewer than ``least`` images.
        """
        if images < self.least:
            raise DataMismatch(
                f"{type(self).__name__} learns from {self.least} images or more for each process, not {images}; raise "
                "data.batch_size or train.micro_batch, or leave out the incomplete batch of an epoch with "
                "data.drop_last"
            )

    def predict(self, batch: Batch) -> Predictions:
        """``embedding`` (B x D): the trunk's vectors.

        Raises:
            Unfit: there are views in the place of images.
        """
        if "image" not in batch:
            raise DataMismatch(
                f"{type(self).__name__} is measured by whole images, not by views; leave views to data.train"
            )
        return {"embedding": self.trunk(self.normalize(batch["image"])).float()}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding`` (B x D)."""
        return {"embedding": self.predict(batch)["embedding"]}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Those that the config names, or that fit the set, and whether embeddings collapse.

        Raises:
            ValueError: the set's images have another number of channels.
        """
        if dataset_info.channels != self.dataset_info.channels:
            raise ValueError(
                f"its images have {dataset_info.channels} channels, those of training {self.dataset_info.channels}"
            )
        labelled = len(dataset_info.classes) > 1 and not dataset_info.multi_label and not dataset_info.boxes
        labelled &= dataset_info.classes == self.dataset_info.classes
        own = self._evaluators if self._evaluators is not None else [Knn] * labelled
        return [*(one(dataset_info) for one in own), Collapse(dataset_info)]

    def initialised(self, names: Collection[str]) -> None:
        """A teacher that got no weights of its own begins as a copy of its student."""
        teacher = getattr(self, "teacher", None)
        if isinstance(teacher, Teacher) and not any(name.startswith("teacher.") for name in names):
            teacher.begin_anew(self)


def in_few_passes(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> list[Tensor]:
    """What a network gives for each view, with as few passes as there are sizes.

    Neighbours of one size go through together, so batch norms see them together, as in SwAV and DINO.

    Args:
        network: of B x C x h x w to B x ...
        views: B x C x h x w each.
    """
    given: list[Tensor] = []
    start = 0
    for end in range(1, len(views) + 1):
        if end == len(views) or views[end].shape != views[start].shape:
            given += network(torch.cat(list(views[start:end]))).chunk(end - start)
            start = end
    return given


def of_all_processes(views: Sequence[Tensor], ids: Sequence[str]) -> list[Tensor]:
    """Vectors of each view (B x D) of the batch of all processes, each image once; gradients find their way back."""
    whole = gather_rows(torch.stack(list(views), 1), ids)
    return list(whole.unbind(1))
