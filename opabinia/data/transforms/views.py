"""Several views of one image, for self-supervised learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from opabinia.config import register
from opabinia.contracts import Count, Sample, TransformPart
from opabinia.data.device_transforms.recorded import RECORDED_OPS
from opabinia.runtime.text import error_text


@register.section(name="view")
@dataclass(frozen=True, kw_only=True)
class View:
    """One view of an image, or several with the same transforms.

    Args:
        transforms: applied to the image, in order; each view draws its own random numbers.
        count: number of views that are made in this way.
    """

    transforms: Sequence[TransformPart]
    count: Count = 1


@register.transform(name="views")
class Views:
    """Make several views of one image; views of one size go through the network together.

    ``views``, a tuple of V images, replaces ``image`` in the sample. If the transforms draw patch masks, the sample
    also has ``patch_masks``, a tuple of the masks of the first views. Batches have tuples of V tensors of B rows.

    Args:
        views: in order, larger sizes first: methods with multi-crop compute their targets from the first views.

    Raises:
        ValueError: there are no views.

    Example::

        transforms:
          - name: views
            views:
              - {count: 2, transforms: [{name: RandomResizedCrop, size: 224, scale: [0.14, 1.0]}, RandomHorizontalFlip]}
              - {count: 6, transforms: [{name: RandomResizedCrop, size: 96, scale: [0.05, 0.14]}, RandomHorizontalFlip]}
    """

    def __init__(self, *, views: list[View]) -> None:
        if not views:
            raise ValueError("views: at least one is needed")
        self._views = views
        self._transforms = [(number, view.transforms) for number, view in enumerate(views) for _ in range(view.count)]

    @property
    def each(self) -> list[Sequence[TransformPart]]:
        """The transforms of each kind of view."""
        return [view.transforms for view in self._views]

    def with_transforms(self, change: Callable[[Sequence[TransformPart]], Sequence[TransformPart]]) -> Views:
        """Return the same views with other transforms: ``change`` of those of each view."""
        return Views(views=[replace(view, transforms=change(view.transforms)) for view in self._views])

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with ``views`` instead of its image.

        Raises:
            ValueError: a view has a patch mask although an earlier one has none; or a transform fails.
        """
        views = [self._make_view(sample, number, transforms) for number, transforms in self._transforms]
        unchanged = {key: value for key, value in sample.items() if key not in ("image", "patch_mask")}
        masks = [view["patch_mask"] for view in views if "patch_mask" in view]
        if any("patch_mask" not in view for view in views[: len(masks)]):
            raise ValueError("views with a patch mask come before those without")
        return {
            **unchanged,
            "views": tuple(view["image"] for view in views),
            **({"patch_masks": tuple(masks)} if masks else {}),
            **({RECORDED_OPS: tuple(view[RECORDED_OPS] for view in views)} if RECORDED_OPS in views[0] else {}),
        }

    def _make_view(self, sample: Sample, number: int, transforms: Sequence[TransformPart]) -> Sample:
        view = {"image": sample["image"].clone()}  # some transforms work in place
        for position, transform in enumerate(transforms):
            try:
                view = transform(view)
            except Exception as error:
                raise ValueError(f"views.{number}.transforms.{position}: {error_text(error)}") from error
        return view


@register.transform(name="views_and_image")
class ViewsAndImage(Views):
    """Views of an image beside the image itself, for the validation of self-supervised tasks.

    ``views`` are compared by the loss (evaluator ``validation_loss``); ``image`` is embedded.

    Args:
        views: as in the transform ``views``.
        image: transforms of the image itself.

    Raises:
        ValueError: there are no views.
    """

    def __init__(self, *, views: list[View], image: list[TransformPart]) -> None:
        super().__init__(views=views)
        self._image = image

    def with_transforms(self, change: Callable[[Sequence[TransformPart]], Sequence[TransformPart]]) -> ViewsAndImage:
        """Return the same views and image with other transforms."""
        views = [replace(view, transforms=change(view.transforms)) for view in self._views]
        return ViewsAndImage(views=views, image=list(change(self._image)))

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with ``views``; its image has been transformed.

        Raises:
            ValueError: see :class:`Views`.
        """
        return reduce(lambda image, transform: transform(image), self._image, sample | super().__call__(sample))
